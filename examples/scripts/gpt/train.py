"""Train a small GPT on the characters of a text.

DIR has train.txt and test.txt. Characters outside ASCII count as one.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import edgegossip

VOCABULARY, CONTEXT = 128, 64  # characters

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--every", type=int, default=20, help="steps between two reports")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=3e-3)
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, time, width = x.shape
        qkv = self.qkv(self.before(x)).view(n, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, time, width))
        return x + self.narrow(gelu(self.wide(self.after(x))))


class GPT(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, text):
        x = self.characters(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def load(path):
    text = path.read_text(encoding="utf-8")
    return torch.tensor(bytearray(text.encode("ascii", "replace"))).long()


def loss_of(windows):
    logits = model(windows[:, :-1])
    return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


torch.manual_seed(1)
model = GPT(args.width, args.layers)
optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.1)
run = edgegossip.join(model, state=[optimizer], rounds=args.steps // args.every)
train_text, test_text = load(args.data / "train.txt"), load(args.data / "test.txt")
train_windows = train_text.unfold(0, CONTEXT + 1, 1)
test_windows = test_text.unfold(0, CONTEXT + 1, CONTEXT)[:500]


@run.evaluate
@torch.no_grad()
def evaluate():
    loss = loss_of(test_windows)
    return {"bits": loss / math.log(2), "loss": loss, "examples": len(test_windows)}


going_on = run.start()
step = run.round * args.every
while going_on:
    warm = min(1.0, (step + 1) / 100)
    optimizer.param_groups[0]["lr"] = args.lr * warm * (1 + math.cos(math.pi * step / args.steps)) / 2
    rows = torch.randint(len(train_windows), (args.batch_size,))
    loss = loss_of(train_windows[rows])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    step += 1
    if step % args.every == 0:
        going_on = run.exchange(loss=loss.item(), examples=len(train_text), steps=args.every)
