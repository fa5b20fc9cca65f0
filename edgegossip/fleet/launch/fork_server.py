"""A fork server: starts the boards of a local run from one process that has loaded what they all
need, so that each is there at once.

A board spends its first three or more seconds on a core loading PyTorch, gRPC and Flower. Eight of
them on a laptop are half a minute. The fork server loads all of it once and forks; it never trains,
opens no connection and has a single thread, which is what makes forking it safe. Boards are handed
to the process that asked for them: they are its children, in sessions of their own, and live on
when the fork server ends.

That takes a subreaper, which some emulators do not have (QEMU 7.2's user mode): there each board is
started for itself and loads for itself, one after the other.

`python -m edgegossip.fleet.launch.fork_server TITLE CHANNEL FORKS FOLDERS MODULE...` is that
process. TITLE is room for a board's command line, which `ps` shows in its place; FORKS says whether
it forks boards, or becomes one; FOLDERS are where its starter imports from. It ends when the
other end of CHANNEL is closed, so it cannot outlive who started it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

from setproctitle import setproctitle, setthreadtitle

from edgegossip.types import HostError

LOAD_S = 300.0  # until the first board runs; a loaded single-board computer needs a while to import PyTorch
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNET = 0x40000000  # Python has os.setns from 3.12 on
_REQUEST_BYTES = 1 << 16
_NO_CHILD = b"0"
_TITLE = "-" * 8192  # for a board's command line, which `ps` is to show in place of ours
_COMMON = ("edgegossip.cli.node", "edgegossip.node.main", "edgegossip.training.workload")
# Run mode -> what a board of it imports before it trains.
MODULES: Mapping[str, Sequence[str]] = {
    "gossip": (*_COMMON, "edgegossip.node.gossip_node", "edgegossip.node.storage", "edgegossip.mesh.transport"),
    "server": (*_COMMON, "edgegossip.node.server_node"),
}
# What a script needs beside: the first optimiser of torch imports it, a second and 120 MB in every
# board.
OF_SCRIPTS = ("torch._dynamo",)


class ForkedProcess:
    """Handles a running child of this process that it did not start itself. May be used from
    several threads.

    `stdin` and `stdout` are our ends of its pipes. Until its status is taken the kernel keeps its
    number, so no signal can reach a stranger.
    """

    def __init__(self, pid: int, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._handle = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, -N when signal N killed it; None while it runs. What it has left
        behind in its session, such as a user's forks, ends with it."""
        with self._lock:
            if self._code is None:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    # Its number is not given to others while its status is not taken.
                    with suppress(ProcessLookupError):
                        os.killpg(self.pid, signal.SIGKILL)
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
                    os.close(self._handle)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status. Raises subprocess.TimeoutExpired after
        `timeout` seconds."""
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
        """Send it a signal; nothing happens once it has ended."""
        with self._lock:
            if self._code is None:
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self.send_signal(signal.SIGKILL)


def _ready(handle: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


class ForkServer:
    """Starts board processes by forking one that has loaded what they need. Use as a context
    manager, or `close` it; boards are not touched by that."""

    def __init__(self, modules: Sequence[str], threads: int, log: Path) -> None:
        """Start it; it loads `modules` while this process goes on. `threads`: each board computes
        with so many. What it itself prints, which is nothing unless it fails, goes to `log`. This
        process becomes the parent of all that its descendants leave behind, if it can. Raises
        HostError."""
        self._modules, self._threads, self._log = modules, threads, log
        self._forks = _become_subreaper()
        log.parent.mkdir(parents=True, exist_ok=True)
        self._server = self._start() if self._forks else None

    def _start(self) -> tuple[ForkedProcess, socket.socket]:
        """Start the process that loads; return it and our end of its channel."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(LOAD_S)
        command = [sys.executable, "-m", "edgegossip.fleet.launch.fork_server", _TITLE, str(theirs.fileno())]
        # A program or a notebook may have added the folder of the modules that it gives its boards.
        folders = json.dumps([os.path.abspath(folder) for folder in sys.path])
        command += [json.dumps(self._forks), folders, *self._modules]
        with theirs, open(os.devnull, "rb") as nothing, self._log.open("ab") as out:
            given = ((nothing, 0), (out, 1), (out, 2), (theirs, theirs.fileno()))
            files = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for file, number in given]
            environment = environment_of(self._threads)
            pid = os.posix_spawn(sys.executable, command, environment, file_actions=files, setsid=True)
        return ForkedProcess(pid), ours

    def spawn(self, arguments: Sequence[str], log: Path, namespace: str = "") -> ForkedProcess:
        """Start a process that runs `edgegossip ARGUMENTS`, with pipes to its standard input and
        output, and the end of `log` for its errors; in this network namespace of iproute2, if one
        is named. Returns when it runs, the first time when the fork server has loaded; where boards
        load by themselves, each time. Raises HostError."""
        log.parent.mkdir(parents=True, exist_ok=True)
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        stdin, stdout = os.fdopen(our_output, "wb"), os.fdopen(our_input, "rb")
        server, answer = None, b""
        try:
            request = json.dumps([namespace, *arguments]).encode()
            if len(request) > _REQUEST_BYTES:
                raise OSError(f"its command line is longer than {_REQUEST_BYTES} bytes")
            server, channel = self._server or self._start()
            done = nullcontext() if self._forks else channel
            with log.open("ab") as errors, done, suppress(ConnectionError):  # it ended
                socket.send_fds(channel, [request], [their_input, their_output, errors.fileno()])
                answer = channel.recv(_REQUEST_BYTES)
            if answer in (b"", _NO_CHILD):
                raise OSError("it could not load what boards need" if not answer else "no room for another process")
            if self._forks:
                return ForkedProcess(int(answer), stdin, stdout)
            server.stdin, server.stdout = stdin, stdout
            return server
        except OSError as error:
            _close(stdin, stdout)
            if server is not None:
                self._await_log(server)
            raise HostError(f"cannot start a board: {error}; see {self._log}") from None
        finally:
            os.close(their_input)
            os.close(their_output)

    def _await_log(self, server: ForkedProcess) -> None:
        """Give one that is ending the time to say why."""
        with suppress(subprocess.TimeoutExpired):
            server.wait(2.0)
        if not self._forks:
            _end_now(server)

    def close(self) -> None:
        """End it. Idempotent."""
        if self._server is not None:
            process, channel = self._server
            channel.close()
            _end_now(process)  # nothing in it is worth waiting for, and it may still be loading

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _end_now(process: ForkedProcess) -> None:
    process.kill()
    process.wait()


def _close(*files: IO[bytes]) -> None:
    for file in files:
        file.close()


def environment_of(threads: int) -> Mapping[str, str]:
    """Return the environment of a board. Each computes with its own threads only; otherwise every
    one of them would take all cores. SPT_NOENV: a process's title does not take the place of its
    environment in /proc."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "EDGEGOSSIP_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1"}


def _become_subreaper() -> bool:
    """Adopt what our descendants leave behind: a process whose parent ends becomes ours if it
    descends from us, so we learn how a board ends. Returns False where that cannot be."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _serve(channel: socket.socket, forks: bool) -> list[str]:
    """Fork whenever asked to, in the fork server. Returns in each board, with its arguments, and
    never in the fork server itself. Unless it `forks`, this process becomes the board."""
    while True:
        request, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 3)
        if not request:
            os._exit(0)  # who started us has gone
        namespace, *arguments = map(str, json.loads(request))
        if not forks:
            channel.send(str(os.getpid()).encode())
        elif not _fork(channel, files):
            continue
        channel.close()
        _become_board(files)
        if namespace:
            _enter_namespace(namespace)
        return arguments


def _fork(channel: socket.socket, files: Sequence[int]) -> bool:
    """Fork a board and tell its number. Returns True in the board."""
    reported, report = os.pipe()
    between = os.fork()  # ends at once, so that the board gets another parent
    if between == 0 and _fork_board(report):
        os.close(reported)
        return True
    os.close(report)
    os.waitpid(between, 0)
    channel.send(os.read(reported, 20) or _NO_CHILD)
    for file in (reported, *files):
        os.close(file)
    return False


def _fork_board(report: int) -> bool:
    """Fork the board and end. Returns True in the board, which tells its number once it has a
    session of its own: what ends the fork server's group must not hit it."""
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        os.write(report, str(os.getpid()).encode())
        os.close(report)
        return True
    except OSError:
        os._exit(1)  # no number: who asked is told that there is no board


def _become_board(files: Sequence[int]) -> None:
    """Give this process the board's standard streams."""
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)


def _enter_namespace(namespace: str) -> None:
    """Live in a network namespace of iproute2 from now on, with every thread that is started
    later."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def _load(modules: Sequence[str]) -> None:
    gc.disable()  # nothing of it is garbage, and looking for that takes a tenth of the time
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded stays: looking at it again and again would copy its pages into every board
    gc.enable()


def main(channel: int, forks: bool, folders: Sequence[str], modules: Sequence[str]) -> None:
    """Be the fork server, and in each process that it forks a board, or itself unless it `forks`:
    `python -m edgegossip`."""
    sys.path[:] = [*(folder for folder in sys.path if folder not in folders), *folders]
    with socket.socket(fileno=channel) as line:
        setproctitle("edgegossip fork-server")
        _load(modules)
        arguments = _serve(line, forks)
    setproctitle(" ".join([sys.executable, "-m", "edgegossip", *arguments]))  # for ps and kill
    setthreadtitle("edgegossip")
    sys.argv = ["edgegossip", *arguments]
    # Registered before a script's own handlers, so it comes after them. To take the interpreter
    # down would write to every page that is shared with the fork server, and so copy it: two
    # seconds.
    code = 0
    atexit.register(lambda: _end(code))
    try:
        runpy.run_module("edgegossip", run_name="__main__")  # python -m edgegossip ARGUMENTS
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5:])
