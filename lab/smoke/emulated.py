"""`board_program` in a board's own files, without starting the board: user-mode emulation of a
Raspberry Pi 4's core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("board_program.py")
CPU = "cortex-a72"


def on_the_board(root: Path, python: str, timeout_s: float) -> dict[str, Any]:
    """`root`: the files of a board. Raises AssertionError with what the program said."""
    environment = {"PYTHONPATH": str(root / "opt/edgegossip/current/site"), "PYTHONHOME": str(root / "usr")}
    command = ["qemu-aarch64-static", "-cpu", CPU, "-L", root, root / f"usr/bin/python{python}", "-s", PROGRAM]
    return _said(command, {**environment, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}, timeout_s)


def here(timeout_s: float) -> dict[str, Any]:
    """The same by this machine's Python and the package that is being tested."""
    return _said([sys.executable, PROGRAM], {"PYTHONPATH": str(PROGRAM.parents[2]), "OMP_NUM_THREADS": "1"}, timeout_s)


def agree(board: dict[str, Any], this: dict[str, Any]) -> str:
    """Raises AssertionError unless the board's frames are those of this machine, byte by byte, and
    its update is much the same: what surrounds the integers (losses, the last layer) is torch's
    float32, which rounds by machine."""
    assert board["machine"] == "aarch64" and board["isa"] == "neon", board
    assert board["frames"] == this["frames"], [n for n, h in board["frames"].items() if this["frames"].get(n) != h]
    for key, value in this["update"].items():
        assert abs(board["update"][key] - value) <= 1e-3 * abs(value), (key, board["update"], this["update"])
    return f"torch {board['torch']} on an emulated {CPU}: an update of int8, and frames of {len(board['frames'])} codecs as here"


def _said(command: list[Any], environment: dict[str, str], timeout_s: float) -> dict[str, Any]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env={**kept, **environment})
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    said = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(said, dict)
    return said
