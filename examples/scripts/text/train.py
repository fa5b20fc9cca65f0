"""Tell who wrote a passage: mean of word and word-pair embeddings, then a linear layer (fastText).

DIR has train.tsv and test.tsv, lines of `class <tab> passage` with a whole number below --classes.
Words are hashed into a table, so no vocabulary has to be agreed upon.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import edgegossip

TABLE = 8192

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--classes", type=int, default=6)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=5e-3)
parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw", help="sgd: where boards differ")
args = parser.parse_args()


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embedding = nn.EmbeddingBag(TABLE, 16, mode="mean")
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(16, classes)

    def forward(self, words, starts):
        return self.head(self.dropout(self.embedding(words, starts)))


def load(path):
    """A list of (class, rows of the table)."""
    examples = []
    for line in path.read_text(encoding="utf-8").splitlines():
        label, _, passage = line.partition("\t")
        words = passage.lower().split()
        pairs = [f"{a} {b}" for a, b in pairwise(words)]
        examples.append((int(label), [crc32(word.encode()) % TABLE for word in words + pairs]))
    return examples


def collate(examples):
    words = torch.tensor([row for _, rows in examples for row in rows])
    lengths = torch.tensor([0] + [len(rows) for _, rows in examples[:-1]])
    return words, lengths.cumsum(0), torch.tensor([label for label, _ in examples])


torch.manual_seed(1)
model = Classifier(args.classes)
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
run = edgegossip.join(model, state=[optimizer, scheduler], rounds=args.epochs)
train_set, test_set = load(args.data / "train.tsv"), load(args.data / "test.tsv")
loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=collate)


@run.evaluate
@torch.no_grad()
def evaluate():
    model.eval()
    words, starts, labels = collate(test_set)
    logits = model(words, starts)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return {"accuracy": accuracy, "loss": cross_entropy(logits, labels), "examples": len(labels)}


for _ in run.rounds():
    model.train()
    total = 0.0
    for words, starts, labels in loader:
        loss = cross_entropy(model(words, starts), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    run.exchange(loss=total / len(loader), examples=len(train_set), steps=len(loader))
