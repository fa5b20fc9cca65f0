"""Settings for every test: hypothesis tries the same forty examples each time, and with
HYPOTHESIS_PROFILE=explore (`make test-slow PART=examples`) a thousand others."""

import faulthandler
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

ROOT = Path(__file__).parent
MEMORY = Path("/dev/shm")
# The rest are files of some seconds.
FIRST = (
    *("e2e", "lab/sim", "studies", "flower", "test_", "training", "mesh"),
    *("security", "fleet", "node", "scale", "update"),
)
FATAL = ROOT.parent / "build" / "fatal"  # last words of a process that a signal ended, such as SIGSEGV


def pytest_sessionstart() -> None:
    """A shell starts what runs in its background with Ctrl-C ignored, and so would be every process
    of a test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that two workers end together; `make test` hands files out in this
    order."""
    items.sort(key=lambda item: _place(item.path.relative_to(ROOT).as_posix()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Ten thousand items and all that their modules imported are there to stay: nothing of it is
    garbage, and what tests collect is what they made. It is looked for more rarely, too, which
    saves some per cent of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(50_000, 20, 30)


def _place(path: str) -> int:
    return next((k for k, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """A worker's fatal error leaves every thread's stack in a file, at its exit, too: pytest's own
    handler is off by then, and what it writes is lost among the output of others."""
    _keep_folders_in_memory()
    if not (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        return
    config.pluginmanager.register(Worker())
    FATAL.mkdir(parents=True, exist_ok=True)
    file = (FATAL / f"{worker}.txt").open("w")
    faulthandler.enable(file)
    config.add_cleanup(lambda: faulthandler.enable(file))


def _keep_folders_in_memory() -> None:
    """Tests sync some ten thousand files, which a disk takes most of their time for. Programs must
    run from there."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        about = os.statvfs(MEMORY)
        if about.f_bavail * about.f_frsize >= 4 << 30 and not about.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error: object) -> None:
    """Of xdist, in the process that the workers belong to."""
    file = FATAL / f"{node.gateway.id}.txt"
    if error and file.exists():
        print(f"\n{node.gateway.id} ended by itself; {file}:\n{file.read_text()}", flush=True)


class Worker:
    """Runs tests in a worker of xdist, and sends one report a test instead of three, and no word of
    its begin and end: messages take some per cent of the time of ten thousand tests."""

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed or report.duration > 1.0:
                item.ihook.pytest_runtest_logreport(report=report)
        return True
