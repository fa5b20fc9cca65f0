"""Replies of a Flower app that do not go with the others. Flower's strategies end the app at the first reply whose metrics or
records are not those of the rest, so such a reply is refused before they see it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from flwr.app import Message

from edgegossip.flower.examples import Examples
from edgegossip.flower.protocol import printable
from edgegossip.flower.records import all_finite
from edgegossip.flower.reported import MAX_EXAMPLES
from edgegossip.types import PeerError

Form = tuple[
    tuple[str, ...], ...
]  # names of its array records, then its metric records': name, metrics with their sizes


def weight(reply: Message, key: str) -> float:
    """What strategies weight a reply by. Raises PeerError when it does not say, or nonsense."""
    metrics = next(iter(reply.content.metric_records.values()), None)
    value = None if metrics is None else metrics.get(key)
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise PeerError(f"the reply has no metric {key!r} above 0 to weight it by")
    if value > MAX_EXAMPLES:
        raise PeerError(f"the reply claims {key!r} = {value:g}, more than {MAX_EXAMPLES:g}")
    return float(value)


class Weights:
    """What the replies of one kind claim to weigh, round after round, by Flower's id of who sent them."""

    def __init__(self) -> None:
        self._examples = Examples[int]()

    def refused(self, replies: Sequence[Message], key: str) -> dict[int, str]:
        """Which of these replies (by their place), whose weights are sound, would drown the others, and why."""
        claims = {reply.metadata.src_node_id: weight(reply, key) for reply in replies}
        reasons = self._examples.refused(claims)
        self._examples.used({node: claim for node, claim in claims.items() if node not in reasons})
        found = {k: reasons.get(reply.metadata.src_node_id, "") for k, reply in enumerate(replies)}
        return {k: reason for k, reason in found.items() if reason}


def require_finite(reply: Message) -> None:
    """Raises PeerError."""
    if not all(all_finite(metrics) for metrics in reply.content.metric_records.values()):
        raise PeerError("a metric in the reply is not a finite number")


class Forms:
    """What the replies of one kind look like, round after round."""

    def __init__(self) -> None:
        self._usual: Form | None = None

    def refused(self, replies: Sequence[Message]) -> Mapping[int, str]:
        """Which of these replies (by their place) are not like most of the others, and why. Where as many look one way as
        another, those are right that look as they did in the round before."""
        forms = [_form(reply) for reply in replies]
        if not forms:
            return {}
        counts = Counter(forms)
        most = max(counts.values())
        best = [form for form, count in counts.items() if count == most]
        usual = self._usual if self._usual in best else best[0]
        self._usual = usual
        return {k: _difference(form, usual) for k, form in enumerate(forms) if form != usual}


def _form(reply: Message) -> Form:
    arrays = tuple(sorted(reply.content.array_records))
    metrics = []
    for name, record in sorted(reply.content.metric_records.items()):
        sizes = (f"{key} ({len(value)} values)" if isinstance(value, list) else key for key, value in record.items())
        metrics.append((name, *sorted(sizes)))
    return (arrays, *metrics)


def _difference(form: Form, usual: Form) -> str:
    ours, theirs = ({word for words in one for word in words} for one in (form, usual))
    more, less = (", ".join(map(repr, sorted(words))) for words in (ours - theirs, theirs - ours))
    found = [f"it lacks {less}" if less else "", f"it has {more} besides" if more else ""]
    return "the reply is not like the others': " + printable(" and ".join(filter(None, found)) or "in other records")
