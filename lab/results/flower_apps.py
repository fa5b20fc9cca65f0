"""Plays five of Flower's examples in this process, as they are but for the data, and with two lines
more (`flower_examples.compress`). `flower_examples.py --in-process FLOWER` puts them into the page
of `flower_in_process.py`.

The examples load data from the internet, by packages that are not needed then. Here their loaders
give pictures of digits, and a table drawn at random; the packages are empty ones where they are not
installed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import os
import random
import shutil
import sys
import tempfile
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import Strategy
from torch.utils.data import DataLoader, TensorDataset

from edgegossip.flower._private.runtime import SERVER_NODE_ID, serve_run
from edgegossip.recipe import DataSection
from edgegossip.sweep.results import Result
from edgegossip.training.data import open_data
from lab.results import flower_in_process as in_process

CLIENTS, EXAMPLES_EACH = 4, 320
NEEDED = (
    "flwr_datasets",
    "flwr_datasets.partitioner",
    "sklearn",
    "sklearn.compose",
    "sklearn.model_selection",
    "sklearn.pipeline",
    "sklearn.preprocessing",
    "torchvision",
    "torchvision.transforms",
)


class _Anything(types.ModuleType):
    """Stands for a package of which only the names are needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def digits(client: int, key: str, channels: int, side: int) -> list[dict[str, Any]]:
    """Return pictures of digits with labels, as large as an example wants them."""
    part = open_data(DataSection(name="digits")).train
    rows = np.arange(client * EXAMPLES_EACH, (client + 1) * EXAMPLES_EACH)
    images = np.kron(part.inputs.take(rows).reshape(-1, 8, 8) / 16, np.ones((1, side // 8, side // 8), np.float32))
    pad = (side - images.shape[1]) // 2
    images = np.pad(images, ((0, 0), (pad, pad), (pad, pad)))[:, None].repeat(channels, 1).astype(np.float32)
    labels = part.labels[rows]
    return [{key: torch.from_numpy(x), "label": int(y)} for x, y in zip(images, labels, strict=True)]


def _pictures(key: str, channels: int, side: int, loaders: int) -> Callable[..., Any]:
    def load(client: Any, *args: Any) -> Any:
        del args
        found = digits(int(client), key, channels, side)
        trained, rest = DataLoader(found[:256], batch_size=32, shuffle=True), DataLoader(found[256:], batch_size=32)  # type: ignore[arg-type]
        return (trained, *[rest] * (loaders - 1))

    return load


def _table(partition_id: int, num_partitions: int) -> Any:
    del num_partitions
    rng, true = np.random.default_rng(partition_id), np.random.default_rng(99).normal(size=14)
    x = rng.normal(size=(EXAMPLES_EACH, 14)).astype(np.float32)
    y = (x @ true + rng.normal(size=len(x)) > 0).astype(np.float32)[:, None]
    parts = [TensorDataset(*map(torch.from_numpy, (x[k], y[k]))) for k in (slice(0, 256), slice(256, None))]
    return DataLoader(parts[0], batch_size=32, shuffle=True), DataLoader(parts[1], batch_size=32)


EXAMPLES: Mapping[str, tuple[str, Callable[..., Any]]] = {  # the loader's name, and ours
    "quickstart-pytorch-lightning": ("load_data", _pictures("image", 1, 28, 3)),
    "federated-vae": ("load_data", _pictures("img", 3, 32, 2)),
    "embedded-devices": ("load_data_from_disk", _pictures("image", 1, 28, 2)),
    "supernode-authentication": ("load_data_from_disk", _pictures("img", 3, 32, 2)),
    "fl-tabular": ("load_data", _table),
}


@contextlib.contextmanager
def packages() -> Iterator[None]:
    """Let examples import what they need for their own data only. What would look for that itself
    is imported before."""
    for name in ("datasets", "pytorch_lightning"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    before = dict(sys.modules)
    missing = {name for name in {n.partition(".")[0] for n in NEEDED} if importlib.util.find_spec(name) is None}
    sys.modules.update({name: _Anything(name) for name in NEEDED if name.partition(".")[0] in missing})
    try:
        yield
    finally:
        for name in sys.modules.keys() - before.keys():
            if isinstance(sys.modules[name], _Anything):
                del sys.modules[name]


def play(flower: Path, name: str, column: str, compress: Callable[[Path, str], None]) -> in_process.Played:
    """Play an example with the codecs of a column."""
    made, pair = in_process.Played(), in_process.CODECS[column]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        shutil.copytree(flower.resolve() / "examples" / name, folder)
        package = next(folder.glob("*/server_app.py")).parent.name
        if pair is not None:
            down = f', downlink=codecs.get("{pair[1]}")' if pair[1] else ""
            compress(folder, f'codecs.get("{pair[0]}"){down}')
        config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        home = Path.cwd()
        sys.path.insert(0, str(folder))
        os.chdir(folder)
        try:
            with (
                in_process.heard(made),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                _run(package, EXAMPLES[name], config, made)
        finally:
            os.chdir(home)
            sys.path.remove(str(folder))
            for module in [m for m in sys.modules if m.partition(".")[0] == package]:
                del sys.modules[module]
    return made


def _run(package: str, loader: tuple[str, Callable[..., Any]], config: dict[str, Any], made: in_process.Played) -> None:
    serve_run(task_id=SERVER_NODE_ID, run_id=1)
    _seed()
    with packages():
        setattr(importlib.import_module(f"{package}.task"), *loader)
        client, server = (importlib.import_module(f"{package}.{part}_app") for part in ("client", "server"))
    _seed()
    before, results = Strategy.start, []

    def start(*args: Any, **kwargs: Any) -> Any:
        results.append(before(*args, **kwargs))
        return results[-1]

    start.__module__ = before.__module__
    Strategy.start = start  # type: ignore[method-assign]
    try:
        server.app(
            in_process.InProcess(client.app, CLIENTS, lambda reply: False, config),
            Context(1, 1, {}, RecordDict(), config),
        )
    except Exception as error:
        made.said = f"{type(error).__name__}: {error}"
        return
    finally:
        Strategy.start = before  # type: ignore[method-assign]
    made.arrays = results[-1].arrays
    made.metrics = {k: dict(found) for k, found in results[-1].train_metrics_clientapp.items()}
    found = list(results[-1].evaluate_metrics_clientapp.values())
    made.losses = [float(next(v for k, v in m.items() if k.endswith("loss"))) for m in found]  # type: ignore[arg-type]


def _seed() -> None:
    random.seed(1)
    torch.manual_seed(1)


def makers(flower: Path, compress: Callable[[Path, str], None]) -> dict[str, Callable[[], Result]]:
    """Return what plays each example with all codecs."""

    def made(name: str) -> Result:
        stock = play(flower, name, "stock", compress)
        if stock.said or any(" 0 results" in line for line in stock.counted):
            raise SystemExit(f"{name} does not train as it is: {stock.said or stock.counted}")
        return in_process.compared(name, "all answer well", stock, lambda column: play(flower, name, column, compress))

    return {name: functools.partial(made, name) for name in EXAMPLES}
