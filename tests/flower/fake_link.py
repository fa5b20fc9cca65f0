"""A SuperLink without one: boards in this process answer what the coordinator pushes, some late, some badly, some not at all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, Error, Message, RecordDict

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower import protocol
from edgegossip.flower._private import NodeSeen
from edgegossip.flower._private.runtime import ErrorCode
from edgegossip.flower.board import Board
from edgegossip.flower.payload import Channel
from edgegossip.profiling.spans import RoundClock
from edgegossip.training.base import Workload
from edgegossip.types import EdgegossipError, NodeId, Round

Spoil = Callable[[RecordDict], RecordDict]


class NotThere(Exception):
    """Flower's word for a board that has missed its heartbeats."""


@dataclass(slots=True)
class FakeBoard:
    """`late`: rounds whose answer comes only with the next question to anybody; `spoil`: what becomes of an answer; `away`:
    rounds in whose middle it vanishes and from whose end on it is a new process."""

    name: NodeId
    workload: Workload
    codec: Codec[Any]
    downlink: Codec[Any] = field(default_factory=lambda: codecs.get("fp32"))
    unavailable: int = 0  # greetings that Flower answers in its place: it was silent for too long
    absent: int = 0  # looks of the coordinator at its boards before this one is there
    late: frozenset[Round] = frozenset()
    away: frozenset[Round] = frozenset()
    lost: frozenset[Round] = frozenset()  # rounds whose answer never comes although it lives on
    takes_s: float = 0.0  # before the answer of a round is there
    deaf: bool = False  # never answers who wants an evaluation, although it lives on
    ghost: frozenset[Round] = frozenset()  # the same, but the SuperLink takes the old process for alive
    spoil: dict[Round, Spoil] = field(default_factory=dict)
    board: Board | None = None
    trained: list[Round] = field(default_factory=list)
    received_bytes: list[int] = field(default_factory=list)

    def answer(self, message: Message) -> RecordDict:
        if message.metadata.message_type == "query":
            fields = protocol.ask_of(message.content)
            if fields.get("ask") == "bye":
                return RecordDict()
            hello = protocol.Hello.read(fields)
            hello.check(self.workload.layout.hash, self.codec, self.downlink)
            channel = Channel.of(self.workload.layout, hello.run_id, self.codec)
            self.board = Board(self.name, self.workload, channel, self.downlink)
            return protocol.hello_answer(self.name)
        assert self.board is not None
        if message.metadata.message_type == "evaluate":
            return self.board.evaluate(message, RoundClock())
        record = next(iter(message.content.array_records.values()))
        self.received_bytes.append(len(next(iter(record.values())).data))
        content = self.board.train(message, RoundClock())
        self.trained.append(self.board.round)
        return self.spoil.get(self.board.round, lambda c: c)(content)


class FakeLink:
    """See `exchange.Link`. Boards get the ids 10, 11, ...; one that was away comes back as 10 + 100, ..."""

    def __init__(self, boards: list[FakeBoard]) -> None:
        self.boards = boards
        self._ids = {10 + k: board for k, board in enumerate(boards)}
        self._ready: dict[str, Message] = {}
        self._held: list[Message] = []
        self._due_s: dict[str, float] = {}  # answers that take their time
        self._numbers = itertools.count(1)

    def nodes(self) -> list[NodeSeen]:
        there = [NodeSeen(i, 0.0, True) for i, board in self._ids.items() if board.absent <= 0]
        for board in self.boards:
            board.absent -= 1
        return there

    def push(self, messages: list[Message]) -> list[str]:
        if messages and messages[0].metadata.message_type != "query":
            for reply in self._held:
                self._ready[reply.metadata.reply_to_message_id] = reply
            self._held = []
        return [self._send(message) for message in messages]

    def _send(self, message: Message) -> str:
        node_id = message.metadata.dst_node_id
        message_id = f"message-{next(self._numbers)}"
        message.metadata.__dict__["_message_id"] = message_id
        if (board := self._ids.get(node_id)) is None:
            return ""  # the SuperLink does not know it any more
        copied = Message(_own(message.content), dst_node_id=node_id, message_type=message.metadata.message_type)
        copied.metadata.__dict__["_message_id"] = message_id
        try:
            if message.metadata.message_type == "query" and board.unavailable > 0:
                board.unavailable -= 1
                raise NotThere("Node Unavailable")
            reply = Message(board.answer(copied), reply_to=copied)
        except NotThere as error:
            reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, str(error)), reply_to=copied)
        except EdgegossipError as error:
            reply = Message(Error(3, str(error)), reply_to=copied)
        evaluates = message.metadata.message_type != "query" and protocol.ASK in message.content.config_records
        if message.metadata.message_type != "query":
            self._due_s[message_id] = time.monotonic() + board.takes_s
        trained = message.metadata.message_type == "train" and board.board is not None
        round = board.board.round if board.board is not None else -1
        if (trained and round in board.lost) or (board.deaf and evaluates):
            return message_id
        if trained and round in board.away:
            board.away -= {round}
            del self._ids[node_id]
            self._ids[node_id + 100] = board
        elif trained and round in board.ghost:
            board.ghost -= {round}
            self._ids[node_id + 100] = board
        elif trained and round in board.late:
            self._held.append(reply)
        else:
            self._ready[message_id] = reply
        return message_id

    def pull(self, message_ids: list[str]) -> list[Message]:
        now = time.monotonic()
        return [self._ready.pop(i) for i in message_ids if i in self._ready and self._due_s.get(i, 0.0) <= now]

    def wait(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.02))

    def forget(self, message_id: str) -> None:
        self._ready.pop(message_id, None)

    def beat(self) -> bool:
        return True


def _own(content: RecordDict) -> RecordDict:
    """Records of a board's own, as over a network."""
    return RecordDict({k: ArrayRecord(dict(r)) if isinstance(r, ArrayRecord) else r for k, r in content.items()})
