"""The coordinator's messages that have not been answered, and answers that nobody has taken yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message

from edgegossip.flower._private import NodeSeen
from edgegossip.flower.roster import Member, Roster
from edgegossip.types import NodeId


class Link(Protocol):
    """What RunLink offers; tests have another one."""

    def nodes(self) -> list[NodeSeen]: ...
    def push(self, messages: list[Message]) -> list[str]: ...
    def pull(self, message_ids: list[str]) -> list[Message]: ...
    def wait(self, timeout_s: float) -> None: ...
    def forget(self, message_id: str) -> None: ...
    def beat(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that has not been answered."""

    node_id: int
    name: NodeId  # "" for a board that has not said its name
    what: str  # "hello", "bye", or which round it is for
    at_s: float  # by the monotonic clock


class Questions:
    """Of one run, through one link, by Flower's id of the message. A board that answers is not busy any more in the roster."""

    def __init__(self, link: Link, roster: Roster) -> None:
        self._link, self._roster = link, roster
        self.open: dict[str, Sent] = {}
        self._inbox: dict[str, Message] = {}  # answers nobody has taken yet
        self.longest_s = 0.0  # that an answer took

    @property
    def greeted(self) -> set[int]:
        """Boards that were greeted and have not answered."""
        return {sent.node_id for sent in self.open.values() if sent.what == "hello"}

    def waited_for(self, ids: Container[str]) -> set[NodeId]:
        """Boards that have not answered these."""
        return {sent.name for i, sent in self.open.items() if i in ids}

    def send(self, messages: Mapping[int, Message], what: str) -> set[str]:
        """Push a message a board; a board that the SuperLink does not know any more is simply not waited for."""
        ids = self._link.push(list(messages.values()))
        for message_id, node_id in zip(ids, messages, strict=True):
            if message_id:
                member = self._roster.by_id(node_id)
                self.open[message_id] = Sent(node_id, member.name if member else "", what, time.monotonic())
                if member is not None:
                    member.busy = message_id
        return set(filter(None, ids))

    def collect(self) -> Iterator[tuple[Sent, Message]]:
        """Take in what has come; answers to hello and bye, the others are kept for `answers` and `others`."""
        for reply in self._link.pull(list(self.open)) if self.open else ():
            message_id = reply.metadata.reply_to_message_id
            sent = self.open.pop(message_id, None)
            if sent is None:
                continue
            member = self._roster.by_id(sent.node_id)
            if member is not None and member.busy == message_id:
                member.busy, member.overdue = "", 0
            if sent.what in ("hello", "bye"):
                yield sent, reply
                continue
            self._inbox[message_id] = reply
            if not reply.has_error():
                self.longest_s = max(self.longest_s, time.monotonic() - sent.at_s)

    def answers(self, ids: Container[str]) -> dict[NodeId, Message]:
        """Answers to these that have come, by board. Each is handed out once."""
        return {member.name: reply for member, reply in self._taken([i for i in self._inbox if i in ids])}

    def others(self, ids: Container[str]) -> Iterator[tuple[Member, Message]]:
        """Answers to anything but these. Each is handed out once."""
        return self._taken([i for i in self._inbox if i not in ids])

    def _taken(self, ids: list[str]) -> Iterator[tuple[Member, Message]]:
        for message_id in ids:
            reply = self._inbox.pop(message_id)
            member = self._roster.by_id(reply.metadata.src_node_id)
            if member is not None:
                yield member, reply

    def drop(self, message_id: str) -> None:
        """It is not waited for any more."""
        self.open.pop(message_id, None)
        self._link.forget(message_id)

    def drop_of(self, which: Callable[[Sent], bool]) -> None:
        """Likewise, all of these."""
        for message_id in [i for i, sent in self.open.items() if which(sent)]:
            self.drop(message_id)
