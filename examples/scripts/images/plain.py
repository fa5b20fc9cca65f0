"""Classify images, with a small convolutional network or any model of torchvision.

DIR has train.npz and test.npz: `x`, uint8[n, height, width] or uint8[n, height, width, 3], and `y`,
whole numbers below --classes.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--model", default="cnn", help="cnn, or a name such as mobilenet_v3_small")
parser.add_argument("--norm", choices=["batch", "group"], default="batch", help="of cnn; group: where classes differ")
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--channels", type=int, default=1)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.02)
args = parser.parse_args()


def build():
    if args.model != "cnn":
        from torchvision.models import get_model

        return get_model(args.model, num_classes=args.classes)
    norm = nn.BatchNorm2d if args.norm == "batch" else partial(nn.GroupNorm, 4)
    return nn.Sequential(
        nn.Conv2d(args.channels, 16, 3, padding=1),
        norm(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        norm(32),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, args.classes),
    )


def load(path):
    with np.load(path) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    x = x.permute(0, 3, 1, 2) if x.ndim == 4 else x[:, None]
    return TensorDataset(x / 255 - 0.5, y)


torch.manual_seed(1)
model = build()
optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
train_set, test_set = load(args.data / "train.npz"), load(args.data / "test.npz")
loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)


@torch.no_grad()
def evaluate():
    model.eval()
    x, y = test_set.tensors
    logits = torch.cat([model(part) for part in x.split(500)])
    accuracy = (logits.argmax(1) == y).float().mean()
    return {"accuracy": accuracy, "loss": cross_entropy(logits, y), "examples": len(y)}


for epoch in range(args.epochs):
    model.train()
    total = 0.0
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    print(f"epoch {epoch + 1}: {total / len(loader):.4f}", evaluate())
