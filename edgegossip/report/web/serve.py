"""The page while a run goes on: `edgegossip top --web`. It serves two things, the page and what
came new of a run's records, to whoever may connect: only this machine unless told otherwise. There
are no writing requests, and nothing in a request names a file.

A page of another site that a user has open could make its name point here (DNS rebinding) and read
the run; so requests that ask for another host than this one are refused.

/metrics has what the boards measured for Prometheus, in its text exposition format 0.0.4. Seconds,
bytes and joules of rounds are counters, summed over the rounds so far; everything else is a gauge,
the last value that was recorded. Names are those of metrics.jsonl with Prometheus' units:
time/compute_s is edgegossip_time_compute_seconds_total. What was never measured is not there.
Labels: run, node. Names that are not in records.METRICS, such as a workload's own, have a label
more, `metric`, with the name as it was recorded: several may become one here ("top/1_a",
"top_1/a").
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np

from edgegossip.report.web.page import page
from edgegossip.report.web.view import PageState, RunView, Table, names_of
from edgegossip.security.https import MemberHandler, MemberServer
from edgegossip.telemetry.records import METRICS, RATE_PREFIX
from edgegossip.types import DataError, HostError
from edgegossip.untrusted import request_target

PORT = 8765  # where `top --web` listens when it is free
REFRESH_S = 5.0  # the documents beside the records are read again after so long
REQUEST_S = 30.0  # a client has so long to say what it wants, and to take it
_NOTHING = PageState(generation=-1)
_DATA = re.compile(r"/data/(\d{1,3})\Z")


class LiveRuns:
    """Reads run folders that may still be written. Thread-safe."""

    def __init__(self, folders: Sequence[Path], *, together: bool = False) -> None:
        """`together`: the folders are of boards of one run. Raises DataError."""
        self._lock = threading.Lock()
        self._views = [RunView(*folders)] if together else [RunView(folder) for folder in folders]
        self._refreshed_s = [time.monotonic()] * len(self._views)
        for view in self._views:
            view.read()

    def page(self) -> bytes:
        """Return the page, without data: its script asks for them."""
        with self._lock:
            return page(self._views, live=True).encode()

    def data(self, k: int, known: PageState) -> bytes | None:
        """Return what is new of run k, for a page that knows this much; None when that is
        nothing. Raises IndexError when there is no such run."""
        with self._lock:
            view = self._views[k]
            self._look(k)
            return view.new(known)

    def metrics(self) -> bytes:
        """Return all runs as Prometheus reads them."""
        with self._lock:
            for k in range(len(self._views)):
                self._look(k)
            return exposition(self._views).encode()

    def _look(self, k: int) -> None:
        """At one run only: another one's folder may be gone. Raises DataError, OSError."""
        if time.monotonic() - self._refreshed_s[k] >= REFRESH_S:
            self._views[k].refresh()
            self._refreshed_s[k] = time.monotonic()
        self._views[k].read()


class Server(MemberServer):
    """Listens at `host`:`port`, without TLS; port 0 takes a free one. Connections have the places
    and the times of every server of ours. Raises HostError."""

    def __init__(self, runs: LiveRuns, host: str, port: int) -> None:
        self.runs, self.host = runs, host
        try:
            super().__init__(host, port, _Handler, None, REQUEST_S)
        except HostError as error:
            raise HostError(f"{error}; choose another --port") from None

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.server_address[1]}/"

    def may_ask(self, host: str | None) -> bool:
        """Tell whether a Host header names this server: by an address, as localhost, by the name it
        was given or the machine's own."""
        if host is None:
            return False
        asked = request_target(f"//{host}")
        name = (asked.hostname if asked else None) or ""
        if name in ("localhost", self.host.lower(), *self._own_names()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _own_names(self) -> list[str]:
        """The machine's own, and on its network the one that mDNS gives it: a Pi is
        raspberrypi.local to everybody. Not on loopback, where nobody comes by that name and another
        machine of the network could claim it."""
        name = socket.gethostname().lower()
        label = name.partition(".")[0]
        reached = not ipaddress.ip_address(str(self.server_address[0])).is_loopback
        return [name, f"{label}.local"] if reached and label not in ("", "localhost") else [name]


class _Handler(MemberHandler):
    server: Server
    server_version, sys_version = "edgegossip", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self.server.may_ask(self.headers.get("Host")):
            self._answer(HTTPStatus.FORBIDDEN, b"this server is not the host that was asked for\n")
            return
        asked, runs = request_target(self.path), self.server.runs
        try:
            if asked is None:
                self._answer(HTTPStatus.BAD_REQUEST, b"this is no address\n")
            elif asked.path == "/":
                self._answer(HTTPStatus.OK, runs.page(), "text/html; charset=utf-8")
            elif asked.path == "/metrics":
                self._answer(HTTPStatus.OK, runs.metrics(), CONTENT_TYPE)
            elif match := _DATA.match(asked.path):
                data = runs.data(int(match[1]), _known(asked.query))
                self._answer(HTTPStatus.OK if data else HTTPStatus.NO_CONTENT, data or b"", "application/octet-stream")
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"not found\n")
        except IndexError:
            self._answer(HTTPStatus.NOT_FOUND, b"no such run\n")
        except (DataError, FileNotFoundError) as error:  # the folder is gone, say
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _known(query: str) -> PageState:
    """What a page knows already. Nothing when the query does not say so in the right form."""
    try:
        fields = {name: values[0] for name, values in parse_qs(query, max_num_fields=8).items()}
        numbers = [int(n) for n in fields["rows"].split(",")] if "rows" in fields else []
        known = PageState(int(fields["generation"]), numbers, int(fields["events"]), int(fields["span"]))
    except (KeyError, ValueError):
        return _NOTHING
    return known if min([0, known.events, known.span + 1, *numbers]) == 0 else _NOTHING


def listen(runs: LiveRuns, host: str, port: int | None) -> Server:
    """Listen at the port that was asked for; without one at PORT, or at any free one when that is
    taken. Raises HostError."""
    if port is not None:
        return Server(runs, host, port)
    try:
        return Server(runs, host, PORT)
    except HostError:
        return Server(runs, host, 0)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_UNITS = (("_s", "_seconds"), ("_c", "_celsius"), ("_j", "_joules"), ("_w", "_watts"), ("_hz", "_hertz"))
_STATES = ("unfinished", "finished", "lost")

Sample = tuple[str, str, str, float]  # name, type, labels, value


def exposition(views: Sequence[RunView]) -> str:
    """Return all samples of these runs, a metric's together."""
    metrics: dict[str, tuple[str, list[str]]] = {}
    named = zip(names_of(views), views, strict=True)
    for name, kind, labels, value in (sample for run, view in named for sample in _samples(run, view)):
        known, lines = metrics.setdefault(name, (kind, []))
        if known != kind:
            metrics[name] = ("untyped", lines)
        lines.append(f"{name}{{{labels}}} {value!r}")
    return "".join(
        f"# TYPE {name} {kind}\n" + "".join(line + "\n" for line in lines)
        for name, (kind, lines) in sorted(metrics.items())
    )


def _samples(name: str, view: RunView) -> Iterator[Sample]:
    run = f'run="{_escaped(name)}"'
    for board in view.summary()["boards"]:
        labels = f'{run},node="{_escaped(board["node"])}"'
        yield "edgegossip_rounds", "gauge", labels, float(board["rounds"])
        if board["energy_rounds"]:  # of so many rounds edgegossip_sys_energy_joules_total is
            yield "edgegossip_energy_rounds", "gauge", labels, float(board["energy_rounds"])
        for state in _STATES:
            yield "edgegossip_state", "gauge", f'{labels},state="{state}"', float(board["state"] == state)
    for node, table in view.tables.nodes.items():
        yield from _of(table, f'{run},node="{_escaped(node)}"')
    for sender, receiver, size_bytes, seconds in view.links():
        labels = f'{run},node="{_escaped(sender)}",peer="{_escaped(receiver)}"'
        yield "edgegossip_link_bytes_total", "counter", labels, float(size_bytes)
        yield "edgegossip_link_seconds_total", "counter", labels, seconds


def _of(table: Table, node: str) -> Iterator[Sample]:
    for name, column in table.columns.items():
        labels = node if name in METRICS else f'{node},metric="{_escaped(name)}"'
        values = np.asarray(column)
        known = values[np.isfinite(values)]
        if name == "t_s" or not known.size:
            continue
        if (
            name.startswith(("time/", "cpu/"))
            or name == "sys/energy_j"
            or (name.startswith("net/") and name.endswith("_bytes"))
        ):
            yield f"{metric_name(name)}_total", "counter", labels, float(known.sum())
        elif name.startswith(RATE_PREFIX):
            peer, _, unit = name.removeprefix(RATE_PREFIX).rpartition("_")
            yield f"edgegossip_rate_{unit}", "gauge", f'{node},peer="{_escaped(peer)}"', float(known[-1])
        else:
            yield metric_name(name), "gauge", labels, float(known[-1])


def metric_name(name: str) -> str:
    """Return Prometheus' name: edgegossip_sys_temperature_celsius for sys/temperature_c."""
    for short, unit in _UNITS:
        if name.endswith(short):
            name = name.removesuffix(short) + unit
            break
    return "edgegossip_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
