"""One torch thread, so that results repeat bit for bit; and scripts, started as a board starts
them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgegossip.training.script import ScriptWorkload
from tests import one_thread
from tests.training.fakes import recipe

_one_thread = one_thread.one_thread

Start = Callable[..., ScriptWorkload]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    # A script that a test leaves in the middle stays this process's script, and its main module.
    monkeypatch.setattr("edgegossip.training.run._context", None)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def start(
        text: str,
        *args: str,
        rounds: int = 6,
        index: int = 1,
        name: str = "board-1",
        mode: str = "gossip",
        **options: Any,
    ) -> ScriptWorkload:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        run = {"script": str(path), "script_args": list(args), "rounds": rounds, "nodes": 3, "mode": mode}
        evaluation, gossip = {"where": options.pop("where", "boards")}, options.pop("gossip", {})
        whole = recipe(run=run, evaluation=evaluation, gossip=gossip, server=options.pop("server", {}))
        return ScriptWorkload(whole, index, name, **options)

    return start
