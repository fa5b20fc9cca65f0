"""Flower's SuperLink as a child process that cannot outlive us: launched, ready a while later, and
gone when `stop` returns.

`python -m edgegossip.flower.superlink PARENT_PID ARGS...` is that child. It asks the kernel for
SIGKILL at the death of its parent before it becomes `flower-superlink ARGS...`, in a session of its
own so that Ctrl-C at the terminal reaches only us.
"""

from __future__ import annotations

import ctypes
import gc
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from edgegossip.flower.admission import ADMISSION_VARIABLE, OBJECTS_VARIABLE, token_of
from edgegossip.flower.connection import ServerCredentials
from edgegossip.types import ConfigError, HostError, RunError

READY_S = 180.0  # a loaded single-board computer needs a while to import Flower
_PR_SET_PDEATHSIG = 1
# Bodies of 5 MiB come and go with every request. glibc gives each to the kernel and back; page
# faults cost a fifth of a round. And it has eight heaps a core for the threads that requests are
# worked on in, each of which keeps what it needed once: 100 MiB more with eight boards.
_REUSE_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(128 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_ARENA_MAX": "2",
}
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class SuperLink:
    """Holds a SuperLink that `launch` has started; it can be used when `await_ready` has
    returned."""

    address: str  # host:port that boards and this process connect to
    secret: bytes  # only who knows it may act as the server of a run
    log: Path
    process: subprocess.Popen[bytes]
    home: Path
    line: socket.socket  # to the admission middleware before it
    context: ssl.SSLContext | None  # for requests of our own; None: without TLS

    @property
    def token(self) -> str:
        """The token, which shows the admission middleware that a request is ours."""
        return token_of(self.secret)

    def await_ready(self) -> None:
        """Wait until it answers. Raises RunError when it does not come up within READY_S; then
        `stop` it."""
        if not answers(self.address, self.check, self.context):
            raise RunError(f"Flower's SuperLink does not answer on {self.address} after {READY_S:g} s; see {self.log}")

    def check(self) -> None:
        """Raise RunError when it has ended."""
        code = self.process.poll()
        if code is not None:
            raise RunError(f"Flower's SuperLink ended with status {code}; its last words are in {self.log}")

    def stop(self, patience_s: float = 3.0) -> None:
        """End it and all that it started, gently first; remove its temporary folder. Idempotent."""
        for signum, wait_s in ((signal.SIGINT, patience_s), (signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
            if self.process.poll() is not None:
                break
            _signal_group(self.process.pid, signum)
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
        _signal_group(self.process.pid, signal.SIGKILL)
        self.line.close()
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.log.parent / "objects", ignore_errors=True)


def launch(
    host: str, port: int, log: Path, insecure: bool = False, credentials: ServerCredentials | None = None
) -> SuperLink:
    """Launch a SuperLink on host:port (0: any free one). With `credentials` over TLS, and for
    boards whose key is registered only. Call it from a thread that lives as long as it: the kernel
    ends the SuperLink when that thread ends.

    Loading Flower takes it seconds, so launch it first, do what else there is to do, and then
    `await_ready`. Raises ConfigError on a host that others can reach without `credentials` or
    `insecure`, HostError when the port is taken.
    """
    _check_exposure(host, insecure or credentials is not None)
    port = free_port(host, port)
    home = Path(tempfile.mkdtemp(prefix="edgegossip-flower-"))
    secret = secrets.token_bytes(32)
    (home / "secret").touch(0o600)
    (home / "secret").write_bytes(secret)
    arguments = [*_security(credentials), "--host", host, "--port", str(port), "--isolation", "process"]
    arguments += ["--superexec-auth-secret-file", str(home / "secret"), "--disable-runtime-dependency-installation"]
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = _spawn(arguments, home, log, theirs.fileno(), credentials is not None)
    except OSError as error:
        ours.close()
        shutil.rmtree(home, ignore_errors=True)
        raise HostError(f"cannot start Flower's SuperLink: {error}") from None
    context = None if credentials is None else credentials.context
    return SuperLink(f"{_reachable(host)}:{port}", secret, log, process, home, ours, context)


def _security(credentials: ServerCredentials | None) -> list[str]:
    if credentials is None:
        return ["--insecure"]
    files = ("--ssl-certfile", str(credentials.certificate), "--ssl-keyfile", str(credentials.key))
    return [*files, "--ssl-ca-certfile", str(credentials.authority), "--enable-supernode-auth"]


def _spawn(arguments: list[str], home: Path, log: Path, line: int, secure: bool) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    objects = log.parent / "objects"  # on the disk of the run folder; many a /tmp is memory
    shutil.rmtree(objects, ignore_errors=True)  # of a process that was killed
    settings = {
        "FLWR_HOME": str(home),
        OBJECTS_VARIABLE: str(objects),
        ADMISSION_VARIABLE: f"{line},{int(secure)},{home / 'secret'}",
    }
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "edgegossip.flower.superlink", str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**_REUSE_MEMORY, **os.environ, **QUIET, **settings},
            start_new_session=True,
            pass_fds=[line],
        )


def free_port(host: str, port: int) -> int:
    """Return `port` when it can be bound on `host`, any free one when it is 0. Raises HostError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise HostError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port with network.port, or 0 for any"
            ) from None
        return int(probe.getsockname()[1])


def _check_exposure(host: str, insecure: bool) -> None:
    if not insecure and host not in ("localhost", "::1") and not host.startswith("127."):
        raise ConfigError(
            f"network.host = {host!r} lets everybody on that network join without a key or encryption; "
            "use 127.0.0.1, give the coordinator credentials, or say explicitly that an insecure one is wanted"
        )


def _reachable(host: str) -> str:
    """Return where this machine itself reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def answers(address: str, check: Callable[[], None], context: ssl.SSLContext | None = None) -> bool:
    """Return whether a SuperLink is up at host:port within READY_S; `check` is called before every
    try and may raise. `context`: for TLS."""
    deadline = time.monotonic() + READY_S
    scheme = "http" if context is None else "https"
    with httpx.Client(trust_env=False, timeout=2.0, verify=context or False) as client:
        while time.monotonic() < deadline:
            check()
            try:
                if client.get(f"{scheme}://{address}/health").is_success:
                    return True
            except httpx.TransportError:
                pass  # not up yet
            time.sleep(0.05)
    return False


def _signal_group(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)  # the child leads a session, so its pid is also its group's id


def _become_superlink(parent_pid: int, arguments: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit("the coordinator died before its SuperLink was up")
    sys.argv = ["flower-superlink", *arguments]
    gc.disable()  # nothing that it loads is garbage, and looking for that takes a tenth of the time
    from edgegossip.flower._private.superlink import flower_superlink

    flower_superlink()


if __name__ == "__main__":
    _become_superlink(int(sys.argv[1]), sys.argv[2:])
