"""Watches the boards of a local run until each has ended, and says at once when one is lost, or is
started again."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from edgegossip.fleet.launch.child import Child, Ended, News, Said, stop_all
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import NodeId

SILENT_S = 10.0  # a board without a sign of life for so long is named, and again after as much
STUCK_S = 60.0  # and is ended after this, once no board is left that it could still be useful to


@dataclass(slots=True)
class Watch:
    """The boards of one run, and what became of them."""

    children: list[Child]  # each board's present process
    news: queue.Queue[News]
    sink: RecordSink
    lost: dict[NodeId, str] = field(default_factory=dict)  # board -> why
    start_again: Callable[[NodeId], Child] | None = None  # None: a board that dies is lost
    has_checkpoint: Callable[[NodeId], bool] = lambda name: False
    restarts: int = 0  # how often one board may be started again
    began_s: float = field(default_factory=time.monotonic)
    hanging_s: float = STUCK_S  # what the training of a board gets at least once others have finished
    finished_s: float | None = None  # when the last of the boards did that have finished

    def next(self, timeout_s: float) -> News | None:
        """Take in one piece of news: relay it to the sink, and name a board that is lost."""
        try:
            news = self.news.get(timeout=timeout_s)
        except queue.Empty:
            return None
        child = self.child(news.node)
        had_finished = child.finished
        child.notice(news)
        if child.finished and not had_finished:
            self.finished_s = time.monotonic()
        if isinstance(news, Said):
            self.sink.write(news.record)
        elif isinstance(news, Ended):
            self._ended(child)
        return news

    def child(self, name: NodeId) -> Child:
        return next(c for c in self.children if c.name == name)

    def running(self) -> list[Child]:
        return [c for c in self.children if c.code is None]

    def until_ended(self, patience_s: float = STUCK_S) -> None:
        """Until every board has ended. A board that gives no sign of life is named. Once one has
        finished, or when none gives any, a board that stays silent for `patience_s` is killed: a
        stopped process would hold the run for ever. So is one whose process lives and whose
        training hangs."""
        named_s: dict[NodeId, float] = {}
        while self.running():
            self.next(0.1)
            self._name_silent(named_s)
            self._end_stuck(patience_s)
            self._end_hanging()
        self.drain(0.0)

    def drain(self, patience_s: float = 0.5) -> None:
        """Take in what boards that are ending still have to say."""
        while self.next(patience_s) is not None:
            pass

    def _name_silent(self, named_s: dict[NodeId, float]) -> None:
        now_s = time.monotonic()
        for child in self.running():
            if now_s - max(child.heard_s, named_s.get(child.name, 0.0)) > SILENT_S:
                named_s[child.name] = now_s
                text = f"{child.name} has given no sign of life for {now_s - child.heard_s:.0f} s"
                self.sink.event(child.name, "silent", text)

    def _end_stuck(self, patience_s: float) -> None:
        now_s = time.monotonic()
        running = self.running()
        stuck = [c for c in running if now_s - c.heard_s > patience_s]
        if len(stuck) < len(running) and not any(c.finished for c in self.children):
            return
        for child in stuck:
            if child.name not in self.lost and not child.finished:
                self._lose(child, f"it gave no sign of life for {patience_s:.0f} s, and was ended")
            child.process.kill()

    def _end_hanging(self) -> None:
        """End a board that has done no round since another finished, for as long as that one took
        for all of its rounds."""
        if self.finished_s is None:
            return
        patience_s = max(self.hanging_s, self.finished_s - self.began_s)
        for child in self.running():
            idle_s = time.monotonic() - max(child.round_s, self.finished_s)
            if idle_s > patience_s and not child.finished and child.name not in self.lost:
                self._lose(child, f"others have finished, and it did no round for {idle_s:.0f} s: it was ended")
                child.process.kill()

    def _ended(self, child: Child) -> None:
        if child.finished:  # its model is saved: how its process went does not matter any more
            for other in self.running():  # one that starts again would wait for it
                if other.starts > 1 and not other.joined:
                    other.part_with(child.name, f"{child.name} has finished")
        elif child.name not in self.lost and not self._restart(child):
            self._lose(child, child.why())

    def _restart(self, child: Child) -> bool:
        """Start a board again whose process died. Not one that said what is wrong: it would say so
        again. Not when nobody is left who could bring it up to date, unless it has a checkpoint to
        go on from."""
        at_work = [c for c in self.running() if not c.finished]
        if (
            self.start_again is None
            or child.starts > self.restarts
            or child.last_error
            or child.finished
            or not (at_work or self.has_checkpoint(child.name))
        ):
            return False
        text = f"{child.name} is started again, restart {child.starts} of {self.restarts}: {child.why()}"
        self.sink.event(child.name, "restarted", text, restart=child.starts)
        stop_all([child])  # takes down its pipes
        again = self.start_again(child.name)
        again.starts = child.starts + 1
        for other in self.children:
            if other.name in self.lost:
                again.part_with(other.name, self.lost[other.name])
            elif other.code is not None and other is not child:
                again.part_with(other.name, f"{other.name} has finished")
        self.children[self.children.index(child)] = again
        return True

    def _lose(self, child: Child, why: str) -> None:
        self.lost[child.name] = why
        self.sink.event(child.name, "lost", f"lost {child.name}: {why}")
        for other in self.running():
            if other is not child:
                other.part_with(child.name, why)
