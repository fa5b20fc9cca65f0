"""A child process by its number, for one that another process forked and that has been handed to
us."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from contextlib import suppress
from typing import IO, Protocol


class Process(Protocol):
    """What a board's watcher needs of its process; `subprocess.Popen` has all of it."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Adopted:
    """A running child of this process that it did not start itself. May be used from several
    threads.

    `stdin` and `stdout` are our ends of its pipes. Until its status is taken the kernel keeps its
    number, so no signal can reach a stranger.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._handle = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit status, -N when signal N killed it; None while it runs. What it has left behind
        in its session, such as a user's forks, ends with it."""
        with self._lock:
            if self._code is None:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    with suppress(
                        ProcessLookupError
                    ):  # its number is not given to others while its status is not taken
                        os.killpg(self.pid, signal.SIGKILL)
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
                    os.close(self._handle)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit status. Raises subprocess.TimeoutExpired after `timeout`
        seconds."""
        with self._lock:  # nobody takes the status, and closes the handle, while we copy it
            handle = os.dup(self._handle) if self._code is None else None
        if handle is not None:
            try:
                if not _ready(handle, timeout):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            finally:
                os.close(handle)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Does nothing once it has ended."""
        with self._lock:
            if self._code is None:
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ready(handle: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))
