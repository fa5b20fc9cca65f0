"""The command line called in this process: what it prints, its exit code, and its signal handlers
taken back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from edgegossip.cli.main import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """The command sets handlers, for a process of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """command("topology", "ring", ...) -> exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return call
