"""A round's message on its way out: the same body to everybody, numbered edge by edge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgegossip.frame import Aux, Frame
from edgegossip.gossip.base import Action, Send
from edgegossip.gossip.changed import changed
from edgegossip.gossip.state import frozen
from edgegossip.gossip.streams import OutEdge

if TYPE_CHECKING:
    from edgegossip.gossip.state import Outcome, State, Stepped
    from edgegossip.gossip.synchronous import Synchronous


def tell(algorithm: Synchronous, s: State, to: Iterable[int], advance: bool) -> Outcome:
    """Sends this round's message to those of `to` that are up and, for a stream, have opened it."""
    assert s.stepped is not None
    phase, stepped = s.here.phase, s.stepped
    sends: list[Action] = []
    out = dict(s.out)
    for k in to:
        edge = s.out_edge(key := algorithm.key(k, phase))
        if advance and algorithm.scheme.streams:
            edge = changed(edge, position=edge.position + 1)
        if s.view.members[k] not in s.view.down and (edge.session or not algorithm.scheme.streams):
            if not algorithm.scheme.streams:
                edge = changed(edge, position=edge.position + 1)
            sends.append(Send(s.view.members[k], _frame_for(algorithm, stepped, k, edge, s)))
            stepped = changed(stepped, sent=stepped.sent | {k})
        out[key] = edge
    return changed(s, out=frozen(out), stepped=stepped), sends


def _frame_for(algorithm: Synchronous, stepped: Stepped, k: int, edge: OutEdge, s: State) -> Frame:
    aux = dict(stepped.published.numbers.get(k, {}))
    if algorithm.scheme.streams:
        aux[Aux.SESSION], aux[Aux.EPOCH] = edge.session, s.epoch
        if edge.position == 1:
            aux[Aux.FRESH] = algorithm.scheme.fingerprint(s.math)
    return replace(stepped.frame, sequence=edge.position, aux=aux)
