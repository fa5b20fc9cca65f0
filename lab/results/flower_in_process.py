"""Plays Flower's strategies in this process, as they are and compressed, among clients that do not
always answer as one would like. `flower_examples.py --in-process` makes a page of it."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.common import serde
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from edgegossip import codecs
from edgegossip.flower import compressed, compression_mod
from edgegossip.flower._private.runtime import SERVER_NODE_ID, serve_run
from edgegossip.flower.combine import BoardGrid
from edgegossip.sweep.results import Result
from edgegossip.types import UsageError
from lab.results import resumable

CODECS = {  # column -> codec up, codec down
    "stock": None,
    "fp32": ("fp32", None),
    "minmax8": ("minmax8", None),
    "dither": ("dither", None),
    "deadzone": ("deadzone", None),
    "co3": ("co3", None),
    "co3, 4 bits down": ("co3", "4-bit-elastiquant"),
}
CLIENTS = 7  # of which one fails and one is late, and Bulyan needs three
INPUTS, OUTPUTS, ROWS = 24, 12, 64


def copied(message: Message) -> Message:
    """Return a message as it comes out of a network."""
    data = serde.message_to_proto(message).SerializeToString()
    return serde.message_from_proto(MessageProto.FromString(data))


class InProcess(BoardGrid):
    """Clients of an app in this process: all messages and contexts go through their bytes. `lost`
    says whose answer never comes."""

    def __init__(self, app: ClientApp, clients: int, lost: Callable[[Message], bool], config: Any = None) -> None:
        super().__init__(range(2, clients + 2))
        places = [{"partition-id": k, "num-partitions": clients, "dataset-path": str(k)} for k in range(clients)]
        self._contexts = {k + 2: Context(1, k + 2, places[k], RecordDict(), config or {}) for k in range(clients)}
        self._app, self._lost = app, lost
        self.errors: list[str] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        del timeout
        asked = sorted(messages, key=lambda m: m.metadata.dst_node_id)
        return [copied(reply) for m in asked if not self._lost(reply := self._answer(copied(m)))]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = serde.context_to_proto(self._contexts[node]).SerializeToString()
        mine = serde.context_from_proto(ContextProto.FromString(context))
        try:
            reply = self._app(message, mine)
        except Exception as error:  # as Flower's supernode does
            self.errors.append(f"{type(error).__name__}: {error}")
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        self._contexts[node] = mine
        return reply


@dataclass(frozen=True, slots=True)
class Case:
    """Makes a strategy, and says what it needs: mods of its clients in training, no integer that it
    could not clip or scale, an update of everybody (Flower divides by its norm), or trees."""

    make: Callable[..., Strategy]
    mods: tuple[Any, ...] = ()
    counter: bool = True
    all_train: bool = False
    trees: bool = False


def _private(wrapper: Callable[..., Strategy], *args: Any, mods: tuple[Any, ...] = ()) -> Case:
    return Case(lambda **kwargs: wrapper(FedAvg(**kwargs), *args), mods, counter=False, all_train=True)


STRATEGIES: dict[str, Case] = {
    "FedAvg": Case(flower.FedAvg),
    "FedAvgM": Case(flower.FedAvgM),
    "FedMedian": Case(flower.FedMedian),
    "FedTrimmedAvg": Case(flower.FedTrimmedAvg),
    "FedAdagrad": Case(flower.FedAdagrad),
    "FedAdam": Case(flower.FedAdam),
    "FedYogi": Case(flower.FedYogi),
    "Krum": Case(flower.Krum),
    "MultiKrum": Case(flower.MultiKrum),
    "Bulyan": Case(flower.Bulyan),
    "FedXgbCyclic": Case(flower.FedXgbCyclic),
    "FedXgbBagging": Case(flower.FedXgbBagging, trees=True),
    "FedProx": Case(lambda **kwargs: flower.FedProx(proximal_mu=0.1, **kwargs)),
    "QFedAvg": Case(lambda **kwargs: flower.QFedAvg(client_learning_rate=0.1, **kwargs), counter=False),
    "DifferentialPrivacyServerSideFixedClipping": _private(
        flower.DifferentialPrivacyServerSideFixedClipping, 0.0, 20.0, CLIENTS
    ),
    "DifferentialPrivacyClientSideFixedClipping": _private(
        flower.DifferentialPrivacyClientSideFixedClipping, 0.0, 20.0, CLIENTS, mods=(fixedclipping_mod,)
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": _private(
        flower.DifferentialPrivacyServerSideAdaptiveClipping, 0.0, CLIENTS, 20.0, 0.5, 0.2, 0.0
    ),
    "DifferentialPrivacyClientSideAdaptiveClipping": _private(
        flower.DifferentialPrivacyClientSideAdaptiveClipping,
        0.0,
        CLIENTS,
        20.0,
        0.5,
        0.2,
        0.0,
        mods=(adaptiveclipping_mod,),
    ),
}
CONDITIONS = ("all answer well", "nothing trained, NaN, lists", "failures, late answers")


def first_model(case: Case) -> ArrayRecord:
    """Return a layer with batch norm before it, or no tree yet."""
    if case.trees:
        return ArrayRecord({"0": Array(np.zeros(0, np.uint8))})
    rng = np.random.default_rng(0)
    arrays = {
        "norm.weight": np.ones(INPUTS),
        "norm.bias": np.zeros(INPUTS),
        "norm.running_mean": np.zeros(INPUTS),
        "norm.running_var": np.ones(INPUTS),
        "weight": rng.normal(0, 0.1, (INPUTS, OUTPUTS)),
        "bias": np.zeros(OUTPUTS),
    }
    record = {name: Array(value.astype(np.float32)) for name, value in arrays.items()}
    return ArrayRecord(record | ({"norm.num_batches_tracked": Array(np.asarray(0))} if case.counter else {}))


_TREE = {"gbtree_model_param": {"num_trees": "1", "num_parallel_tree": "1"}, "iteration_indptr": [0, 1]}
_BOOSTER = {"learner": {"gradient_booster": {"model": _TREE | {"trees": [{"id": 0}], "tree_info": [0]}}}}
ONE_TREE = Array(np.frombuffer(json.dumps(_BOOSTER).encode(), np.uint8))


class Layer:
    """Learns a linear map of standardised inputs, whose scales differ a hundred times."""

    def __init__(self, client: int) -> None:
        rng, true = np.random.default_rng(client + 1), np.random.default_rng(99).normal(size=(INPUTS, OUTPUTS))
        z = rng.normal(size=(ROWS, INPUTS))
        self.x = (z * np.geomspace(0.03, 3.0, INPUTS) + np.linspace(-2, 2, INPUTS)).astype(np.float32)
        self.y = (z @ true + 0.1 * rng.normal(size=(ROWS, OUTPUTS))).astype(np.float32)

    def normed(self, p: Mapping[str, Any], mean: Any, var: Any) -> Any:
        return (self.x - mean) / np.sqrt(var + np.float32(1e-5)) * p["norm.weight"] + p["norm.bias"]

    def loss(self, p: Mapping[str, Any]) -> float:
        h = self.normed(p, p["norm.running_mean"], p["norm.running_var"])
        return float(np.mean((h @ p["weight"] + p["bias"] - self.y) ** 2))

    def train(self, p: dict[str, Any], steps: int = 4) -> None:
        mean, var = self.x.mean(0), self.x.var(0)
        for _ in range(steps):
            h = self.normed(p, mean, var)
            g = (h @ p["weight"] + p["bias"] - self.y) / np.float32(ROWS)
            p["weight"], p["bias"] = p["weight"] - np.float32(0.3) * (h.T @ g), p["bias"] - np.float32(0.3) * g.sum(0)
            for name, value in (("mean", mean), ("var", var)):
                p[f"norm.running_{name}"] += np.float32(0.3) * (value - p[f"norm.running_{name}"])
        if "norm.num_batches_tracked" in p:
            p["norm.num_batches_tracked"] = np.asarray(p["norm.num_batches_tracked"] + steps)


def make_app(condition: str, case: Case, mods: Sequence[Any]) -> ClientApp:
    """Return an app whose clients 1 to 3 do as the condition says."""
    app, dtypes = ClientApp(mods=list(mods)), {k: a.dtype for k, a in first_model(case).items()}

    def opened(message: Message, context: Context) -> tuple[int, Layer, dict[str, Any]]:
        k, record = int(context.node_config["partition-id"]), message.content["arrays"]
        return k, Layer(k), {name: np.asarray(a.numpy(), dtypes[name]) for name, a in record.items()}

    @app.train(mods=list(case.mods))
    def train(message: Message, context: Context) -> Message:
        if case.trees:
            tree = {"arrays": ArrayRecord({"0": ONE_TREE}), "metrics": MetricRecord({"num-examples": ROWS})}
            return Message(RecordDict(tree), reply_to=message)
        k, layer, p = opened(message, context)
        odd = condition.startswith("nothing")
        if condition.startswith("failures") and k == 1:
            raise RuntimeError("out of memory")
        if case.all_train or not (odd and k == 1):
            layer.train(p)
        metrics: dict[str, Any] = {"num-examples": ROWS + k, "train_loss": layer.loss(p), "accuracy": 0.5}
        if odd:
            metrics |= {"accuracy": float("nan") if k == 2 else 0.5, "steps": [1.0] * (k + 1)}
        arrays = ArrayRecord({name: Array(value) for name, value in p.items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        k, layer, p = (0, None, {}) if case.trees else opened(message, context)
        metrics = {"num-examples": ROWS + k, "loss": layer.loss(p) if layer else 0.0}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


@dataclass(slots=True)
class Played:
    """Holds what came of a run."""

    counted: list[str] = field(default_factory=list)  # results and failures, as Flower logs them
    arrays: ArrayRecord | None = None
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    said: str = ""  # why there is no model
    warnings: list[str] = field(default_factory=list)

    def finite(self) -> bool:
        """Return whether nothing in the model or its losses is NaN, and no variance negative."""
        arrays = {k: a.numpy() for k, a in (self.arrays or {}).items()}
        sound = all(np.isfinite(a).all() for a in arrays.values()) and bool(np.isfinite(self.losses).all())
        return sound and all((a >= 0).all() for k, a in arrays.items() if k.endswith("running_var"))


@contextlib.contextmanager
def heard(played: Played) -> Iterator[None]:
    """Keep what Flower and we log, and nothing else of it."""
    handler = logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        text = record.getMessage()
        if found := re.search(r"(aggregate_\w+: Received \d+ results and \d+ failures)", text):
            played.counted.append(found[1])
        if record.name.startswith("edgegossip") and record.levelno >= logging.WARNING:
            played.warnings.append(text)

    handler.emit = emit  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("flwr", "edgegossip")]
    before = [(x.handlers, x.propagate, x.level) for x in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def play(name: str, condition: str, column: str, rounds: int = 4) -> Played:
    """Play a strategy of Flower's among such clients with the codecs of a column."""
    case, pair, made = STRATEGIES[name], CODECS[column], Played()
    serve_run(task_id=SERVER_NODE_ID, run_id=1)
    with heard(made):
        lists = {"train_metrics_aggr_fn": _longest} if condition.startswith("nothing") and not case.trees else {}
        strategy, mods = case.make(**lists), []
        if pair is not None:
            up, down = codecs.get(pair[0]), codecs.get(pair[1]) if pair[1] else None
            strategy, mods = compressed(strategy, up, downlink=down), [compression_mod(up, downlink=down)]
        late = 3 if condition.startswith("failures") else None

        def lost(reply: Message) -> bool:  # the client of an odd round's training or of an even one's evaluation
            seen[reply.metadata.message_type] = seen.get(reply.metadata.message_type, 0) + 1
            turn = (seen[reply.metadata.message_type] - 1) // CLIENTS
            wanted = "train" if turn % 2 else "evaluate"
            return reply.metadata.src_node_id == late and reply.metadata.message_type == wanted

        seen: dict[str, int] = {}
        grid = InProcess(make_app(condition, case, mods), CLIENTS, lost)
        random.seed(1)
        try:
            result = strategy.start(grid, first_model(case), num_rounds=rounds)
        except UsageError as error:
            made.said = f"declined: {error}"
        except Exception as error:
            made.said = f"{type(error).__name__}: {error}"
        else:
            made.arrays = result.arrays
            made.metrics = {k: dict(found) for k, found in result.train_metrics_clientapp.items()}
            made.losses = [float(m["loss"]) for m in result.evaluate_metrics_clientapp.values()]
    return made


def _longest(contents: list[RecordDict], key: str) -> MetricRecord:
    """Return metrics of lists of other lengths, as an app's own function makes them."""
    del key
    return MetricRecord({"steps": max(len(content["metrics"]["steps"]) for content in contents)})


def problems(stock: Played, ours: Played, exact: bool) -> list[str]:
    """Return in what a compressed run is not as the stock one."""
    if stock.said or ours.said:
        same = ours.said.startswith("declined") or bool(stock.said) == bool(ours.said)
        return [] if same else [f"ended by {ours.said or stock.said}"]
    found = []
    if ours.counted != stock.counted:
        found.append("other clients counted")
    if {k: set(m) for k, m in ours.metrics.items()} != {k: set(m) for k, m in stock.metrics.items()}:
        found.append("other metrics")
    a, b = stock.arrays or {}, ours.arrays or {}
    if list(a) != list(b) or any(a[k].dtype != b[k].dtype or a[k].shape != b[k].shape for k in a):
        found.append("other arrays")
    elif exact and any(a[k].data != b[k].data for k in a):
        found.append("not equal to the bit")
    if stock.finite() and not ours.finite():
        found.append("NaN or a negative variance")
    return found


def row(name: str, condition: str, columns: Iterable[str] = CODECS, rounds: int = 4) -> Result:
    """Return what came of a strategy among such clients, by codec."""
    stock = play(name, condition, "stock", rounds)
    return compared(name, condition, stock, lambda column: play(name, condition, column, rounds), columns)


def compared(
    name: str, condition: str, stock: Played, play_with: Callable[[str], Played], columns: Iterable[str] = CODECS
) -> Result:
    """Return what came of stock and of the codecs of each column."""
    cells, bad = {}, {}
    for column in columns:
        ours = stock if column == "stock" else play_with(column)
        if wrong := problems(stock, ours, exact=column == "fp32"):
            bad[column] = ", ".join([*wrong, *ours.warnings[:1]])
        cells[column] = ours.said.partition(":")[0] or (ours.losses[-1] if ours.losses else None)
    return {"strategy": name, "clients": condition, "counted": stock.counted, "losses": cells, "problems": bad}


def write(out: Path, only: Sequence[str], examples: Mapping[str, Callable[[], Result]]) -> int:
    """Play what is not in the JSON beside `out` yet, write both, and return the exit code.
    `examples`: those of Flower's by name."""
    makers = {(name, c): functools.partial(row, name, c) for name in STRATEGIES for c in CONDITIONS}
    makers |= {(name, CONDITIONS[0]): make for name, make in examples.items()}
    results = resumable.finished(out)
    done = {(r["strategy"], r["clients"]) for r in results}
    for (name, condition), make in makers.items():
        if (name, condition) not in done and (not only or name in only):
            results.append(make())
            print(results[-1], flush=True)
            resumable.write_page(out, results, table(results))
    resumable.write_page(out, results, table(results))
    return int(any(r["problems"] for r in results))


def table(results: Sequence[Result]) -> str:
    columns = [f"loss with {column}" if column != "stock" else "loss, stock" for column in CODECS]
    rows = ["strategy", "clients", "as stock", *columns]
    rows = [f"| {' | '.join(rows)} |", f"|{' --- |' * len(rows)}"]
    for r in results:
        cells = [f"{x:.3f}" if isinstance(x, float) else str(x or "") for x in r["losses"].values()]
        good = "; ".join(f"{k}: {why}" for k, why in r["problems"].items()) or "yes"
        rows.append(f"| {' | '.join([r['strategy'], r['clients'], good, *cells])} |")
    return "\n".join(rows)


def settings_table() -> str:
    return "\n".join(f"- {condition}" for condition in CONDITIONS)
