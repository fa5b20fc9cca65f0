"""Messages out, replies in, and meanwhile: who joined, who is gone, who is waited for. The coordinator's side of every wait."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from flwr.app import Message, RecordDict

from edgegossip.flower import protocol
from edgegossip.flower._private import is_away
from edgegossip.flower.downlink import COORDINATOR
from edgegossip.flower.questions import Link, Questions
from edgegossip.flower.quorum import Quorum
from edgegossip.flower.roster import Change, Member, Roster
from edgegossip.profiling.records import Sink
from edgegossip.profiling.watch import Watch
from edgegossip.types import EdgegossipError, NodeId, PeerError, RunError

WATCH_S = 0.5  # between two looks at who is alive
LOOK_S = 0.25  # between two looks for answers, should nobody say that there are any
REGATHER_S = 60.0  # for boards that all went away at once
BEAT_S = 8.0  # between our own signs of life
BYE_S = 3.0  # how long boards may take to say goodbye
# An answer whose round is over is waited for so many deadlines, or times the longest one so far
DEADLINES, LONGEST = 10, 4
MOST_OVERDUE = 6  # from where on that is not doubled again


__all__ = ["COORDINATOR", "Exchange", "Link", "Stopped"]


class Stopped(RunError):
    """The run was told to stop."""


class Exchange:
    """The boards of one run, through one link. Not thread-safe, except for `lose`. `proved`: whose certificate a board (by its
    Flower id) has shown; without it boards are whoever they say. `return_s`: how long boards that fell silent are waited for
    when too few are left without them. `deadline_s`: that of a round. `on_late` gets answers whose round is over."""

    def __init__(
        self,
        link: Link,
        roster: Roster,
        hello: protocol.Hello,
        min_nodes: int,
        sink: Sink,
        stop: threading.Event,
        check: Callable[[], None] = lambda: None,
        proved: Callable[[int], NodeId | None] | None = None,
        return_s: float = 0.0,
        deadline_s: float = math.inf,
    ) -> None:
        self._link, self.roster, self._hello = link, roster, hello
        self._quorum = Quorum(roster, min_nodes, return_s)
        self._sink, self._stop, self._check, self._proved = sink, stop, check, proved
        self._questions = Questions(link, roster)
        self.farewells: dict[NodeId, Message] = {}  # what boards answered to goodbye
        self._told_lost: queue.SimpleQueue[tuple[NodeId, str]] = queue.SimpleQueue()  # from other threads
        self._watched = self._beaten = 0.0
        self._gathering = True
        self._deadline_s = deadline_s
        self._current: set[str] = set()  # questions whose round goes on
        self.on_late: Callable[[NodeId, Message], None] = lambda name, reply: None
        self.round = 0  # that comes next, for boards that join

    @property
    def lost(self) -> dict[NodeId, str]:
        """Boards that are down, and why."""
        return self._quorum.lost

    @property
    def patience_s(self) -> float:
        """For an answer that no round waits for."""
        return max(DEADLINES * self._deadline_s, LONGEST * self._questions.longest_s)

    @property
    def too_short(self) -> str:
        """What is wrong when boards live and do not answer."""
        return f"they hang, or server.deadline_s = {self._deadline_s:g} is too short for them"

    @property
    def no_answer(self) -> str:
        """Why nobody has answered."""
        busy = ", ".join(m.name for m in self.roster.up() if m.busy)
        if not busy:
            return "all boards went away before they had answered"
        return f"nobody answered, although {busy} are alive: {self.too_short}"

    def lose(self, name: NodeId, reason: str) -> None:
        """A board's process is known to be gone. May be called from any thread."""
        self._told_lost.put((name, reason))

    def gather(self, patience_s: float) -> None:
        """Wait until every expected board is there; after `patience_s` go on without those never seen. Raises RunError when
        the others are too few."""
        watch = Watch()
        while missing := [n for n in self.roster.missing() if n not in self.lost]:
            self.tick()
            if watch.s > patience_s:
                for name in missing:
                    self._down(Change(name, up=False, reason=f"it did not join within {patience_s:g} s"))
                break
            if watch.due():
                wanted = len(self.roster.expected)
                there = wanted - len(missing)
                self._say(
                    "waiting", f"waiting {there}/{wanted}: missing {', '.join(missing)}", missing=",".join(missing)
                )
            self._link.wait(LOOK_S)
        self._gathering = False
        self._quorum.check()

    def regather(self) -> None:
        """All boards went away at once, as in a power cut: wait for all of them, for a while, and not only for the first."""
        watch = Watch()
        while self._quorum.absent and watch.s < min(REGATHER_S, self._quorum.return_s):
            self._link.wait(LOOK_S)
            self.tick()

    def idle(self) -> list[Member]:
        """Boards that can take work: at least `min_nodes`, for which stragglers are waited for as any answer is. Raises
        RunError."""
        watch, short = Watch(), False
        while True:
            self.tick()
            self._take_late()
            if len(members := self.roster.idle()) >= self._quorum.least:
                return members
            if self._quorum.short != short:
                short = not short
                watch = Watch()
            busy = ", ".join(m.name for m in self.roster.up() if m.busy)
            if not short and watch.s > self.patience_s:
                words = f"too few boards answer: {busy} have been busy for more than {self.patience_s:g} s"
                raise RunError(f"{words}; {self.too_short}")
            if watch.due():
                names = ", ".join(self._quorum.absent) if short else busy
                words = f"waiting for {names} to {'come back' if short else 'answer'} for {watch.s:.0f} s"
                self._say("waiting", words, missing=names)
            self._link.wait(LOOK_S)

    def free(self, but: Container[NodeId]) -> list[NodeId]:
        """Boards that can take work, without those in `but`. Where there is none now: busy ones are waited for as any answer is,
        absent ones for `return_s`. Raises RunError when too few boards are left."""
        watch = Watch()
        while True:
            self.tick()
            self._take_late()
            up = [m for m in self.roster.up() if m.name not in but]
            if ready := [m.name for m in up if not m.busy]:
                return ready
            names = [m.name for m in up] or [n for n in self._quorum.absent if n not in but]
            if not names or watch.s > (self.patience_s if up else self._quorum.return_s):
                return []
            if watch.due():
                missing = ", ".join(names)
                self._say("waiting", f"waiting for {missing} for {watch.s:.0f} s", missing=missing)
            self._link.wait(LOOK_S)

    def rest(self, seconds: float) -> None:
        """Wait, and be there for boards meanwhile, whoever of them is left. Raises Stopped."""
        watch = Watch()
        while watch.s < seconds:
            self._link.wait(LOOK_S)
            try:
                self.tick()
            except Stopped:
                raise
            except EdgegossipError:
                time.sleep(LOOK_S)  # what is wrong with the boards or with Flower's server can wait

    def ask(
        self, messages: Mapping[NodeId, Message], what: str, deadline_s: float, enough: int = 0
    ) -> dict[NodeId, Message]:
        """Send one message a board, and the answers that came before the deadline from boards that are still alive, or the
        first `enough` of them (0: all). Where nobody has answered by then the first answer is waited for, as any is that no
        round waits for, and the others get one more deadline from then on. Raises RunError."""
        self._current = self._questions.send({self.roster_id(n): m for n, m in messages.items()}, what)
        try:
            return self._answers(self._current, what, deadline_s, enough)
        finally:
            self._current = set()

    def _answers(self, ids: set[str], what: str, deadline_s: float, enough: int) -> dict[NodeId, Message]:
        watch, until_s, late = Watch(), deadline_s, False
        answers: dict[NodeId, Message] = {}
        while True:
            self._take_late(ids)
            answers |= self._questions.answers(ids)
            if late and answers:
                late, until_s = False, round(watch.s + deadline_s, 2)
            waiting = self._questions.waited_for(ids)
            if not waiting:
                return answers
            if enough and len(answers) >= enough:
                names = ", ".join(sorted(waiting))
                self._say("stragglers", f"{what}: went on with {len(answers)} answers, without {names}", missing=names)
                return answers
            if watch.s > until_s and not answers and not late and self.patience_s > until_s:
                late, until_s = True, self.patience_s
                names = ", ".join(sorted(waiting))
                words = f"{what}: nobody has answered for {deadline_s:g} s; waiting for the first answer of {names}"
                self._say("waiting", f"{words}: {self.too_short}", missing=names)
            if watch.s > until_s:
                for name in sorted(waiting):
                    self._say("suspect", f"{what}: went on without {name}: no answer for {until_s:g} s", peer=name)
                return answers
            if watch.due():
                names = ", ".join(sorted(waiting))
                self._say("waiting", f"{what}: waiting for {names} for {watch.s:.0f} s", missing=names)
            self._link.wait(LOOK_S)
            self.tick()

    def dismiss(self, words: str, failed: bool) -> None:
        """Say goodbye to every board and give them a moment to hear it."""
        farewell = {m.node_id: _message(protocol.bye(words, failed), m.node_id) for m in self.roster.up()}
        ids = self._questions.send(farewell, "bye")
        until = time.monotonic() + BYE_S
        while self._questions.waited_for(ids) and time.monotonic() < until:
            self._link.wait(0.05)
            self._collect()  # and do not look who is alive: whoever heard the goodbye leaves

    def roster_id(self, name: NodeId) -> int:
        member = self.roster.by_name(name)
        assert member is not None, name
        return member.node_id

    def tick(self) -> None:
        """Take in what has come; every WATCH_S look who is alive. Raises RunError when the run cannot go on."""
        if self._stop.is_set():
            raise Stopped("the run was stopped")
        self._check()
        now = time.monotonic()
        if now - self._beaten >= BEAT_S:
            self._beaten = now
            self._link.beat()
        if now - self._watched >= WATCH_S:
            self._watched = now
            self._watch()
            self._give_up(now)
        self._collect()
        self._quorum.check(len([n for n in self.roster.missing() if n not in self.lost]) if self._gathering else 0)

    def _collect(self) -> None:
        for sent, reply in self._questions.collect():
            if sent.what == "hello":
                self._greeted(sent.node_id, reply)
            elif sent.name:
                self.farewells[sent.name] = reply

    def _watch(self) -> None:
        changes, strangers = self.roster.observe(self._link.nodes())
        while not self._told_lost.empty():
            name, reason = self._told_lost.get()
            change = self.roster.lose(name, reason)
            if change is not None or self.roster.by_name(name) is None:
                self._down(change or Change(name, up=False, reason=reason))
            self._quorum.down(name, reason, ended=True)
        for change in changes:
            self._down(change) if not change.up else self._back(change.name)
        greeted = self._questions.greeted
        fresh = [i for i in strangers if i not in greeted]
        hello = replace(self._hello, round=self.round)
        self._questions.send({i: _message(hello.content(), i) for i in fresh}, "hello")

    def _give_up(self, now_s: float) -> None:
        """On answers that do not come although their boards are alive: lost on their way, or never made. Those boards are asked
        again; where that happens again and again, after twice the time each time."""
        for member in self.roster.up():
            sent = self._questions.open.get(member.busy)
            if sent is None or member.busy in self._current:
                continue
            patience_s = self.patience_s * 2 ** min(member.overdue, MOST_OVERDUE)
            if now_s - sent.at_s > patience_s:
                self._questions.drop(member.busy)
                member.busy, member.overdue = "", member.overdue + 1
                reason = f"it is alive, and its answer has not come for {patience_s:g} s; it is asked again"
                self._say("refused", f"{sent.what}: gave up on {sent.name}: {reason}", peer=sent.name)

    def _down(self, change: Change) -> None:
        self._quorum.down(change.name, change.reason)
        self._questions.drop_of(lambda sent: sent.name == change.name)
        self._say("peer-down", f"lost {change.name}: {change.reason}", peer=change.name)

    def _back(self, name: NodeId) -> None:
        self._quorum.back(name)
        self._say("peer-up", f"{name} is back", peer=name)

    def _take_late(self, ids: Container[str] = ()) -> None:
        """Answers to other questions than these came after their round was over."""
        for member, reply in self._questions.others(ids):
            self._say("late", f"the answer of {member.name} came after its round was over", peer=member.name)
            self.on_late(member.name, reply)

    def _greeted(self, node_id: int, reply: Message) -> None:
        if is_away(reply):
            return  # it was so busy getting ready that it was taken for gone: it is greeted again when it beats
        try:
            name, problem = self._who(node_id, reply)
            if problem:
                self.roster.refuse(node_id)
                if self._gathering and name in self.roster.missing():
                    self._down(Change(name, up=False, reason=problem))
                self._say("refused", f"{name} cannot take part: {problem}", peer=name)
                return
            replaced = self.roster.admit(node_id, name)
        except PeerError as error:
            self.roster.refuse(node_id)
            self._say("refused", f"refused a board: {error}")
            self._questions.send({node_id: _message(protocol.bye(str(error), failed=True), node_id)}, "bye")
            return
        if replaced is not None:
            self._questions.drop_of(lambda sent: sent.node_id == replaced)  # nobody is left to answer
            words = f"another board has joined as {name}"
            self._questions.send({replaced: _message(protocol.bye(words, failed=True), replaced)}, "bye")
        self._quorum.back(name)
        self._say("joined", f"{name} joined", peer=name)

    def _who(self, node_id: int, reply: Message) -> tuple[NodeId, str]:
        """The name of a board that was greeted, and why it cannot take part. Raises PeerError."""
        if reply.has_error():
            raise PeerError(f"it does not speak edgegossip: {protocol.printable(reply.error.reason or '')}")
        name, problem = protocol.read_hello_answer(reply.content)
        if self._proved is not None and (real := self._proved(node_id)) != name:
            raise PeerError(f"it says that it is {name}, but its certificate is that of {real or 'nobody any more'}")
        return name, problem

    def _say(self, name: str, text: str, **fields: str) -> None:
        self._sink.event(COORDINATOR, name, text, **fields)


def _message(content: RecordDict, node_id: int) -> Message:
    return Message(content, dst_node_id=node_id, message_type="query")
