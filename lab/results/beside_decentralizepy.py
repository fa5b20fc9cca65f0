"""The same job here and in decentralizepy: 4 nodes on a ring, its LeNet for CIFAR-10 (89,834
parameters), D-PSGD with Metropolis-Hastings weights, float32 models whole, every node a process of
this machine.

    python -m lab.results.beside_decentralizepy --theirs DIR --python PY [--rounds 200] [--batch 8]
        [--save lab/results/pages]

DIR is a checkout of github.com/sacs-epfl/decentralizepy, PY an interpreter that has what this needs
of it (torch, pyzmq, matplotlib, networkx, localconfig, smallworld). Its own `eval/testing.py` runs,
unmodified, without evaluations; rounds are timed by its log. Data are drawn with a fixed seed in
CIFAR-10's shape, the same for both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

NODES = 4
_PATIENCE_S = 900.0
_SKIP = 10  # first rounds: sockets open, caches fill

_JOB = '''
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class LeNet(nn.Module):
    """As in decentralizepy/datasets/CIFAR10.py."""
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 5, padding="same")
        self.pool = nn.MaxPool2d(2, 2)
        self.gn1 = nn.GroupNorm(2, 32)
        self.conv2 = nn.Conv2d(32, 32, 5, padding="same")
        self.gn2 = nn.GroupNorm(2, 32)
        self.conv3 = nn.Conv2d(32, 64, 5, padding="same")
        self.gn3 = nn.GroupNorm(2, 64)
        self.fc1 = nn.Linear(64 * 4 * 4, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.gn1(self.conv1(x))))
        x = self.pool(F.relu(self.gn2(self.conv2(x))))
        x = self.pool(F.relu(self.gn3(self.conv3(x))))
        return self.fc1(x.flatten(1))

def build(input_shape, classes, norm):
    return LeNet()

def data(folder=""):
    random = np.random.default_rng(0)
    inputs = random.standard_normal((2200, 3, 32, 32)).astype(np.float32)
    labels = random.integers(0, 10, 2200)
    labels[:10] = range(10)
    return inputs[:2000], labels[:2000], inputs[2000:], labels[2000:]
'''

_THEIR_DATA = '''
import logging
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from decentralizepy.datasets.Dataset import Dataset
from decentralizepy.training.Training import Training
from decentralizepy.models.Model import Model
import job

class LeNet(job.LeNet, Model):
    """The model of their datasets/CIFAR10.py, which would ask for torchvision."""

class Timed(Training):
    """Their Training, which notes how long it takes, and the CPU time of the process so far."""
    def train(self, dataset):
        began = time.perf_counter()
        super().train(dataset)
        logging.info("Trained for %.6f s, CPU %.6f s", time.perf_counter() - began, time.process_time())

class Data(Dataset):
    def __init__(self, rank, machine_id, mapping, n_procs="", **options):
        super().__init__(rank, machine_id, mapping, train_dir="here")
        inputs, labels, _, _ = job.data()
        own = slice(self.dataset_id, None, self.num_partitions)
        self._set = TensorDataset(torch.from_numpy(inputs[own]), torch.from_numpy(labels[own]))

    def get_trainset(self, batch_size=1, shuffle=False):
        return DataLoader(self._set, batch_size=batch_size, shuffle=shuffle)

    def get_testset(self):
        return None
'''

_THEIR_CONFIG = """[DATASET]
dataset_package = their_data
dataset_class = Data
model_class = LeNet

[OPTIMIZER_PARAMS]
optimizer_package = torch.optim
optimizer_class = SGD
lr = 0.01

[TRAIN_PARAMS]
training_package = their_data
training_class = Timed
rounds = 1
full_epochs = False
batch_size = {batch}
shuffle = True
loss_package = torch.nn
loss_class = CrossEntropyLoss

[COMMUNICATION]
comm_package = decentralizepy.communication.TCP
comm_class = TCP
addresses_filepath = {folder}/ip.json

[SHARING]
sharing_package = decentralizepy.sharing.Sharing
sharing_class = Sharing
"""

_OUR_RECIPE = """[run]
name = "beside-decentralizepy"
mode = "gossip"
nodes = 4
rounds = {rounds}

[data]
name = "job:data"

[model]
name = "job:build"

[training]
batch_size = {batch}
local_steps = 1
lr = 0.01

[gossip]
algorithm = "dpsgd"
topology = "ring"

[evaluation]
every = {rounds}
examples = 16
"""


def theirs(folder: Path, checkout: Path, python: str, rounds: int, batch: int, as_it_comes: bool) -> dict[str, Any]:
    """Seconds of the median round and bytes a node sends in one."""
    (folder / "their_data.py").write_text(_THEIR_DATA)
    (folder / "config.ini").write_text(_THEIR_CONFIG.format(batch=batch, folder=folder))
    (folder / "ip.json").write_text('{"0": "localhost"}')
    edges = [f"{i} {j}" for i in range(NODES) for j in sorted({(i - 1) % NODES, (i + 1) % NODES})]
    (folder / "ring.edges").write_text("\n".join([str(NODES), *edges]) + "\n")
    logs = folder / "theirs"
    look = "1" if as_it_comes else str(10 * rounds)  # their default: the training loss after each round
    words = ["-mid", "0", "-ps", str(NODES), "-ms", "1", "-is", str(rounds), "-ld", str(logs), "-wsd", str(logs)]
    words += [
        "-cf",
        str(folder / "config.ini"),
        "-gf",
        str(folder / "ring.edges"),
        "-ta",
        str(10 * rounds),
        "-tea",
        look,
    ]
    environment = os.environ | {"PYTHONPATH": f"{checkout / 'src'}:{folder}"}
    command = [python, str(checkout / "eval/testing.py"), *words]
    subprocess.run(command, check=True, cwd=folder, env=environment, timeout=_PATIENCE_S, stdout=subprocess.DEVNULL)
    times, trained, cpu, sent = [], [], [], []
    for rank in range(NODES):
        lines = (logs / f"{rank}.log").read_text().splitlines()
        starts = [line for line in lines if "Starting training iteration" in line]
        at = [datetime.strptime(line[1:24], "%Y-%m-%d %H:%M:%S,%f").timestamp() for line in starts]
        times += [b - a for a, b in zip(at[_SKIP:], at[_SKIP + 1 :], strict=False)]
        notes = [line.split() for line in lines if "Trained for" in line][_SKIP:]
        trained += [float(words[-5]) for words in notes]
        used = [float(words[-2]) for words in notes]
        cpu += [b - a for a, b in itertools.pairwise(used)]
        totals = json.loads((logs / f"{rank}_results.json").read_text())["total_bytes"]
        sent.append(totals[str(rounds)] / rounds)
    return {
        "round_s": median(times),
        "compute_s": median(trained),
        "cpu_s": mean(cpu),
        "bytes_a_round": mean(sent),
    }


def ours(folder: Path, rounds: int, batch: int) -> dict[str, Any]:
    """The same of edgegossip, without TLS as theirs is."""
    (folder / "recipe.toml").write_text(_OUR_RECIPE.format(rounds=rounds, batch=batch))
    edgegossip = str(Path(sys.executable).with_name("edgegossip"))
    command = [edgegossip, "run", "recipe.toml", "--json", "--no-plots", "--runs", "runs", "--set", "network.tls=off"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, check=True, cwd=folder, env=environment, timeout=_PATIENCE_S, stdout=subprocess.PIPE)
    document = json.loads(done.stdout)
    lines = (folder / "runs" / document["run"] / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["step"] >= _SKIP and "time/round_s" in row]
    rows = [row for row in rows if row.get("eval/loss") is None]  # theirs has no evaluation either
    sent = document["sent_bytes"]
    return {
        "round_s": median(row["time/round_s"] for row in rows),
        "compute_s": median(row["time/compute_s"] for row in rows),
        "cpu_s": mean(row["time/cpu_s"] for row in rows),
        "bytes_a_round": (sent["payload"] + sent["overhead"]) / NODES / rounds,
        "socket_bytes_a_round": sent["socket"] / NODES / rounds,
    }


def markdown(document: dict[str, Any]) -> str:
    """The document as lab/results/pages keeps it."""
    rows = []
    for row in document["rows"]:
        there, here = row["theirs"], row["ours"]
        times = [1e3 * d[key] for d in (there, here) for key in ("round_s", "compute_s", "cpu_s")]
        cells = [str(row["batch"]), *(f"{ms:.1f}" for ms in times), f"{row['rounds_ratio']:.2f}"]
        rows.append(f"| {' | '.join(cells)} | {there['bytes_a_round']:,.0f} | {here['bytes_a_round']:,.0f} |")
    head = (
        "| batch | theirs ms | compute | CPU | ours ms | compute | CPU | theirs / ours | bytes, theirs | bytes, ours |"
    )
    return "\n".join([head, "|" + " ---: |" * 10, *rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--theirs", type=Path, required=True, help="checkout of decentralizepy")
    parser.add_argument("--python", required=True, help="interpreter with its dependencies")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch", type=int, action="append", help="examples of a local step; may be repeated")
    parser.add_argument("--repeat", type=int, default=3, help="turns; figures are medians")
    parser.add_argument("--as-it-comes", action="store_true", help="leave its evaluation of every round on")
    parser.add_argument("--save", type=Path, help="write decentralizepy.json here")
    asked = parser.parse_args()
    document: dict[str, Any] = {
        "date": datetime.now().isoformat(timespec="minutes"),
        "load": os.getloadavg()[0],
        "rows": [],
    }
    for batch in asked.batch or [8]:
        turns: list[tuple[dict[str, float], dict[str, float]]] = []
        for _ in range(asked.repeat):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "job.py").write_text(_JOB)
                there = theirs(folder, asked.theirs.resolve(), asked.python, asked.rounds, batch, asked.as_it_comes)
                turns.append((there, ours(folder, asked.rounds, batch)))
        there, here = ({key: median(t[i][key] for t in turns) for key in turns[0][i]} for i in (0, 1))
        ratio = there["round_s"] / here["round_s"]
        document["rows"].append(
            {"batch": batch, "rounds": asked.rounds, "theirs": there, "ours": here, "rounds_ratio": ratio}
        )
    print(markdown(document), end="")
    if asked.save is not None:
        (asked.save / "decentralizepy.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
