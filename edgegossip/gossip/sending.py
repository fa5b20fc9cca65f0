"""A round's message on its way out: the same body to everybody, numbered edge by edge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgegossip.frame import Aux, Frame
from edgegossip.gossip.base import Action, Send
from edgegossip.gossip.changed import changed
from edgegossip.gossip.state import NO_OUT_EDGE
from edgegossip.gossip.streams import OutEdge

if TYPE_CHECKING:
    from edgegossip.gossip.state import Outcome, State, Stepped
    from edgegossip.gossip.synchronous import Synchronous


def tell(algorithm: Synchronous, s: State, to: Iterable[int], advance: bool) -> Outcome:
    """Sends this round's message to those of `to` that are up and, for a stream, have opened it."""
    assert s.stepped is not None
    stepped, streams = s.stepped, algorithm.scheme.streams
    phase, members, down = s.here.phase if streams else 0, s.view.members, s.view.down
    sends: list[Action] = []
    sent: list[int] = []
    out = dict(s.out)
    for k in to:
        edge = out.get((k, phase), NO_OUT_EDGE)
        gets = members[k] not in down and (edge.session or not streams)
        if advance if streams else gets:
            edge = changed(edge, position=edge.position + 1)
        if gets:
            sends.append(Send(members[k], _frame_for(algorithm, stepped, k, edge, s)))
            sent.append(k)
        out[k, phase] = edge
    return changed(s, out=out, stepped=changed(stepped, sent=stepped.sent.union(sent))), sends


def _frame_for(algorithm: Synchronous, stepped: Stepped, k: int, edge: OutEdge, s: State) -> Frame:
    aux = dict(stepped.published.numbers.get(k, ()))
    if algorithm.scheme.streams:
        aux[Aux.SESSION], aux[Aux.EPOCH] = edge.session, s.epoch
        if edge.position == 1:
            aux[Aux.FRESH] = algorithm.scheme.fingerprint(s.math)
    return stepped.frame.numbered(edge.position, aux)
