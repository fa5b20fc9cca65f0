"""The page while a run goes on: `edgegossip top --web`. It serves two things, the page and what
came new of a run's records, to whoever may connect: only this machine unless told otherwise
(edgegossip.report.web.http).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from edgegossip.report.web.http import OpenHandler, OpenServer
from edgegossip.report.web.page import page
from edgegossip.report.web.view import PageState, RunView
from edgegossip.types import DataError, HostError
from edgegossip.untrusted import request_target

PORT = 8765  # where `top --web` listens when it is free
REFRESH_S = 5.0  # the documents beside the records are read again after so long
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

    def _look(self, k: int) -> None:
        """At one run only: another one's folder may be gone. Raises DataError, OSError."""
        if time.monotonic() - self._refreshed_s[k] >= REFRESH_S:
            self._views[k].refresh()
            self._refreshed_s[k] = time.monotonic()
        self._views[k].read()


class PageServer(OpenServer):
    """Serves the runs' page at `host`:`port`. Raises HostError."""

    def __init__(self, runs: LiveRuns, host: str, port: int) -> None:
        self.runs = runs
        try:
            super().__init__(host, port, _Handler)
        except HostError as error:
            raise HostError(f"{error}; choose another --port") from None


class _Handler(OpenHandler):
    server: PageServer

    def look(self) -> None:
        asked, runs = request_target(self.path), self.server.runs
        try:
            if asked is None:
                self.send(HTTPStatus.BAD_REQUEST, b"this is no address\n")
            elif asked.path == "/":
                self.send(HTTPStatus.OK, runs.page(), "text/html; charset=utf-8")
            elif match := _DATA.match(asked.path):
                data = runs.data(int(match[1]), _known(asked.query))
                self.send(HTTPStatus.OK if data else HTTPStatus.NO_CONTENT, data or b"", "application/octet-stream")
            else:
                self.send(HTTPStatus.NOT_FOUND, b"not found\n")
        except IndexError:
            self.send(HTTPStatus.NOT_FOUND, b"no such run\n")
        except (DataError, FileNotFoundError) as error:  # the folder is gone, say
            self.send(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())


def _known(query: str) -> PageState:
    """What a page knows already. Nothing when the query does not say so in the right form."""
    try:
        fields = {name: values[0] for name, values in parse_qs(query, max_num_fields=8).items()}
        numbers = [int(n) for n in fields["rows"].split(",")] if "rows" in fields else []
        known = PageState(int(fields["generation"]), numbers, int(fields["events"]), int(fields["span"]))
    except (KeyError, ValueError):
        return _NOTHING
    return known if min([0, known.events, known.span + 1, *numbers]) == 0 else _NOTHING


def listen(runs: LiveRuns, host: str, port: int | None) -> PageServer:
    """Listen at the port that was asked for; without one at PORT, or at any free one when that is
    taken. Raises HostError."""
    if port is not None:
        return PageServer(runs, host, port)
    try:
        return PageServer(runs, host, PORT)
    except HostError:
        return PageServer(runs, host, 0)
