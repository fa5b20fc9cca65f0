"""Where records go besides the run folder, as the command line says it."""

from __future__ import annotations

import json
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.types import ConfigError, EdgegossipError, HostError
from tests.e2e.command import free_port
from tests.training.fakes import recipe


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "demo", "", {})


def test_records_go_to_the_folder_the_log_and_the_port(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"127.0.0.1:{free_port()}"
    sink = Outputs(log="json", metrics=where).open(folder, recipe(), ("pi-01",))
    sink.metrics("pi-01", 0, {"train/loss": 0.5})
    sink.event("pi-01", "lost", "lost pi-01: no answer")
    with urllib.request.urlopen(f"http://{where}/metrics", timeout=20) as answer:
        served = answer.read().decode()
    sink.close()
    assert f'edgegossip_train_loss{{run="{folder.path.name}",node="pi-01"}} 0.5' in served
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"]) for line in said] == [("round", "info"), ("lost", "warning")]
    assert "no answer" in (folder.path / "events.jsonl").read_text()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{where}/metrics", timeout=20)


def test_for_people_the_address_is_said(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    sink = Outputs(metrics="127.0.0.1:0").open(folder, recipe(), ("pi-01",))
    sink.event("pi-01", "lost", "lost pi-01: no answer")
    sink.close()
    said = capsys.readouterr().err
    assert "metrics: http://127.0.0.1:" in said and "lost pi-01: no answer" in said


def test_a_port_alone_is_for_programs_of_this_machine(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    Outputs(metrics="0").open(folder, recipe(), ("pi-01",)).close()
    assert "metrics: http://127.0.0.1:" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["metrics", ":9464", "127.0.0.1:99999", "::1:9464"])
def test_an_address_that_is_none_is_refused(folder: RunFolder, where: str) -> None:
    with pytest.raises(ConfigError, match="--metrics .* write "):
        Outputs(metrics=where).open(folder, recipe(), ("pi-01",))


def test_a_tracker_that_cannot_be_had_is_one_sentence_and_leaves_no_port_open(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    port = free_port()
    with pytest.raises(EdgegossipError, match="pip install mlflow-skinny"):
        Outputs(metrics=f"127.0.0.1:{port}", track="mlflow").open(folder, recipe(), ("pi-01",))
    with socket.create_server(("127.0.0.1", port)), pytest.raises(HostError, match="choose another port"):
        Outputs(metrics=f"127.0.0.1:{port}").open(folder, recipe(), ("pi-01",))
