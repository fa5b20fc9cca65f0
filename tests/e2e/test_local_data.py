"""Boards with folders of their own, in real processes: they train together, and nothing of the data
leaves them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.command import edgegossip, in_this_process
from tests.e2e.network import Namespaces, first_namespace, ip, needs_namespaces

ROUNDS = 4
WINDOW = 16  # bytes of an example that are searched for
SETTINGS = (
    "data.name=npz",
    "data.partition=local",
    "data.labels=['ant', 'bee', 'cat']",
    "model.params={hidden = [8]}",
    "training.batch_size=4",
    f"run.rounds={ROUNDS}",
    "run.nodes=2",
    "run.name=own",
)
HELD = {"board-0": [12, 12, 0], "board-1": [0, 5, 3]}  # examples of each class


SCRIPT = """
import sys

import numpy as np
import torch
from torch import nn

import edgegossip

model = nn.Linear(24, 3)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
run = edgegossip.join(model, state=[optimizer])
inputs, targets = (torch.from_numpy(np.load(f"{sys.argv[1]}/train_{part}.npy")) for part in ("inputs", "targets"))
run.evaluate(lambda: (model(inputs).argmax(1) == targets).float().mean())
for round in run.rounds():
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.exchange(loss=loss.item(), examples=len(targets))
"""


def sets(folder: Path, *more: str) -> list[str]:
    chosen = (*SETTINGS, f"data.dir={folder}/{{board}}", *more)
    return [part for setting in chosen for part in ("--set", setting)]


def written(tmp_path: Path) -> Path:
    """A folder a board, each with other examples and other classes; only the first has a test
    set."""
    for k, (name, counts) in enumerate(HELD.items()):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        targets = np.repeat(np.arange(3), counts)
        inputs = np.random.default_rng(k).standard_normal((len(targets), 24)).astype(np.float32)
        np.save(folder / "train_inputs.npy", inputs)
        np.save(folder / "train_targets.npy", targets)
    first = tmp_path / "data" / "board-0"
    np.save(first / "test_inputs.npy", np.random.default_rng(9).standard_normal((6, 24)).astype(np.float32))
    np.save(first / "test_targets.npy", np.arange(6) % 2)
    return tmp_path / "data"


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return written(tmp_path)


def windows(folder: Path) -> set[bytes]:
    """Pieces of every example, wherever a packet may cut it."""
    found = set()
    for file in folder.glob("*/*_inputs.npy"):
        for row in np.load(file):
            data = row.tobytes()
            found |= {data[k : k + WINDOW] for k in range(0, len(data) - WINDOW + 1, 4)}
    return found


def holds_any(data: bytes, pieces: set[bytes]) -> bool:
    return any(piece in data for piece in pieces)


@contextmanager
def sniffed(namespace: str, file: Path) -> Iterator[None]:
    """Keep all packets that are sent inside the network namespace meanwhile. There is a way out, on
    which everything is lost, and nobody may take it."""
    for arguments in (
        "link add out type veth peer name nowhere",
        "address add 10.79.0.1/24 dev out",
        "link set out up",
        "link set nowhere up",
        "route add default via 10.79.0.254 dev out",
        "neigh replace 10.79.0.254 lladdr 02:00:00:00:00:fe dev out nud permanent",
    ):
        ip("-n", namespace, *arguments.split())
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.e2e.sniffer", str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sniffer:
        assert sniffer.stdin is not None and sniffer.stdout is not None
        assert sniffer.stdout.readline() == "listening\n"
        try:
            yield
        finally:
            sniffer.stdin.close()
            seen = json.loads(sniffer.stdout.read())
    assert seen and not [s for s in seen if s[:2] != ["lo", "tcp"] or s[2] != "127.0.0.1"], "something went elsewhere"


@needs_namespaces
@pytest.mark.slow  # test_forked.py has it of boards that are started by hand
@pytest.mark.parametrize(
    ("mode", "kind"),
    [("gossip", "script"), ("server", "recipe")],
)
def test_no_byte_of_the_data_is_in_a_packet_or_in_the_run_folder(
    mode: str, kind: str, folders: Path, tmp_path: Path
) -> None:
    pieces, packets = windows(folders), tmp_path / "packets"
    assert holds_any((folders / "board-1" / "train_inputs.npy").read_bytes(), pieces)
    topology = ("gossip.topology=complete",) if mode == "gossip" else ()
    with Namespaces() as spaces:
        name = first_namespace(spaces, "own")
        with sniffed(name, packets):
            inside = ("ip", "netns", "exec", name)
            arguments = ["run", f"quickstart-{mode}", *sets(folders, *topology), "--no-plots", "--json"]
            if kind == "script":
                (tmp_path / "train.py").write_text(SCRIPT)
                chosen = (f"run.mode={mode}", f"run.rounds={ROUNDS}", "run.nodes=2")
                own = [part for setting in chosen for part in ("--set", setting)]
                arguments = [
                    "run",
                    str(tmp_path / "train.py"),
                    *own,
                    "--no-plots",
                    "--json",
                    "--",
                    f"{folders}/{{board}}",
                ]
            with edgegossip(*arguments, runs=tmp_path / "runs", prefix=inside) as running:
                code, out, err = running.finish()
                folder = running.folder()
    assert code == 0, err
    sent, result = packets.read_bytes(), json.loads(out)
    assert (result["rounds"], result["failed_nodes"]) == (ROUNDS, [])
    assert len(sent) > 0.97 * result["sent_bytes"]["payload"]  # nothing was missed
    assert b"board-1" in sent
    assert not holds_any(sent, pieces)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {"board-0.log", "events.jsonl", "metrics.jsonl"} <= {file.name for file in files}
    for file in files:
        assert not holds_any(file.read_bytes(), pieces), file
    if kind == "script":
        return  # of its data nobody knows more than their number
    partition = json.loads((folder / "partition.json").read_text())
    assert partition == {
        "nodes": list(HELD),
        "classes": ["ant", "bee", "cat"],
        "counts": list(HELD.values()),
    }


def test_a_folder_that_is_not_there_is_said_before_a_process_is_started(
    folders: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ("run", "quickstart-gossip", *sets(folders, "run.nodes=3"))
    code, _, err = in_this_process(capfd, *arguments, "--runs", str(tmp_path / "runs"))
    assert code == 3
    assert f"data.dir = {folders}/board-2: there is no such folder" in err
    assert not (tmp_path / "runs").exists()
