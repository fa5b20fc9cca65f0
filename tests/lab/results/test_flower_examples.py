"""lab.results.flower_examples: an example changes in the two lines and their imports alone, and a
run stands for what its log says."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

SERVER = '''"""An app."""

import torch
from flwr.serverapp.strategy import FedAvg


def main(grid):
    strategy = FedAvg()
    result = strategy.start(
        grid=grid,
    )
'''
CLIENT = '"""An app."""\n\nimport torch\nfrom flwr.clientapp import ClientApp\n\napp = ClientApp()\n'
WITH_MODS = CLIENT.replace("ClientApp()\n", "ClientApp(\n    mods=[\n        theirs,\n    ],\n)\n")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    from lab.results import flower_examples

    return flower_examples


def _app(folder: Path, client: str) -> Path:
    (folder / "example").mkdir()
    (folder / "example/server_app.py").write_text(SERVER)
    (folder / "example/client_app.py").write_text(client)
    return folder


def _added(before: str, after: str) -> list[str]:
    changes = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    return [line[2:].strip() for line in changes if line[0] == "+"]


@pytest.mark.parametrize("client", [CLIENT, WITH_MODS])
def test_two_lines_and_their_imports_are_all_that_changes(client: str, script: Any, tmp_path: Path) -> None:
    script.compress(_app(tmp_path, client))
    for name, before, call in (("server", SERVER, "compressed("), ("client", client, "compression_mod(")):
        after = (tmp_path / f"example/{name}_app.py").read_text()
        ast.parse(after)
        added = _added(before, after)
        assert len(added) == 2 and added[0] == script.IMPORT and call in added[1]
    if client is WITH_MODS:
        assert after.index("compression_mod") < after.index("theirs")


def test_another_version_of_an_example_is_refused(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="another version"):
        script.compress(_app(tmp_path, CLIENT.replace("ClientApp()", "make_app()")))


def test_a_run_that_did_not_end_has_failed(script: Any) -> None:
    log = "'accuracy': 0.25, 'loss': 1.0}\nedgegossip: round 3: 5.9 times fewer bytes than fp32 so far\n"
    assert "failed" in script.outcome(log, "compressed")
    assert "failed" in script.outcome("'accuracy': 0.25\nSaving final model to disk...", "compressed")
    assert script.outcome(log + "Saving final model to disk...", "compressed") == {
        "accuracy": 0.25,
        "loss": 1.0,
        "fewer": 5.9,
    }
    failed = "aggregate_train: Received 3 results and 1 failures\n"
    assert "failed" in script.outcome(failed + log + "Saving final model to disk...", "compressed")
