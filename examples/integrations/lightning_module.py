"""Train a LightningModule, peer to peer.

python ../scripts/make_data.py images --out data/digits
edgegossip run lightning_module.py --set run.rounds=20 -- --data data/digits/{board}
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import edgegossip
from edgegossip.integrations.lightning import GossipCallback

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--every", type=int, default=20, help="optimiser steps a round")
args = parser.parse_args()


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(10))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch):
        x, y = batch
        return cross_entropy(self(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 2e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.total_rounds * args.every)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def load(path):
    with np.load(path) as file:
        return TensorDataset(torch.from_numpy(file["x"]) / 255 - 0.5, torch.from_numpy(file["y"]))


torch.manual_seed(1)
train_set, test_set = load(args.data / "train.npz"), load(args.data / "test.npz")
module = Classifier()
module(train_set.tensors[0][:1])  # lazy layers get their shape; only then can the model join
run = edgegossip.join(module, rounds=10)


@run.evaluate
def evaluate():
    module.eval()
    x, y = test_set.tensors
    logits = module(x)
    accuracy = (logits.argmax(1) == y).float().mean()
    return {"accuracy": accuracy, "loss": cross_entropy(logits, y), "examples": len(y)}


trainer = Trainer(
    max_steps=run.total_rounds * args.every,
    callbacks=[GossipCallback(run, every=args.every, examples=len(train_set))],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(train_set, 32, shuffle=True, drop_last=True))
