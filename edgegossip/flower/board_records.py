"""The records of boards whose metrics are kept elsewhere: what their updates say, and the profile that they send of a round.

A board knows how long its answer took to send when that is sent. So the profile of a round comes with the next answer, or with
the board's goodbye; until then the record of the round is held back. Without one it has what the update said."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Message

from edgegossip.flower import protocol
from edgegossip.flower.round_record import board_values
from edgegossip.frame import Frame
from edgegossip.layout import Layout
from edgegossip.profiling.records import Sink, Value
from edgegossip.types import DecodeError, NodeId, Round


class BoardRecords:
    """At most one record a board waits for its profile."""

    def __init__(self, layout: Layout, sink: Sink) -> None:
        self._layout, self._sink = layout, sink
        self._waiting: dict[NodeId, tuple[Round, dict[str, Value]]] = {}

    @property
    def waiting(self) -> dict[NodeId, tuple[Round, dict[str, Value]]]:
        """Records that are not written yet; a process that is killed takes them along."""
        return dict(self._waiting)

    def resume(self, waiting: Mapping[NodeId, tuple[Round, Mapping[str, Value]]]) -> None:
        """Those of an earlier process."""
        self._waiting = {name: (round, dict(values)) for name, (round, values) in waiting.items()}

    def answered(self, name: NodeId, reply: Message) -> str | None:
        """Take the profile of an earlier round that came with an answer or a goodbye. What is wrong with it, if anything."""
        if reply.has_error() or name not in self._waiting:
            return None
        round, values = self._waiting[name]
        try:
            found = protocol.read_profile(reply.content)
        except DecodeError as error:
            return str(error)
        if found is not None and found[0] == round:
            self._write(name, found[1] | values)
        return None

    def used(self, name: NodeId, round: Round, frame: Frame) -> None:
        """An update that counted."""
        self._write(name)
        self._waiting[name] = (round, board_values(frame, self._layout))

    def end(self, farewells: Mapping[NodeId, Message]) -> None:
        """The run is over: write what is left, with what boards said at last."""
        for name in list(self._waiting):
            if name in farewells:
                self.answered(name, farewells[name])
            self._write(name)

    def _write(self, name: NodeId, values: Mapping[str, Value] | None = None) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            self._sink.metrics(name, waiting[0], waiting[1] if values is None else values)
