"""The evaluation of the final model by one of the boards. The model is safe by then, so nothing here can lose the run."""

from __future__ import annotations

from collections import Counter

from flwr.app import Message, RecordDict

from edgegossip.flower import protocol
from edgegossip.flower._private import is_away
from edgegossip.flower.evaluations import Evaluations
from edgegossip.flower.exchange import COORDINATOR, Exchange, Stopped
from edgegossip.types import DecodeError, EdgegossipError, Metrics, NodeId, Round

ABSENCES = 3  # of one board that goes away whenever it is asked


def evaluate_final(exchange: Exchange, evaluations: Evaluations, request: RecordDict, step: Round) -> None:
    """Ask one board after the other until one has evaluated the model in `request`, that after round `step`; each may take
    `exchange.patience_s`. Where none does, that is said. Raises Stopped."""
    faults: dict[NodeId, str] = {}
    absences: Counter[NodeId] = Counter()
    try:
        while names := exchange.free(faults):
            name = evaluations.next_board(names)
            found = _asked(exchange, evaluations, name, request)
            if isinstance(found, Metrics):
                evaluations.record(step, found)
                return
            absences[name] += 1
            if found:
                faults[name] = found
            elif absences[name] >= ABSENCES:
                faults[name] = "it went away"
    except Stopped:
        raise
    except EdgegossipError as error:  # nobody is left, or Flower's server is not
        faults[COORDINATOR] = str(error)
    evaluations.missing(step, (faults or {COORDINATOR: "no board is there"}).items())


def _asked(exchange: Exchange, evaluations: Evaluations, name: NodeId, request: RecordDict) -> Metrics | str:
    """What it found, or why not; empty when it went away meanwhile: it may come back."""
    patience_s = exchange.patience_s
    message = Message(request, dst_node_id=exchange.roster_id(name), message_type="evaluate")
    reply = exchange.ask({name: message}, "final evaluation", patience_s).get(name)
    if reply is None:
        member = exchange.roster.by_name(name)
        return f"no answer for {patience_s:g} s" if member is not None and member.busy else ""
    if is_away(reply):
        return ""
    if reply.has_error():
        return protocol.printable(reply.error.reason or "no reason given")
    try:
        return evaluations.read(reply) or "its answer has no evaluation"
    except DecodeError as error:
        return str(error)
