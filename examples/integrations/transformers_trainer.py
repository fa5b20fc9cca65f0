"""Fine-tune a transformer with Hugging Face's Trainer, peer to peer.

    python ../scripts/make_data.py text --from plays.txt --out data/text
    edgegossip run transformers_trainer.py --set run.rounds=20 -- --data data/text/{board}

A small BERT is made here, so that nothing is downloaded; `from_pretrained` gives a real one.
"""

import argparse
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import edgegossip
from edgegossip.integrations.transformers import GossipCallback

WORDS, TABLE = 32, 4096

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR")
parser.add_argument("--out", default="trainer", help="folder of the Trainer's own files")
parser.add_argument("--every", type=int, default=20, help="optimiser steps a round")
args = parser.parse_args()


def load(path):
    examples = []
    for line in path.read_text(encoding="utf-8").splitlines():
        label, _, passage = line.partition("\t")
        words = [2 + crc32(w.encode()) % (TABLE - 2) for w in passage.lower().split()][:WORDS]
        padding = WORDS - len(words)
        mask = [1] * len(words) + [0] * padding
        examples.append({"input_ids": words + [0] * padding, "attention_mask": mask, "labels": int(label)})
    return examples


def score(predictions):
    logits, labels = predictions
    return {"accuracy": float(np.mean(np.argmax(logits, axis=1) == labels))}


torch.manual_seed(1)
config = BertConfig(
    vocab_size=TABLE,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=WORDS,
    num_labels=6,
)
model = BertForSequenceClassification(config)
run = edgegossip.join(model, rounds=10)
arguments = TrainingArguments(
    args.out,
    max_steps=run.total_rounds * args.every,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=load(args.data / "train.tsv"),
    eval_dataset=load(args.data / "test.tsv"),
    compute_metrics=score,
)
trainer.add_callback(GossipCallback(run, every=args.every, evaluate=trainer.evaluate))
trainer.train()
