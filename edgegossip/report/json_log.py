"""Records as lines of JSON on standard error, for journald, Loki and other collectors of logs: what
`--log json` prints in place of the display.

    {"time": "2026-01-02T03:04:05.678Z", "level": "info", "run": "20260102-030405-fleet",
     "node": "pi-01", "event": "started", "text": "pi-01 started", ...}

Every event is a line, with its fields; what people should look at has the level "warning". Of a
board's rounds one is a line every ROUND_EVERY_S, as event "round" with all that was measured in
it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from typing_extensions import override

from edgegossip.report.progress import ALARMS
from edgegossip.telemetry.records import MetricsRecord, Record, plain
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import NodeId

ROUND_EVERY_S = 2.0
_WARNINGS = ALARMS | {"error"}


class JsonLog(RecordSink):
    """Prints the records of the run of this name. `now` is the time of day."""

    what = "the log"

    def __init__(self, run: str, stream: TextIO, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._run, self._stream, self._now = run, stream, now
        self._next_s: dict[NodeId, float] = {}  # when a board's next round is a line

    @override
    def write(self, record: Record) -> None:
        now_s = self._now()
        if isinstance(record, MetricsRecord):
            if now_s < self._next_s.get(record.node, now_s):
                return
            self._next_s[record.node] = now_s + ROUND_EVERY_S
            own: dict[str, Any] = {"event": "round", "text": f"{record.node} has done round {record.step + 1}"}
            fields = {"step": record.step, **record.values}
        else:
            own, fields = {"event": record.name, "text": record.text}, dict(record.fields)
        head = {
            "time": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": "warning" if own["event"] in _WARNINGS else "info",
            "run": self._run,
            "node": record.node,
            **own,
        }
        line = head | {name: plain(value) for name, value in fields.items() if name not in head}
        print(json.dumps(line), file=self._stream, flush=True)

    @override
    def close(self) -> None:
        """Nothing is buffered, so there is nothing to do."""
