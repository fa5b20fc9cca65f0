#!/usr/bin/env python3
"""Train networks in fp32 and in int8 with the norm that their user chose.

    python -m lab.results.int8_norms DATA_DIR [--seeds N] [--epochs N] [--train-examples N]
        [--model NAME] [--norm NAME] [--out lab/results/pages/int8-kept-norms.md]

As a user does: plain torch, `int8.convert`, SGD. `cnn` is three convolutions and `resnet20` the
package's, both on CIFAR-10; `speech` is four convolutions on the log-mel spectrograms of spoken
words, which espeak-ng speaks into DATA_DIR/words.npz at the first run. Each line is one run;
"range" is int8 with batch norm replaced by Range EvoNorm (`convert(norms="range")`). A run that is
in the output's JSON already is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip import int8, training
from edgegossip.recipe import Recipe, with_settings
from edgegossip.sweep.results import Result
from lab.results import resumable

NORMS = {"batchnorm": nn.BatchNorm2d, "groupnorm": lambda channels: nn.GroupNorm(8, channels)}
FORMS = ("fp32", "int8", "range")
PLANS = {  # channels in, channels out and stride of each convolution
    "cnn": ((3, 16, 2), (16, 32, 1), (32, 64, 2)),
    "speech": ((1, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1)),
}
MODELS = ("cnn", "resnet20", "speech")
BATCH, LR = 64, 0.1
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

WORDS = (
    *("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"),
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
)
ACCENTS = ("en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp")
TRAIN_VOICES = [f"{sex}{number}" for sex, count in (("m", 6), ("f", 4)) for number in range(1, count + 1)]
TEST_VOICES = ["m7", "m8", "f5", "croak", "klatt2"]  # espeak-ng's variants, none of them among the others
RATE, WINDOW, HOP, MELS = 22050, 512, 220, 40  # of sound: samples a second, of a spectrum, between two; bands

Part = tuple[Tensor, Tensor]  # inputs float32[n, channels, height, width], labels int64[n]


def network(model: str, norm: str) -> nn.Module:
    """A network with this norm, for 10 classes of images or for 20 words."""
    if model == "resnet20":
        return training.build_model(
            with_settings(Recipe(), {"data.name": "cifar10", "model.name": model, "model.norm": norm})
        )
    plan, layers = PLANS[model], list[nn.Module]()
    for inputs, outputs, stride in plan:
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), NORMS[norm](outputs), nn.ReLU()]
    classes = len(WORDS) if model == "speech" else 10
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(plan[-1][1], classes))


def images(files: list[Path]) -> Part:
    """Images and labels of CIFAR-10's binary files."""
    rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    pixels = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    order = torch.channels_last
    return ((pixels - mean) / std).contiguous(memory_format=order), torch.from_numpy(rows[:, 0].astype(np.int64))


def spoken(word: str, voice: str, speed: int, pitch: int) -> Tensor:
    """A second of sound, float32[RATE], of a word; `speed` in words a minute, `pitch` 0..99."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    wav = subprocess.run(command, check=True, capture_output=True).stdout
    samples = np.frombuffer(wav[44:], "<i2")[:RATE].astype(np.float32) / 32768  # 44: the head of a WAV file
    return torch.from_numpy(np.pad(samples, (0, RATE - len(samples))))


def log_mel(sound: Tensor) -> Tensor:
    """The logarithm of a sound's energy, float32[MELS, times], in bands alike on the mel scale."""
    power = torch.stft(sound, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True).abs() ** 2
    highest = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, highest, MELS + 2) / 2595) - 1)
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
    low, middle, high = (edges[at : at + MELS, None] for at in range(3))
    bands = torch.minimum((frequencies - low) / (middle - low), (high - frequencies) / (high - middle)).clamp(min=0)
    return torch.log(bands @ power + 1e-6)


def words(file: Path) -> tuple[Part, Part]:
    """Words in noise of 5 to 25 dB, to train on and, from other voices, to test on. Made once."""
    if not file.exists():
        random, made = np.random.default_rng(1), {}
        for part, voices, times in (("train", TRAIN_VOICES, 8), ("test", TEST_VOICES, 4)):
            cases = list(itertools.product(range(len(WORDS)), ACCENTS, voices, range(times)))
            sounds = []
            for word, accent, voice, _ in cases:
                sound = spoken(
                    WORDS[word], f"{accent}+{voice}", int(random.integers(120, 220)), int(random.integers(100))
                )
                sound = torch.roll(sound, int(random.integers(RATE // 5)))
                noise = torch.from_numpy(random.standard_normal(RATE).astype(np.float32))
                level = float(sound.square().mean().sqrt()) * 10 ** (-random.uniform(5, 25) / 20)
                sounds.append(log_mel(sound + level * noise).half().numpy())
            made |= {f"{part}_x": np.stack(sounds), f"{part}_y": np.array([word for word, *_ in cases])}
        np.savez(file, **made)
    kept = np.load(file)
    mean, std = kept["train_x"].astype(np.float32).mean(), kept["train_x"].astype(np.float32).std()
    train, test = (
        (
            torch.from_numpy((kept[f"{part}_x"].astype(np.float32) - mean) / std)[:, None],
            torch.from_numpy(kept[f"{part}_y"]),
        )
        for part in ("train", "test")
    )
    return train, test


def made(model: str, norm: str, form: str) -> nn.Module:
    if form == "fp32":
        return network(model, norm).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", int8.ConversionNotice)
        return int8.convert(network(model, norm), norms="range" if form == "range" else "keep")


def run(case: tuple[int, str, str, str], train: Part, test: Part, epochs: int) -> Result:
    """One run: accuracy on all test images, 0..1, and CPU seconds of training."""
    seed, name, norm, form = case
    torch.manual_seed(seed)
    model = made(name, norm, form)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, nesterov=True, weight_decay=5e-4)
    x, labels = train
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps, pct_start=0.2)
    order, start = torch.Generator().manual_seed(seed), time.process_time()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order)[: len(x) // BATCH * BATCH].split(BATCH):
            flipped = torch.rand(BATCH, generator=order) < (0 if name == "speech" else 0.5)
            batch = torch.where(flipped[:, None, None, None], x[rows].flip(3), x[rows])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - start
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(part).argmax(1) == of).sum())
            for part, of in zip(test[0].split(500), test[1].split(500), strict=True)
        )
    return {
        "seed": seed,
        "model": name,
        "norm": norm,
        "form": form,
        "accuracy": right / len(test[0]),
        "seconds": round(seconds, 1),
    }


def table(lines: list[Result]) -> str:
    """A row a norm and form: mean and range over seeds, and how far from fp32."""
    rows = resumable.heading("model, norm, form, seeds, accuracy, lowest, highest, less fp32 (same seeds), CPU seconds")
    for model, norm, form in itertools.product(MODELS, NORMS, FORMS):
        of = {n["seed"]: n for n in lines if (n["model"], n["norm"], n["form"]) == (model, norm, form)}
        plain = {n["seed"]: n for n in lines if (n["model"], n["norm"], n["form"]) == (model, norm, "fp32")}
        if not of:
            continue
        percent = [100 * n["accuracy"] for n in of.values()]
        both = [100 * (of[s]["accuracy"] - plain[s]["accuracy"]) for s in of.keys() & plain.keys()]
        less = f"{statistics.mean(both):+.2f}" if both and form != "fp32" else ""
        seconds = statistics.mean(n["seconds"] for n in of.values())
        cells = (
            f"{statistics.mean(percent):.2f} %",
            f"{min(percent):.2f}",
            f"{max(percent):.2f}",
            less,
            f"{seconds:.0f}",
        )
        rows.append(f"| {model} | {norm} | {form} | {len(of)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with CIFAR-10's binary files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train-examples", type=int, default=10_000)
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one; may be repeated")
    parser.add_argument("--norm", choices=list(NORMS), action="append", help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("lab/results/pages/int8-kept-norms.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = resumable.finished(options.out)
    for model in options.model or MODELS:
        if model == "speech":
            train, test = words(options.data / "words.npz")
        else:
            train, test = (
                images(sorted(options.data.glob("data_batch_*.bin"))),
                images([options.data / "test_batch.bin"]),
            )
            train = (train[0][: options.train_examples], train[1][: options.train_examples])
        setting = {"epochs": options.epochs, "train_examples": len(train[0])}
        for case in itertools.product(range(1, options.seeds + 1), [model], options.norm or NORMS, FORMS):
            known = [(n["seed"], n["model"], n["norm"], n["form"]) for n in lines if setting.items() <= n.items()]
            if case in known or case[2:] == ("groupnorm", "range"):  # which replaces batch norm alone
                continue
            lines.append(run(case, train, test, options.epochs) | setting)
            print(lines[-1], flush=True)
            resumable.write(options.out, lines, "int8 with the user's own norm", "int8_norms", table(lines))
    return resumable.exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
