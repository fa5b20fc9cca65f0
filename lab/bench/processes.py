"""Processes of a benchmark: ended by the kernel when their parent ends, measured with all that they
start, and gone in the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

SAMPLE_S = 0.3  # between two looks at memory
_PATIENCE_S = 3.0  # with processes that are to end
_PR_SET_PDEATHSIG = 1


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> psutil.Popen:
    """Start a child in a session of its own, whose output goes to `log`; the kernel ends it when
    this thread ends."""
    with log.open("ab") as out:
        return psutil.Popen(
            [sys.executable, "-m", "lab.bench.processes", str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def stop(roots: Sequence[psutil.Popen]) -> None:
    """End these processes and all that they started."""
    everyone = [p for root in roots for p in family(root)]
    for process in everyone:
        _signal(process, signal.SIGINT)
    _, alive = psutil.wait_procs(everyone, timeout=_PATIENCE_S)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=_PATIENCE_S)


def family(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all below it; empty when it has ended."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(roots: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds so far of these processes and all below them, those that have ended
    included."""
    return sum(_cpu_s(p) for root in roots for p in family(root))


class PeakMemory:
    """Measures the largest resident size of each process with all below it, looked at every
    SAMPLE_S. A context manager."""

    def __init__(self, roots: Sequence[psutil.Process]) -> None:
        self._roots = list(roots)
        self._peaks = [0] * len(self._roots)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="memory")

    def bytes(self) -> int:
        """Return the largest of them."""
        return max(self._peaks, default=0)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for k, root in enumerate(self._roots):
                self._peaks[k] = max(self._peaks[k], sum(_rss_bytes(p) for p in family(root)))


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0  # its parent has it now
    return float(times.user + times.system + times.children_user + times.children_system)


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _signal(process: psutil.Process, signum: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signum)


def _run_until_parent_ends(parent_pid: int, command: Sequence[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit("the benchmark ended before its child was up")
    os.execv(command[0], list(command))


if __name__ == "__main__":
    _run_until_parent_ends(int(sys.argv[1]), sys.argv[2:])
