"""Watches the boards of a local run until each has ended, and says at once when one is lost."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgegossip.launch.child import Child, News, Said
from edgegossip.profiling.sinks import RecordSink
from edgegossip.types import NodeId

SILENT_S = 10.0  # a board that says nothing for so long is named, and again after as much


@dataclass(slots=True)
class Watch:
    """The boards of one run, and what became of them."""

    children: Sequence[Child]
    news: queue.Queue[News]
    sink: RecordSink
    lost: dict[NodeId, str] = field(default_factory=dict)  # board -> why

    def next(self, timeout_s: float) -> News | None:
        """Take in one piece of news: relay it to the sink, and name a board that is lost."""
        try:
            news = self.news.get(timeout=timeout_s)
        except queue.Empty:
            return None
        child = self.child(news.node)
        child.notice(news)
        if isinstance(news, Said):
            self.sink.write(news.record)
        elif not (child.finished and news.code == 0) and child.name not in self.lost:
            self._lose(child, child.why())
        return news

    def child(self, name: NodeId) -> Child:
        return next(c for c in self.children if c.name == name)

    def running(self) -> list[Child]:
        return [c for c in self.children if c.code is None]

    def until_ended(self, patience_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Until every board has ended. Once at least one has finished, a board that stays silent for `patience_s` is
        killed and named: a stopped process would hold the run for ever. `check` is called about ten times a second."""
        named_at: dict[NodeId, float] = {}
        while self.running():
            self.next(0.1)
            check()
            for child in self.running():
                silent_s = time.monotonic() - max(child.heard_s, named_at.get(child.name, 0.0))
                if silent_s > SILENT_S:
                    named_at[child.name] = time.monotonic()
                    silence = time.monotonic() - child.heard_s
                    self.sink.event(child.name, "silent", f"{child.name} has said nothing for {silence:.0f} s")
                if time.monotonic() - child.heard_s > patience_s and any(c.finished for c in self.children):
                    self._lose(child, f"it said nothing for {patience_s:.0f} s while others finished, and was ended")
                    child.process.kill()
                    child.heard_s = time.monotonic()
        while not self.news.empty():
            self.next(0.0)

    def _lose(self, child: Child, why: str) -> None:
        self.lost[child.name] = why
        self.sink.event(child.name, "lost", f"lost {child.name}: {why}")
