"""A mapping that is made when somebody looks."""

from __future__ import annotations

from edgegossip.gossip.later import Later


def test_it_is_made_once_and_only_if_somebody_looks() -> None:
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"a": 1, "b": 2}

    later = Later(make)
    assert not made
    assert later["a"] == 1 and len(later) == 2 and list(later) == ["a", "b"] and "c" not in later
    assert later == {"a": 1, "b": 2} and bool(later) and not Later(dict[str, int]) and made == [1]
