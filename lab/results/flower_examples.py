#!/usr/bin/env python3
"""Run examples of Flower's repository as they are and compressed, and write one table.

    python -m lab.results.flower_examples FLOWER --images DIR --articles wikitext.txt \
        --plays shakespeare.txt --work DIR [--only EXAMPLE...]
    python -m lab.results.flower_examples --in-process [FLOWER] [--only STRATEGY...]

FLOWER is a checkout of Flower's repository (its folder `examples` is read). `flwr run` plays each
example in Flower's simulation engine: a copy as it is, and one with a line for the strategy, one
for the mod, and the import that each needs.

Examples load data and models by name from the internet. Here the same loaders find folders of these
names where the app runs: CIFAR-10 and Fashion-MNIST (a part of what is in DIR), iris from
scikit-learn, and in place of IMDB lines of the two texts (which one is it from?) with a small BERT
that has learned nothing yet.

With --in-process clients are in this process, no network and no simulation engine between:
every strategy of Flower's among clients that answer well and badly and, of FLOWER, five more
examples on data of our own, each stock and with every codec (`flower_in_process.py`).

It wants flwr[simulation], flwr-datasets, evaluate, wandb, torchvision, transformers, tensorboard
and scikit-learn beside edgegossip. What was made is in `--out` and the JSON beside it, and is not
made again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgegossip.flower.superlink import QUIET, free_port
from edgegossip.recipe import DataSection
from edgegossip.sweep.results import Result
from edgegossip.training.data import open_data
from lab.results import flower_in_process, resumable

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "lab/results/pages/flower-examples.md"
LIMIT_S = 600.0
IMPORT = "from edgegossip import codecs, flower"
CODECS = 'codecs.get("co3"), downlink=codecs.get("4-bit-elastiquant")'
MOD = "flower.compression_mod({})"
STRATEGY = "    strategy = flower.compressed(strategy, {})\n"
RUNS = ("stock", "compressed")

# The examples lag behind Flower: these names have moved since.
SITECUSTOMIZE_PY = """
import sys
import types

import flwr.app.user_config
import flwr.clientapp.typing
import flwr.common.typing

flwr.common.typing.UserConfig = flwr.app.user_config.UserConfig
sys.modules.setdefault("flwr.client.typing", flwr.clientapp.typing)
"""

ACCURACY_PY = """
import datasets
import evaluate
import numpy


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": float(numpy.mean(numpy.equal(predictions, references)))}
"""


@dataclass(frozen=True, slots=True)
class Example:
    data: str
    config: str  # for flwr run --run-config


EXAMPLES = {
    "quickstart-pytorch": Example("CIFAR-10, 8000 images", "num-server-rounds=4 learning-rate=0.02"),
    "custom-mods": Example("CIFAR-10, 8000 images", "num-server-rounds=4 learning-rate=0.02"),
    "advanced-pytorch": Example("Fashion-MNIST, 8000 images", "num-server-rounds=4 fraction-train=1.0"),
    "quickstart-sklearn": Example("iris, 150 flowers", ""),
    "quickstart-huggingface": Example("3000 lines of articles and plays", "fraction-train=1.0 fraction-evaluate=1.0"),
}


def write_images(folder: Path, source: str, column: str, images: Path) -> None:
    """Write 8000 images to train on and 2000 to test with, as loaders of `datasets` read them."""
    from datasets import ClassLabel, Dataset, Features, Image
    from PIL import Image as Picture

    data = open_data(DataSection(name=source, dir=str(images)))
    folder.mkdir(parents=True)
    for split, part, count in (("train", data.train, 8000), ("test", data.test, 2000)):
        pixels = np.moveaxis(part.inputs.take(np.arange(count)), 1, -1)
        pictures = [Picture.fromarray(p.squeeze()) for p in pixels]
        features = Features({column: Image(), "label": ClassLabel(num_classes=10)})
        labels = part.labels[:count].tolist()
        Dataset.from_dict({column: pictures, "label": labels}, features).to_parquet(folder / f"{split}.parquet")


def write_iris(folder: Path) -> None:
    from datasets import Dataset
    from sklearn.datasets import load_iris

    found, names = load_iris(), ("sepal_length", "sepal_width", "petal_length", "petal_width")
    folder.mkdir(parents=True)
    columns = {name: found.data[:, k].tolist() for k, name in enumerate(names)}
    Dataset.from_dict({**columns, "species": found.target.tolist()}).to_parquet(folder / "train.parquet")


def write_text(folder: Path, articles: Path, plays: Path) -> list[str]:
    """Write as many lines of the one as of the other; return them."""
    from datasets import Dataset

    kinds = []
    for path in (articles, plays):
        words = path.read_text().split()
        kinds.append([" ".join(words[k : k + 30]) for k in range(0, 30 * 1500, 30)])
    folder.mkdir(parents=True)
    text, label = [*kinds[0], *kinds[1]], [0] * 1500 + [1] * 1500
    Dataset.from_dict({"text": text, "label": label}).to_parquet(folder / "train.parquet")
    return text


def write_bert(folder: Path, text: Sequence[str]) -> None:
    """Write a BERT with the sizes of bert-tiny, drawn anew, and a tokenizer for this text."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(text, vocab_size=4000)
    pieces.save_model(str(folder))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(1)
    sizes = BertConfig(
        vocab_size=pieces.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    BertForSequenceClassification(sizes).save_pretrained(folder)


def write_metric(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "accuracy.py").write_text(ACCURACY_PY)


def prepare(folder: Path, arguments: argparse.Namespace) -> None:
    """Write every data set and model under the name by which an example asks for it."""
    if folder.exists():
        return
    making = folder.with_suffix(".part")
    shutil.rmtree(making, ignore_errors=True)
    write_images(making / "uoft-cs/cifar10", "cifar10", "img", arguments.images)
    write_images(making / "zalando-datasets/fashion_mnist", "fashion-mnist", "image", arguments.images)
    write_iris(making / "hitorilabs/iris")
    text = write_text(making / "stanfordnlp/imdb", arguments.articles, arguments.plays)
    write_bert(making / "prajjwal1/bert-tiny", text)
    write_metric(making / "accuracy")
    making.rename(folder)


def compress(app: Path, pair: str = CODECS) -> None:
    """Put the two lines and their imports into an example."""
    server, client = (next(app.glob(f"*/{name}_app.py")) for name in ("server", "client"))
    edit(server, "    result = strategy.start(\n", lambda found: STRATEGY.format(pair) + found)
    mod = MOD.format(pair)
    if "    mods=[\n" in client.read_text():
        edit(client, "    mods=[\n", lambda found: f"{found}        {mod},\n")
    else:
        edit(client, "app = ClientApp()\n", lambda found: f"app = ClientApp(mods=[{mod}])\n")


def edit(path: Path, found: str, by: Callable[[str], str]) -> None:
    text = path.read_text()
    if text.count(found) != 1:
        raise SystemExit(f"{path} has no single line {found.strip()!r}: this is another version of the example")
    path.write_text(re.sub(r"\n(?=import |from )", f"\n{IMPORT}\n", text.replace(found, by(found)), count=1))


def play(name: str, run: str, arguments: argparse.Namespace, data: Path) -> Result:
    home = arguments.work / f"{name}-{run}"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(arguments.flower / "examples" / name, home / "app")
    for folder in data.iterdir():
        (home / folder.name).symlink_to(folder)
    if run == "compressed":
        compress(home / "app")
    (home / "sitecustomize.py").write_text(SITECUSTOMIZE_PY)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "simulation"\n\n[superlink.simulation]\noptions.num-supernodes = {arguments.clients}\n'
        "options.backend.client-resources.num-cpus = 1\n"
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = {
        "FLWR_HOME": str(home),
        "HF_HOME": str(arguments.work / "cache"),
        "PATH": path,
        "PYTHONPATH": f"{home}{os.pathsep}{ROOT}",
    }
    ports = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
    places |= {name: str(free_port("127.0.0.1", 0)) for name in ports}
    program = Path(sys.executable).with_name("flwr")
    command = [str(program), "run", "app", "--stream"]
    config = EXAMPLES[name].config
    begun = time.monotonic()
    try:
        with (home / "log").open("w") as log:
            subprocess.run(
                [*command, "--run-config", config] if config else command,
                cwd=home,
                env={**os.environ, **QUIET, **offline, **places},
                stdout=log,
                stderr=log,
                timeout=LIMIT_S,
            )
    except subprocess.TimeoutExpired:
        pass  # the log says how far it came
    finally:
        stop_superlink(home)
    line: Result = {"example": name, "run": run, "clients": arguments.clients, "config": config}
    line |= {"flower": arguments.flower_commit or commit(arguments.flower)}
    line |= {"date": str(datetime.datetime.now(datetime.UTC).date()), "seconds": round(time.monotonic() - begun)}
    return line | outcome((home / "log").read_text(errors="replace"), run)


def outcome(log: str, run: str) -> Result:
    """Return what Flower's log, and ours in it, say of a run."""
    scores = [float(x) for x in re.findall(r"'accuracy': (?:np\.float64\()?([\d.]+)", log)]
    losses = [float(x) for x in re.findall(r"'(?:test_log)?loss': (?:np\.float64\()?([\d.]+(?:e-?\d+)?)", log)]
    ratio = re.findall(r"edgegossip: round \d+: ([\d.]+) times fewer bytes", log)
    errors = re.findall(r"(?:Received|received) \d+ (?:results )?and ([1-9]\d*) (?:errors|failures)", log)
    if "Saving final model to disk" not in log or not scores or (run == "compressed" and not ratio):
        return {"failed": "did not end: see its log"}
    if errors:
        return {"failed": f"{len(errors)} times clients failed: see its log"}
    return {
        "accuracy": scores[-1],
        "loss": losses[-1] if losses else None,
        "fewer": float(ratio[-1]) if ratio else None,
    }


def stop_superlink(home: Path) -> None:
    """Stop the SuperLink that `flwr run` starts for simulations, and what it started: it stays for
    the next run."""
    import psutil

    left = [p for p in psutil.process_iter(["cmdline"]) if any(str(home) in word for word in p.info["cmdline"] or ())]
    left += [child for process in left for child in process.children(recursive=True)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)


def commit(folder: Path) -> str:
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True).stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flower", type=Path, nargs="?")
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--flower-commit", default="", help="where FLOWER is no git checkout")
    for name in ("--images", "--articles", "--plays", "--work"):
        parser.add_argument(name, type=lambda text: Path(text).resolve())
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=RUNS)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.in_process:
        out = arguments.out or OUT.with_name("flower-strategies.md")
        return flower_in_process.write(out, arguments.only, in_process_examples(arguments.flower))
    if None in (arguments.flower, arguments.images, arguments.articles, arguments.plays, arguments.work):
        parser.error("FLOWER, --images, --articles, --plays and --work are needed, or --in-process")
    arguments.out = arguments.out or OUT
    arguments.work.mkdir(parents=True, exist_ok=True)
    prepare(arguments.work / "data", arguments)
    results = resumable.finished(arguments.out)
    for name in arguments.only or EXAMPLES:
        for run in arguments.runs:
            if any((r["example"], r["run"]) == (name, run) for r in results):
                continue
            results.append(play(name, run, arguments, arguments.work / "data"))
            print(results[-1], flush=True)
            resumable.write_page(arguments.out, results, table(results))
    resumable.write_page(arguments.out, results, table(results))
    return resumable.exit_code(results)


def in_process_examples(flower: Path | None) -> Mapping[str, Callable[[], Result]]:
    """Return what plays the examples that are in a checkout of Flower's."""
    if flower is None:
        return {}
    from lab.results import flower_apps

    return flower_apps.makers(flower, compress)


def table(results: Sequence[Result]) -> str:
    rows = resumable.heading("example, data, clients, run, accuracy, loss, times fewer bytes than fp32, seconds")
    for r in results:
        fewer = r.get("fewer") or ""
        loss = f"{r['loss']:.4f}" if r.get("loss") is not None else ""
        found = r["failed"] if "failed" in r else f"{r['accuracy']:.3f}"
        cells = (r["example"], EXAMPLES[r["example"]].data, r["clients"], r["run"], found, loss, fewer, r["seconds"])
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def settings_table() -> str:
    return "\n".join(f"- {name}: `{e.config}`" for name, e in EXAMPLES.items() if e.config)


if __name__ == "__main__":
    sys.exit(main())
