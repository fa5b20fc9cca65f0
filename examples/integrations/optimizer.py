"""Train with an optimiser that exchanges as it steps, as hivemind's does.

python ../scripts/make_data.py images --out data/digits
edgegossip run optimizer.py --set run.rounds=20 -- --data data/digits/{board}
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import edgegossip
from edgegossip.integrations.optimizer import GossipOptimizer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--every", type=int, default=20, help="optimiser steps a round")
args = parser.parse_args()


def load(path):
    with np.load(path) as file:
        return TensorDataset(torch.from_numpy(file["x"]) / 255 - 0.5, torch.from_numpy(file["y"]))


def batches(loader):
    while True:
        yield from loader


torch.manual_seed(1)
train_set, test_set = load(args.data / "train.npz"), load(args.data / "test.npz")
model = nn.Sequential(nn.Flatten(), nn.Linear(test_set.tensors[0][0].numel(), 64), nn.ReLU(), nn.Linear(64, 10))
inner = torch.optim.AdamW(model.parameters(), 2e-3)
scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=100, gamma=0.7)

with edgegossip.join(model, state=[inner, scheduler], rounds=10) as run:

    @run.evaluate
    def evaluate():
        x, y = test_set.tensors
        logits = model(x)
        accuracy = (logits.argmax(1) == y).float().mean()
        return {"accuracy": accuracy, "loss": cross_entropy(logits, y), "examples": len(y)}

    optimizer = GossipOptimizer(inner, run, every=args.every, examples=len(train_set))
    data = batches(DataLoader(train_set, 32, shuffle=True, drop_last=True))
    while not optimizer.over:
        x, y = next(data)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(loss=loss)
        scheduler.step()
