"""Judges what clients of `compressed` answer, before the strategy sees it.

Flower's strategies end the app at the first answer whose metrics or records are not those of the
rest, and one that claims to weigh a million times as much as the others is the model. Both are for
strategies that aggregate as Flower wrote it. One of the user's own gets whatever can be opened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from edgegossip.engine.plausible import MAX_EXAMPLES, ExampleClaims
from edgegossip.types import PeerError
from edgegossip.untrusted import printable

# The names of its array records; then of each metric record its name and metrics.
ReplySchema = tuple[tuple[str, ...], ...]


def core_of(strategy: Any) -> Any:
    """Return the strategy that aggregates: what wrappers, such as Flower's for differential
    privacy, are around."""
    inner = getattr(strategy, "strategy", None)
    return core_of(inner) if isinstance(inner, Strategy) else strategy


def is_flowers(function: Any) -> bool:
    """Return whether a function is as Flower wrote it."""
    return str(getattr(function, "__module__", "")).startswith("flwr.")


def failed(reply: Message, asked: Message | None, reason: str) -> Message:
    """Return in place of an answer that was refused that its client failed: a strategy counts who
    failed, and one that adds noise adds it for those that did not."""
    if asked is None:
        asked = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    return Message(Error(0, reason), reply_to=asked)


class Judge:
    """Judges the answers of one kind, round after round. `means`: the attribute of strategies that
    makes one record of all metrics."""

    def __init__(self, means: str) -> None:
        self._means = means
        self._usual: ReplySchema | None = None
        self._examples = ExampleClaims[int]()

    def refused(self, replies: Mapping[int, Message], core: Any, method: Callable[..., Any]) -> dict[int, str]:
        """Return which of these answers `method` of this strategy cannot take together with the
        others, and why."""
        key = getattr(core, "weighted_by_key", None)
        if not is_flowers(method) or not isinstance(key, str):
            return {}
        bad = self._odd(replies, lengths=is_flowers(getattr(core, self._means, None)))
        weights: dict[int, float] = {}
        for k in replies.keys() - bad.keys():
            try:
                weights[k] = weight(replies[k], key)
            except PeerError as error:
                bad[k] = str(error)
        nodes = {k: replies[k].metadata.src_node_id for k in weights}
        # Of several answers of one node the largest claim counts: sorted, it comes last.
        claims = {nodes[k]: weights[k] for k in sorted(weights, key=weights.__getitem__) if weights[k] > 0}
        drowning = self._examples.refused(claims)
        self._examples.used({node: claim for node, claim in claims.items() if node not in drowning})
        return bad | {k: drowning[node] for k, node in nodes.items() if node in drowning}

    def _odd(self, replies: Mapping[int, Message], lengths: bool) -> dict[int, str]:
        """Return which of these are not like most of the others, and why. `lengths`: those of lists
        among metrics count, because they are added up.

        Where as many look one way as another, those are right that look as they did in the round
        before."""
        schemas = {k: _schema(reply, lengths) for k, reply in replies.items()}
        if not schemas:
            return {}
        counts = Counter(schemas.values())
        most = max(counts.values())
        best = [form for form, count in counts.items() if count == most]
        usual = self._usual if self._usual in best else best[0]
        self._usual = usual
        return {k: _difference(form, usual) for k, form in schemas.items() if form != usual}


def weight(reply: Message, key: str) -> float:
    """Return what strategies weight a reply by.

    Raises PeerError when it does not say, or nonsense."""
    metrics = next(iter(reply.content.metric_records.values()), None)
    value = None if metrics is None else metrics.get(key)
    if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise PeerError(f"the reply has no metric {key!r} of 0 or more to weight it by")
    if value > MAX_EXAMPLES:
        raise PeerError(f"the reply claims {key!r} = {value:g}, more than {MAX_EXAMPLES:g}")
    return float(value)


def _schema(reply: Message, lengths: bool) -> ReplySchema:
    arrays = [f"{name}: {key}" for name, record in reply.content.array_records.items() for key in record]
    metrics = []
    for name, record in sorted(reply.content.metric_records.items()):
        sizes = (f"{k} ({len(v)} values)" if lengths and isinstance(v, list) else k for k, v in record.items())
        metrics.append((name, *sorted(sizes)))
    return (tuple(sorted(reply.content.array_records)), tuple(sorted(arrays)), *metrics)


def _difference(form: ReplySchema, usual: ReplySchema) -> str:
    ours, theirs = ({word for words in one for word in words} for one in (form, usual))
    more, less = (", ".join(map(repr, sorted(words))) for words in (ours - theirs, theirs - ours))
    found = [f"it lacks {less}" if less else "", f"it has {more} besides" if more else ""]
    return "the reply is not like the others': " + printable(
        " and ".join(filter(None, found)) or "in other records", 500
    )
