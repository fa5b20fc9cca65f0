"""Make the data of the example scripts: one folder for each board, and one of all of it.

    python make_data.py images --from fashion_mnist.npz --out data/images
    python make_data.py text --from plays.txt --out data/speakers --boards 6 --by-class
    python make_data.py forecast --out data/forecast --boards 12

DIR/board-0, DIR/board-1, ... hold each board's own part (of more than ten, DIR/board-00, ...); no
example is in two of them. DIR/all is their union, for training in one place. Every folder has the
same test set, which no board trains on.

    images        --from an .npz with train_x, train_y, test_x, test_y (uint8 images, whole
                  numbers);
                  without it the handwritten digits that come with edgegossip
    text          --from a folder with one .txt a class, or one text: the articles of WikiText, or
                  the
                  speakers of a play, are the classes; the longest of them
    gpt           --from a text, or a folder of texts
    segmentation  drawn: shapes in front of textures, each board with a camera of its own
    forecast      drawn: hourly electrical load, each board in a household of its own
    anomalies     drawn: vibration of machines, each board at a machine of its own; some have faults

`--by-class` gives each board other classes; without it every board gets some of each.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

HOURS = 3000  # of each household: four months


def images(args, random):
    """uint8[n, h, w] or uint8[n, h, w, 3] and labels, as they are."""
    if args.source:
        with np.load(args.source) as file:
            parts = [file[name] for name in ("train_x", "train_y", "test_x", "test_y")]
    else:
        parts = digits(random)
    train_x, train_y, test_x, test_y = parts
    rows = random.permutation(len(train_x))[: args.train]
    test_rows = random.permutation(len(test_x))[: args.test]
    test = {"x": test_x[test_rows], "y": test_y[test_rows].astype(np.int64)}
    for folder, own in shares(args, train_y[rows], random):
        save(folder, {"x": train_x[rows[own]], "y": train_y[rows[own]].astype(np.int64)}, test)


def digits(random):
    from importlib.resources import files

    with np.load(files("edgegossip") / "training/data/digits.npz") as file:
        x, y = file["images"] * 15, file["labels"]  # 0..16 become 0..240
    rows = random.permutation(len(x))
    train, test = rows[400:], rows[:400]
    return x[train], y[train], x[test], y[test]


def segmentation(args, random):
    """uint8[n, 32, 32, 3] pictures, uint8[n, 32, 32] masks: 0 background, 1 disc, 2 box, 3
    cross."""
    cameras = [{"gain": random.uniform(0.6, 1.0, 3), "noise": random.uniform(8, 20)} for _ in range(args.boards)]
    parts = [[scene(random, c) for _ in range(args.train // args.boards)] for c in cameras]
    test = stacked([scene(random, cameras[k % args.boards]) for k in range(args.test)])
    for folder, own in boards(args):
        save(folder, stacked([s for k in own for s in parts[k]]), test)


def scene(random, camera):
    """A picture and its mask. Shapes lie over one another, and are brighter than the background
    most of the time; their colours say nothing about their kind."""
    size = 32
    down, right = np.mgrid[:size, :size]
    mask = np.zeros((size, size), np.uint8)
    picture = texture(random, down, right, 40, 140)
    for _ in range(random.integers(2, 5)):
        kind, radius = random.integers(1, 4), random.uniform(4, 9)
        y, x = random.uniform(4, size - 4, 2)
        a, b = np.abs(down - y), np.abs(right - x)
        inside = {
            1: a**2 + b**2 < radius**2,
            2: np.maximum(a, b) < 0.85 * radius,
            3: (np.minimum(a, b) < 0.3 * radius) & (np.maximum(a, b) < radius),
        }[int(kind)]
        picture = np.where(inside[..., None], texture(random, down, right, 110, 230), picture)
        mask[inside] = kind
    picture = picture * camera["gain"] + random.normal(0, camera["noise"], picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8), mask


def texture(random, down, right, dark, bright):
    angle, period, depth = random.uniform(0, np.pi), random.uniform(3, 12), random.uniform(5, 30)
    waves = np.sin((np.cos(angle) * down + np.sin(angle) * right) * 2 * np.pi / period)
    return random.uniform(dark, bright, 3) + depth * waves[..., None]


def forecast(args, random):
    """float32[boards, hours] of electrical load in kW: days and weeks, weather that wanders, and
    people. The last fifth of every household is the test set."""
    hours = np.arange(HOURS)
    series = [household(random, hours) for _ in range(args.boards)]
    split = len(hours) * 4 // 5
    # a window of the test set may look back into what came before
    test = {"series": np.stack([s[split - 96 :] for s in series])}
    for folder, own in boards(args):
        save(folder, {"series": np.stack([series[k][:split] for k in own])}, test)


def household(random, hours):
    day, week = 2 * np.pi * hours / 24, 2 * np.pi * hours / 168
    phase, weekly, size = random.uniform(0, 2 * np.pi, 3), random.uniform(0.05, 0.3), random.uniform(0.5, 4)
    daily = random.uniform(0.2, 0.5, 3) * [1, 0.6, 0.4]
    usual = 1 + weekly * np.sin(week + phase[0])
    for k, strength in enumerate(daily, 1):
        usual = usual + strength * np.sin(k * day + phase[k - 1])
    weather = np.zeros(len(hours))
    shocks = random.normal(0, random.uniform(0.03, 0.08), len(hours))
    for t in range(1, len(hours)):
        weather[t] = 0.97 * weather[t - 1] + shocks[t]
    people = random.random(len(hours)) < 0.04  # an oven, a car
    load = usual + weather + people * random.exponential(0.6, len(hours))
    return (size * np.maximum(load, 0.05)).astype(np.float32)


def anomalies(args, random):
    """float32[n, 128] windows of vibration; in the test set `y` is 1 where the machine has a
    fault."""
    machines = [
        {"turns": random.uniform(3, 9), "tones": random.uniform(0.2, 1, 4), "noise": random.uniform(0.1, 0.25)}
        for _ in range(args.boards)
    ]
    each, tests = args.train // args.boards, args.test // args.boards
    parts = [np.stack([vibration(random, m) for _ in range(each)]) for m in machines]
    faults = ("", "", "", "", "bearing", "loose", "clipped", "shifted")  # every second one is healthy
    test = {
        "x": np.stack([vibration(random, m, faults[k % 8]) for m in machines for k in range(tests)]),
        "y": np.array([int(bool(faults[k % 8])) for _ in machines for k in range(tests)]),
    }
    for folder, own in boards(args):
        save(folder, {"x": np.concatenate([parts[k] for k in own])}, test)


def vibration(random, machine, fault=""):
    time = np.arange(128) / 128
    turns = machine["turns"] * random.normal(1, 0.01)
    if fault == "shifted":
        turns *= random.choice([0.85, 1.15])
    phase = random.uniform(0, 1)
    wave = sum(tone * np.sin(2 * np.pi * (k + 1) * (turns * time + phase)) for k, tone in enumerate(machine["tones"]))
    if fault == "bearing":  # an impact each third of a turn
        wave += 1.2 * ((3 * turns * time + random.uniform()) % 1 < 0.08)
    if fault == "loose":  # half the frequency
        wave += 0.6 * np.sin(np.pi * (turns * time + phase))
    if fault == "clipped":
        wave = np.clip(wave, -0.5, 0.5)
    return (wave + random.normal(0, machine["noise"], 128)).astype(np.float32)


def text(args, random):
    """Lines of `class <tab> passage`; `classes.txt` has the names."""
    passages = [(p, c) for c, words in texts_by_class(args).items() for p in cut(words, args.words)]
    names = sorted({name for _, name in passages})
    labels = np.array([names.index(name) for _, name in passages])
    rows = random.permutation(len(passages))
    test, train = rows[: args.test], rows[args.test :][: args.train]
    lines = [f"{label}\t{passage}\n" for (passage, _), label in zip(passages, labels, strict=True)]
    for folder, own in shares(args, labels[train], random):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.tsv").write_text("".join(lines[k] for k in train[own]), encoding="utf-8")
        (folder / "test.tsv").write_text("".join(lines[k] for k in test), encoding="utf-8")
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def texts_by_class(args):
    """{class: words}. Of one text: what its longest articles, or speakers, say."""
    if args.source.is_dir():
        texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(args.source.glob("*.txt"))}
    else:
        parts, whole = defaultdict(list), args.source.read_text(encoding="utf-8")
        _, *articles = re.split(r"^ = ([^=].*) = $", whole, flags=re.MULTILINE)
        for title, article in zip(articles[::2], articles[1::2], strict=True):
            parts[title].append(article)
        for block in [] if parts else whole.split("\n\n"):
            speaker, colon, said = block.strip().partition(":\n")
            if colon:
                parts[speaker].append(said)
        texts = {name: " ".join(said) for name, said in parts.items()}
        longest = sorted(texts, key=lambda name: -len(texts[name]))[: args.classes]
        texts = {name: texts[name] for name in longest}
    return {name: re.findall(r"[A-Za-z']+|[.,;:!?-]", words) for name, words in texts.items()}


def cut(words, length):
    return [" ".join(words[k : k + length]) for k in range(0, len(words) - length + 1, length)]


def gpt(args, random):
    """Plain text: each board a stretch of its own. The last tenth is the test set."""
    paths = sorted(args.source.glob("*.txt")) if args.source.is_dir() else [args.source]
    whole = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    split = len(whole) * 9 // 10
    ends = np.linspace(0, split, args.boards + 1).astype(int)
    for folder, own in boards(args):
        folder.mkdir(parents=True, exist_ok=True)
        part = "".join(whole[ends[k] : ends[k + 1]] for k in own)
        (folder / "train.txt").write_text(part, encoding="utf-8")
        (folder / "test.txt").write_text(whole[split:], encoding="utf-8")


def boards(args):
    """Yield each folder and the boards whose part it holds."""
    width = len(str(args.boards - 1))  # of twelve boards the second is board-01, as `edgegossip run` names it
    for k in range(args.boards):
        yield args.out / f"board-{k:0{width}}", [k]
    yield args.out / "all", list(range(args.boards))


def shares(args, labels, random):
    """Yield each folder and the rows that it holds."""
    order = np.argsort(labels, kind="stable") if args.by_class else random.permutation(len(labels))
    if args.by_class:  # cut where a class ends, if there are as many boards as classes or fewer
        count = int(labels.max()) + 1
        owner = np.arange(count) * args.boards // count
        parts = [order[owner[labels[order]] == k] for k in range(args.boards)]
    else:
        parts = np.array_split(order, args.boards)
    for folder, own in boards(args):
        yield folder, np.concatenate([parts[k] for k in own])


def save(folder, train, test):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", **train)
    np.savez(folder / "test.npz", **test)


def stacked(scenes):
    return {"x": np.stack([s[0] for s in scenes]), "y": np.stack([s[1] for s in scenes])}


KINDS = {
    "images": images,
    "segmentation": segmentation,
    "forecast": forecast,
    "text": text,
    "gpt": gpt,
    "anomalies": anomalies,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="real data")
    parser.add_argument("--boards", type=int, default=4)
    parser.add_argument("--by-class", action="store_true", help="each board has other classes")
    parser.add_argument("--train", type=int, default=6000, help="training examples of all boards")
    parser.add_argument("--test", type=int, default=1000, help="test examples")
    parser.add_argument("--classes", type=int, default=6, help="text: how many articles, or speakers")
    parser.add_argument("--words", type=int, default=20, help="text: words of a passage")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.kind in ("text", "gpt") and args.source is None:
        parser.error(f"{args.kind} needs --from FILE: a text, or a folder of texts")
    KINDS[args.kind](args, np.random.default_rng(args.seed))
    print(f"{args.out}: {args.boards} boards and all of it")


if __name__ == "__main__":
    main()
