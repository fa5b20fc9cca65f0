"""Forecast the next day of a time series from the last four, hour by hour, with a GRU.

DIR has train.npz and test.npz: `series`, float32[n, hours]. Each window is scaled by its own mean
and deviation, so series of any size train one model.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import edgegossip

PAST, AHEAD = 96, 24  # hours

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--hidden", type=int, default=32)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=3e-3)
args = parser.parse_args()


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, AHEAD)

    def forward(self, past):
        states, _ = self.gru(past[..., None])
        return self.head(states[:, -1])


def load(path, stride):
    """Windows of the past and what came after them, float32[n, PAST] and float32[n, AHEAD]."""
    with np.load(path) as file:
        windows = torch.from_numpy(file["series"]).unfold(1, PAST + AHEAD, stride).flatten(0, 1)
    past = windows[:, :PAST]
    mean, deviation = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-3
    scaled = (windows - mean) / deviation
    return TensorDataset(scaled[:, :PAST], scaled[:, PAST:])


torch.manual_seed(1)
model = Forecaster(args.hidden)
optimizer = torch.optim.Adam(model.parameters(), args.lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
run = edgegossip.join(model, state=[optimizer, scheduler], rounds=args.epochs)
train_set, test_set = load(args.data / "train.npz", 6), load(args.data / "test.npz", 7)
loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)


@run.evaluate
@torch.no_grad()
def evaluate():
    model.eval()
    past, ahead = test_set.tensors
    found = model(past)
    mae = (found - ahead).abs().mean()
    return {"mae": mae, "loss": mse_loss(found, ahead), "examples": len(ahead)}


for _ in run.rounds():
    model.train()
    total = 0.0
    for past, ahead in loader:
        loss = mse_loss(model(past), ahead)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    scheduler.step()
    run.exchange(loss=total / len(loader), examples=len(train_set), steps=len(loader))
