"""What a wrapper, such as momentum, makes of the local update before the algorithm inside gets it: the ledger needs to
know."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from edgegossip.gossip.base import Action, GossipAlgorithm
from edgegossip.types import LocalUpdate, Vec

_METHODS = ("init", "resume", "start", "receive", "tick", "membership", "model", "round", "waiting_for", "audit")


class LastDelta:
    """The last local update that got through to the innermost algorithm."""

    delta: Vec | None = None


class Spy:
    """An algorithm that is another one, but for taking notes in `step`."""

    def __init__(self, algorithm: GossipAlgorithm[Any], last: LastDelta) -> None:
        self._algorithm, self._last = algorithm, last
        for name in _METHODS:  # found at once: a wrapper asks for them several times a message
            setattr(self, name, getattr(algorithm, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    def step(self, s: Any, local: LocalUpdate) -> tuple[Any, list[Action]]:
        self._last.delta = local.delta
        return self._algorithm.step(s, local)


def spied(algorithm: GossipAlgorithm[Any]) -> tuple[GossipAlgorithm[Any], LastDelta | None]:
    """The same with a spy inside its wrappers; None if it has none, and its update is the one that it is given."""
    last = LastDelta()
    changed = _inside(algorithm, last)
    return (algorithm, None) if changed is None else (changed, last)


def _inside(algorithm: Any, last: LastDelta) -> Any:
    inner = getattr(algorithm, "algorithm", None)
    if inner is None or not is_dataclass(algorithm):
        return None
    return replace(algorithm, algorithm=_inside(inner, last) or Spy(inner, last))  # type: ignore[type-var]
