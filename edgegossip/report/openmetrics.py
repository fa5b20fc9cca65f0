"""What boards measure, as Prometheus and whatever else reads its text take it, from a process that
trains (`run --metrics`, `node --metrics`, `coordinator --metrics`).

Seconds, bytes and joules of rounds are counters, summed over the rounds so far; everything else is
a gauge, the last value that was recorded. Names are those of metrics.jsonl with Prometheus' units:
time/compute_s is edgegossip_time_compute_seconds_total. What was never measured is not there.
Labels: run, node. What is not in records.METRICS, such as a workload's own scores, is
edgegossip_value with a label more, `metric`: the name as it was recorded, which no metric of ours
can clash with.

The text is Prometheus' exposition format 0.0.4.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

from typing_extensions import override

from edgegossip.report.web.http import OpenHandler, OpenServer
from edgegossip.telemetry.records import (
    LINK_BYTES,
    LINK_PREFIX,
    LINK_SECONDS,
    METRICS,
    RATE_PREFIX,
    EventRecord,
    Record,
)
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.telemetry.summary import ENDS
from edgegossip.types import HostError, Round
from edgegossip.untrusted import request_target
from edgegossip.version import VERSION

STATES = ("unfinished", "finished", "lost")
FRESH_S = 1.0  # an answer is given again for so long: who asks in a flood gets the same
SHARE = 0.02  # of one core for all who ask, however often: the rest is the training's
MOST_SERIES = 20_000  # at a coordinator boards say what there is; some 60 are usual for each
_UNITS = (("_s", "_seconds"), ("_c", "_celsius"), ("_j", "_joules"), ("_w", "_watts"), ("_hz", "_hertz"))
_RATES = ("bits", "mbit")
_ADDED = frozenset(
    name
    for name in METRICS
    if name.startswith(("time/", "cpu/")) or name == "sys/energy_j" or (name.startswith("net/") and "_bytes" in name)
)
_KIND = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, str, str, float]  # name, counter or gauge, labels, value


def text(samples: Iterable[Sample]) -> str:
    """Return the samples as text, a metric's together."""
    metrics: dict[str, tuple[str, list[str]]] = {}
    for name, kind, labels, value in samples:
        metrics.setdefault(name, (kind, []))[1].append(f"{name}{{{labels}}} {value!r}\n")
    heads = {name: f"# HELP {name} {_HELP[name]}\n# TYPE {name} {kind}\n" for name, (kind, _) in metrics.items()}
    return "".join("".join([heads[name], *lines]) for name, (_, lines) in sorted(metrics.items()))


def labels(**values: str) -> str:
    """Return labels as a sample has them: run="x",node="pi-01"."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def sample(name: str, node: str, value: float) -> Sample:
    """Return the sample of a value by its name in records; `node` has the labels of the node.
    `value` is the sum so far where the name is a counter's."""
    for unit in _RATES:
        if name.startswith(RATE_PREFIX) and name.endswith(f"_{unit}"):
            peer = name.removeprefix(RATE_PREFIX).removesuffix(f"_{unit}")
            return f"edgegossip_rate_{unit}", "gauge", f"{node},{labels(peer=peer)}", value
    if name not in METRICS:
        return "edgegossip_value", "gauge", f"{node},{labels(metric=name)}", value
    if name in _ADDED:
        return f"{metric_name(name)}_total", "counter", node, value
    return metric_name(name), "gauge", node, value


def metric_name(name: str) -> str:
    """Return Prometheus' name of one of records.METRICS: edgegossip_sys_temperature_celsius for
    sys/temperature_c."""
    for short, unit in _UNITS:
        if name.endswith(short):
            name = name.removesuffix(short) + unit
            break
    return f"edgegossip_{name.replace('/', '_')}"


_HELP = {
    "edgegossip_build_info": "The version that serves this.",
    "edgegossip_target_rounds": "Rounds that the run is to do.",
    "edgegossip_rounds": "Rounds that the board has done.",
    "edgegossip_state": "1 for the state that the board is in, 0 for the others.",
    "edgegossip_events_total": "How often it happened, by its name in events.jsonl.",
    "edgegossip_link_bytes_total": "Bytes that the board sent to this peer, frames and what carries them.",
    "edgegossip_link_seconds_total": "Seconds in which something was under way to this peer.",
    "edgegossip_rate_bits": "Bits a value of the last message to this peer.",
    "edgegossip_rate_mbit": "Mbit/s that the link to this peer is taken to carry.",
    "edgegossip_value": "The last value of what has this name in metrics.jsonl.",
    **{metric_name(name): f"The last value of {name} in metrics.jsonl." for name in METRICS if name not in _ADDED},
    **{f"{metric_name(name)}_total": f"The sum of {name} over all rounds so far." for name in _ADDED},
}


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Totals:
    """Adds up the records of a run. Thread-safe.

    Example:
        totals = Totals("20260102-030405-fleet", rounds=250)
        totals.take(MetricsRecord("pi-01", 0, 1.0, {"train/loss": 2.3}))
        print(text(totals.samples()))
    """

    def __init__(self, run: str, rounds: Round) -> None:
        self._run, self._target = labels(run=run), rounds
        self._values: dict[tuple[str, str], float] = {}  # (node, name in records) -> sum or last value
        self._rounds: dict[str, Round] = {}
        self._states: dict[str, str] = {}
        self._events: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def take(self, record: Record) -> None:
        """Take in a record."""
        with self._lock:
            if isinstance(record, EventRecord):
                self._count(record)
                return
            if not self._has_room(self._rounds, record.node):
                return
            self._rounds[record.node] = max(record.step + 1, self._rounds.get(record.node, 0))
            self._states.setdefault(record.node, STATES[0])
            for name in record.values:
                value, key = record.number(name), (record.node, name)
                if value is None or not self._has_room(self._values, key):
                    continue
                if name in _ADDED or _link(name) is not None:
                    value = max(value, 0.0) + self._values.get(key, 0.0)  # a counter that falls has begun anew
                self._values[key] = value

    def _count(self, record: EventRecord) -> None:
        if self._has_room(self._states, record.node):
            self._states[record.node] = ENDS.get(record.name, self._states.get(record.node, STATES[0]))
        if self._has_room(self._events, key := (record.node, record.name)):
            self._events[key] = self._events.get(key, 0) + 1

    def _has_room(self, among: dict[Any, Any], key: object) -> bool:
        return key in among or len(among) < MOST_SERIES

    def samples(self) -> Iterator[Sample]:
        """Yield what is known by now."""
        with self._lock:
            values, rounds = list(self._values.items()), list(self._rounds.items())
            states, events = list(self._states.items()), list(self._events.items())
        yield "edgegossip_build_info", "gauge", labels(version=VERSION), 1.0
        yield "edgegossip_target_rounds", "gauge", self._run, float(self._target)
        for node, done in rounds:
            yield "edgegossip_rounds", "gauge", f"{self._run},{labels(node=node)}", float(done)
        for node, state in states:
            for one in STATES:
                found = f"{self._run},{labels(node=node, state=one)}"
                yield "edgegossip_state", "gauge", found, float(state == one)
        for (node, event), count in events:
            found = f"{self._run},{labels(node=node, event=event)}"
            yield "edgegossip_events_total", "counter", found, float(count)
        for (node, name), value in values:
            own = f"{self._run},{labels(node=node)}"
            if (link := _link(name)) is not None:
                peer, unit = link
                yield f"edgegossip_link_{unit}_total", "counter", f"{own},{labels(peer=peer)}", value
            else:
                yield sample(name, own, value)


def _link(name: str) -> tuple[str, str] | None:
    """Return the peer and the unit of link/<peer>_bytes and link/<peer>_s."""
    for suffix, unit in ((LINK_BYTES, "bytes"), (LINK_SECONDS, "seconds")):
        if name.startswith(LINK_PREFIX) and name.endswith(suffix):
            return name.removeprefix(LINK_PREFIX).removesuffix(suffix), unit
    return None


class Exporter(RecordSink):
    """Serves what comes in at http://HOST:PORT/metrics, for a Tee, until it is closed. Raises
    HostError where nothing can listen there."""

    def __init__(self, run: str, rounds: Round, host: str, port: int) -> None:
        super().__init__()
        self._totals = Totals(run, rounds)
        self._server = _Server(self._totals, host, port)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is read."""
        return f"http://{self._server.address}/metrics"

    @override
    def write(self, record: Record) -> None:
        self._totals.take(record)

    @override
    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(OpenServer):
    def __init__(self, totals: Totals, host: str, port: int) -> None:
        self._totals, self._making = totals, threading.Lock()
        self._made_s, self._made = -math.inf, b""
        try:
            super().__init__(host, port, _Handler, SHARE)
        except HostError as error:
            raise HostError(f"--metrics: {error}; choose another port") from None

    def body(self) -> bytes:
        """Return the text as it was within the last FRESH_S."""
        with self._making:
            if time.monotonic() - self._made_s >= FRESH_S:
                self._made, self._made_s = text(self._totals.samples()).encode("utf-8", "replace"), time.monotonic()
            return self._made

    @override
    def may_ask(self, host: str | None) -> bool:
        """Beyond loopback by whatever name: a network calls its boards as it likes, and whoever can
        connect reads it anyway."""
        return not self.is_on_loopback or super().may_ask(host)


class _Handler(OpenHandler):
    server: _Server

    @override
    def look(self) -> None:
        asked = request_target(self.path)
        if asked is None or asked.path != "/metrics":
            self.send(HTTPStatus.NOT_FOUND, b"/metrics is all that is here\n")
            return
        self.send(HTTPStatus.OK, self.server.body(), _KIND)
