"""An interrupt ends a command with 130, wherever in Python it strikes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import signal, threading, time, weakref
import click

class Finalised:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

class Watched:
    pass

def finaliser():
    Finalised()
    time.sleep(60)

def callback():
    watched = Watched()
    reference = weakref.ref(watched, lambda _: signal.raise_signal(signal.SIGTERM))
    del watched
    time.sleep(60)

def dropped():
    class Attribute:
        @property
        def attribute(self):
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                pass  # as C code does that takes any error for a no
    Attribute().attribute
    time.sleep(60)

def cleaning():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        time.sleep(1.2)  # longer than until it comes again
        click.echo("cleaned up", err=True)

def lock():
    condition = threading.Condition()
    with condition:
        condition.release()
        signal.raise_signal(signal.SIGTERM)

def sleep():
    signal.raise_signal(signal.SIGHUP)

def bug():
    threading.Lock().release()

def full():
    with open("/dev/full", "w") as file:
        file.write("x")

@click.command
@click.argument("where")
def command(where):
    globals()[where]()
"""
MAIN = "import sys; from edgegossip.cli import main; import own; main.cli.add_command(own.command); main.main(sys.argv[1:])"


@pytest.mark.parametrize("where", ["finaliser", "callback", "dropped", "cleaning", "lock", "sleep", "bug", "full"])
def test_an_interrupt_is_never_lost(where: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(COMMAND)
    command = [sys.executable, "-c", MAIN, "command", where]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if where == "bug":
        assert done.returncode == 1 and "unexpected RuntimeError" in done.stderr
    elif where == "full":  # what nobody foresaw is the disk's fault all the same
        assert done.returncode == 4 and done.stderr == "edgegossip: the disk: No space left on device\n"
    else:
        told = [line for line in done.stderr.splitlines() if line.startswith(("edgegossip:", "cleaned"))]
        assert done.returncode == 130 and told == ["cleaned up"] * (where == "cleaning") + ["edgegossip: interrupted"]
