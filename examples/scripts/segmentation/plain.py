"""Segment pictures with a small U-Net (Ronneberger et al. 2015).

DIR has train.npz and test.npz: `x`, uint8[n, height, width, 3], and `y`, uint8[n, height, width],
the class of each pixel; height and width are multiples of 4.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--classes", type=int, default=4)
parser.add_argument("--width", type=int, default=12)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=3e-3)
args = parser.parse_args()


def double(inputs, outputs):
    layers = []
    for n in (inputs, outputs):
        layers += [nn.Conv2d(n, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.top, self.middle = double(3, width), double(width, 2 * width)
        self.bottom = double(2 * width, 4 * width)
        self.up_middle = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.right_middle = double(4 * width, 2 * width)
        self.up_top = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.right_top = double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        top = self.top(x)
        middle = self.middle(self.pool(top))
        x = self.up_middle(self.bottom(self.pool(middle)))
        x = self.up_top(self.right_middle(torch.cat([middle, x], 1)))
        return self.head(self.right_top(torch.cat([top, x], 1)))


def load(path):
    with np.load(path) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    return TensorDataset(x.permute(0, 3, 1, 2) / 255 - 0.5, y.long())


torch.manual_seed(1)
model = UNet(args.width, args.classes)
optimizer = torch.optim.Adam(model.parameters(), args.lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
train_set, test_set = load(args.data / "train.npz"), load(args.data / "test.npz")
loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)


@torch.no_grad()
def evaluate():
    model.eval()
    x, y = test_set.tensors
    logits = torch.cat([model(part) for part in x.split(100)])
    found = logits.argmax(1)
    both = [((found == c) & (y == c)).sum() for c in range(args.classes)]
    either = [((found == c) | (y == c)).sum() for c in range(args.classes)]
    iou = torch.stack(both) / torch.stack(either)
    pixels = (found == y).float().mean()
    return {"iou": iou.mean(), "pixels": pixels, "loss": cross_entropy(logits, y), "examples": len(y)}


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
