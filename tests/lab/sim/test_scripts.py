"""Small cases, step by step, in tests/lab/sim/testdata; script.py tells the commands. REWRITE=1
writes what is printed now."""

import os
from pathlib import Path

import pytest

from tests.lab.sim.script import play

SCRIPTS = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    text = path.read_text()
    printed = play(text)
    if os.environ.get("REWRITE"):
        path.write_text(printed)
    assert printed == text or os.environ.get("REWRITE")


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 10
