"""A round's message on its way out: the same body to everybody, numbered edge by edge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgegossip.gossip import tags
from edgegossip.gossip.base import Action, Send
from edgegossip.gossip.changed import changed
from edgegossip.gossip.state import NO_OUT_EDGE

if TYPE_CHECKING:
    from edgegossip.gossip.state import Outcome, State
    from edgegossip.gossip.synchronous import Synchronous


def tell(algorithm: Synchronous, s: State, to: Iterable[int], advance: bool) -> Outcome:
    """Sends this round's message to those of `to` that are up and, for a stream, have opened it."""
    assert s.stepped is not None
    stepped, streams = s.stepped, algorithm.scheme.streams
    phase, members, down = s.here.phase if streams else 0, s.view.members, s.view.down
    frame, numbers = stepped.frame, stepped.published.numbers
    sends: list[Action] = []
    sent: list[int] = []
    out = dict(s.out)
    for k in to:
        edge = out.get((k, phase), NO_OUT_EDGE)
        name = members[k]
        gets = name not in down and (edge.session or not streams)
        if advance if streams else gets:
            edge = changed(edge, position=edge.position + 1)
        if gets:
            aux = {**numbers[k]} if k in numbers else {}
            if streams:
                aux[tags.SESSION], aux[tags.EPOCH] = edge.session, s.epoch
                if edge.position == 1:
                    aux[tags.FRESH] = algorithm.scheme.fingerprint(s.math)
            sends.append(Send(name, frame.numbered(edge.position, aux)))
            sent.append(k)
        out[k, phase] = edge
    return changed(s, out=out, stepped=changed(stepped, sent=stepped.sent.union(sent))), sends
