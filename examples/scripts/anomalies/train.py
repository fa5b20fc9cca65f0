"""Find faults of machines: an autoencoder learns what healthy vibration looks like.

DIR has train.npz and test.npz: `x`, float32[n, 128], windows of vibration; in the test set `y` is 1
where the machine has a fault. What the autoencoder cannot rebuild is taken for one.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

import edgegossip

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()


def load(path):
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    # where a window begins within a turn says nothing, so it is the spectrum that counts
    arrays["x"] = torch.log(torch.fft.rfft(arrays["x"]).abs()[:, 1:] + 1.0)
    return arrays


torch.manual_seed(1)
sizes = [64, 48, 12, 48, 64]
layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
model = nn.Sequential(*layers[:-1])
optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
run = edgegossip.join(model, state=[optimizer, scheduler], rounds=args.epochs)
train_set, test_set = load(args.data / "train.npz"), load(args.data / "test.npz")
loader = DataLoader(train_set["x"], args.batch_size, shuffle=True, drop_last=True)


@run.evaluate
@torch.no_grad()
def evaluate():
    """`auc`: how often a faulty window is rebuilt worse than a healthy one."""
    error = (model(test_set["x"]) - test_set["x"]).square().mean(1)
    healthy, faulty = error[test_set["y"] == 0], error[test_set["y"] == 1]
    auc = (faulty[:, None] > healthy).float().mean()
    return {"auc": auc, "loss": healthy.mean(), "examples": len(healthy)}


for _ in run.rounds():
    total = 0.0
    for x in loader:
        loss = mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    run.exchange(loss=total / len(loader), examples=len(train_set["x"]), steps=len(loader))
