"""Puts Flower's strategies behind the server engine's interface: they choose boards and make the
next model of plain models.

Also what strategies need of their parameters and of a round, said before a round is lost to it.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from statistics import median_low
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Bulyan, FedAvg, FedTrimmedAvg, MultiKrum, Strategy
from typing_extensions import override

from edgegossip.choices import did_you_mean
from edgegossip.codecs.base import Ctx
from edgegossip.engine.combine import (
    Combined,
    Combiner,
    Mean,
    WeightedUpdate,
    length_of_trained,
)
from edgegossip.engine.plausible import NormFilter, length
from edgegossip.engine.server_boards import wanted
from edgegossip.engine.server_frames import Channel, finite_sum
from edgegossip.flower.messages import ARRAYS
from edgegossip.flower.records import conform, to_record
from edgegossip.frame import Aux
from edgegossip.gossip.outer import OuterOptimizer
from edgegossip.recipe import ServerSection
from edgegossip.types import ConfigError, NodeId, PeerError, Round, UsageError, Vec

WEIGHT = "num-examples"
_COMMON: dict[str, Any] = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": 1,
    "min_evaluate_nodes": 0,
    "min_available_nodes": 1,
}
# What a strategy is not told.
INSTEAD = (
    "fraction_train",
    "min_train_nodes",
    "min_available_nodes",
    "fraction_evaluate",
    "min_evaluate_nodes",
    "weighted_by_key",
    "arrayrecord_key",
    "configrecord_key",
    "train_metrics_aggr_fn",
    "evaluate_metrics_aggr_fn",
)
_OPTIMIZERS = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
_LOWEST = {"num_malicious_nodes": 0, "num_nodes_to_select": 1}
MUCH = 4.0  # some honest ones were over 4 times as far as the median, with alpha = 0.1, and are not 8 times as far
ROBUST = ("fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan")
_HALF = {"beta": FedTrimmedAvg}  # the share that is cut off at either end leaves something only below a half
MAKERS: dict[str, Callable[..., Strategy]] = {
    "fedavg": FedAvg,
    "scaffold": FedAvg,  # around which the engine keeps control variates
    "fedavgm": flower.FedAvgM,
    "fedadagrad": flower.FedAdagrad,
    "fedadam": flower.FedAdam,
    "fedyogi": flower.FedYogi,
    "fedmedian": flower.FedMedian,
    "fedtrimmedavg": flower.FedTrimmedAvg,
    "krum": flower.Krum,
    "multikrum": flower.MultiKrum,
    "bulyan": flower.Bulyan,
}


def make_strategy(name: str, params: Mapping[str, Any], outer: OuterOptimizer | None = None) -> Strategy:
    """Return Flower's strategy of this name, around which `outer` will be put.

    It takes whoever is asked; the coordinator decides who. Raises ConfigError."""
    if name not in MAKERS:
        raise ConfigError(f"server.strategy = {name}: not one of {', '.join(MAKERS)}{did_you_mean(name, MAKERS)}")
    if outer is not None and name in _OPTIMIZERS:
        raise ConfigError(
            f"server.strategy = {name} and outer.optimizer = {outer.kind}: {name} has an optimiser of its own around the "
            "rounds; say server.strategy = fedavg, or outer.optimizer = none"
        )
    if clash := sorted(set(params) & set(INSTEAD)):
        raise ConfigError(
            f"server.strategy_params.{clash[0]}: the coordinator does that itself; see server.fraction, server.min_nodes, "
            "server.weighting and [evaluation]"
        )
    _check_params(name, MAKERS[name], params)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # it would warn that it does not evaluate, which we do
    try:
        return MAKERS[name](**_COMMON, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"server.strategy_params of {name}: {error}") from None


def combiner(strategy: Strategy, channel: Channel, uniform: bool, malicious: int = 0) -> Combiner:
    """Return the streaming mean for plain FedAvg, which is the same and needs no model a board; the
    strategy for any other, which gets `nearest_means` where boards may be `malicious`. Raises
    ConfigError for one that would hardly learn with this codec."""
    _check_codec(strategy, channel)
    if type(strategy) is FedAvg and strategy.weighted_by_key == WEIGHT:
        return Mean(channel, uniform=uniform)
    return StrategyAdapter(strategy, channel, uniform, malicious)


def nearest_means(updates: Mapping[NodeId, Vec], malicious: int) -> dict[NodeId, Vec]:
    """Return in place of each update a mean of all n, float32[n] each, in which it stands for the
    `malicious` ones that are farthest from it itself. Where boards' data differ their updates do,
    and a strategy that picks some or the middle ones loses what only few boards know.

    As gossip's rule `nearest` (gossip/robust.py). In nearest neighbour mixing (Allouah et al.,
    "Fixing by mixing", 2023) the nearest share the weight of those left out, which costs more where
    liars are near the middle, for they are among everybody's nearest."""
    names = list(updates)
    far = np.zeros((len(names), len(names)))
    for i, one in enumerate(names):
        for j in range(i):
            far[i, j] = far[j, i] = length(updates[one] - updates[names[j]])
    means = {}
    for i, one in enumerate(names):
        pull = np.zeros_like(updates[one])
        for j in np.argsort(far[i], kind="stable")[: max(1, len(names) - malicious)]:
            pull += updates[names[j]] - updates[one]
        pull /= np.float32(len(names))
        pull += updates[one]
        means[one] = pull
    return means


def turned_against(updates: Mapping[NodeId, Vec]) -> dict[NodeId, float]:
    """Return how far each of these, float32[n], is turned away from most others: tan^2 of half the
    angle, (1 - cos) / (1 + cos), to the middle one of them; 1 for whatever is no more than at a
    right angle to it. Or, where that is more, its distance from the middle one in MUCH times the
    median board's.

    Distances alone do not tell who lies. Where labels differ from board to board, honest updates
    are a few times as long as others, and lie far from what a strategy picked; at right angles to
    each other, they are hardly ever turned against most."""
    names, sizes = list(updates), np.array([length(update) for update in updates.values()])
    if len(names) < 2:
        return dict.fromkeys(names, 1.0)
    cosines = np.zeros((len(names), len(names)))
    for i, one in enumerate(names):
        way = updates[one] / np.float32(sizes[i] or 1.0)
        for j in range(i):
            cosines[i, j] = cosines[j, i] = float(np.einsum("i,i->", way, updates[names[j]])) / (sizes[j] or 1.0)
    squares = sizes**2 + sizes[:, None] ** 2 - 2.0 * np.outer(sizes, sizes) * cosines
    others = ~np.eye(len(names), dtype=bool)
    angles, far = (
        np.array([np.median(row[here]) for row, here in zip(table, others, strict=True)])
        for table in (cosines, np.sqrt(np.maximum(squares, 0.0)))
    )
    turned = (1.0 - angles) / np.maximum(1.0 + angles, 1e-6)
    distant = far / (MUCH * median_low(far) or math.inf)
    return dict(zip(names, np.maximum(1.0, np.maximum(turned, distant)).tolist(), strict=True))


class StrategyAdapter(Combiner):
    """Shows a Flower strategy plain models, x + delta, as if boards had sent them."""

    def __init__(self, strategy: Strategy, channel: Channel, uniform: bool, malicious: int = 0) -> None:
        # Whoever bears liars does not weigh by what they claim.
        uniform = uniform or hasattr(strategy, "num_malicious_nodes")
        self._malicious, self._liars = malicious, _liars(strategy, malicious)
        self._strategy, self._channel, self._uniform = strategy, channel, uniform
        self._dtypes = {spec.name: "float32" for spec in channel.layout.tensors}
        self._proportion = NormFilter()

    @override
    def choose(self, round: Round, x: Vec, boards: Sequence[int]) -> list[int]:
        arrays = to_record(x, self._channel.layout)
        messages = self._strategy.configure_train(round + 1, arrays, ConfigRecord(), BoardGrid(boards))
        return [m.metadata.dst_node_id for m in messages]

    @override
    def combine(self, round: Round, x: Vec, shares: Sequence[WeightedUpdate]) -> Combined:
        deltas, refused = self._decoded(shares)
        layout = self._channel.layout
        lengths = {name: length_of_trained(delta, layout) for name, delta in deltas.items()}
        refused |= self._proportion.refused(lengths, x[: layout.trainable_size])
        against = turned_against({k: d[: layout.trainable_size] for k, d in deltas.items() if k not in refused})
        if self._malicious:
            deltas = nearest_means({k: delta for k, delta in deltas.items() if k not in refused}, self._malicious)
        replies: dict[NodeId, Message] = {}
        for share in shares:
            if share.name in refused:
                continue
            try:
                replies[share.name] = self._reply(share, finite_sum(x, deltas.pop(share.name)))
            except PeerError as error:
                refused[share.name] = str(error)
        if not replies:
            return Combined(None, refused)
        if lack := _too_few(self._strategy, self._liars, len(replies)):
            return Combined(None, refused, lack)
        try:
            strategy = _bearing(self._strategy, self._liars, len(replies))
            arrays, _ = strategy.aggregate_train(round + 1, list(replies.values()))
        except ValueError as error:  # such as updates that it cannot compare: this round changes nothing
            return Combined(None, refused | {s.name: f"the strategy could not use it: {error}" for s in shares})
        if arrays is None:
            name = type(self._strategy).__name__
            return Combined(None, refused, f"{name} made no model of {len(replies)} answers")
        arrays = conform(arrays, self._dtypes)
        model = layout.flatten({k: a.numpy() for k, a in arrays.items()})
        if not np.isfinite(model).all():
            return Combined(None, refused | {s.name: "the model would not be finite" for s in shares})
        used = {name: v for name, v in lengths.items() if name not in refused}
        self._proportion.used(used, x[: layout.trainable_size])
        return Combined(model, refused, distances={k: far for k, far in against.items() if k in replies})

    def _decoded(self, shares: Sequence[WeightedUpdate]) -> tuple[dict[NodeId, Vec], dict[NodeId, str]]:
        """Return every update that can be decoded, float32[n], and the others' reasons."""
        deltas, refused = {}, {}
        for share in shares:
            try:
                deltas[share.name] = self._channel.codec.decode(share.frame.body, self._channel.layout)
            except PeerError as error:
                refused[share.name] = str(error)
        return deltas, refused

    def _reply(self, share: WeightedUpdate, model: Vec) -> Message:
        aux = share.frame.aux
        metrics = MetricRecord({WEIGHT: 1.0 if self._uniform else share.weight, "train-loss": aux[Aux.LOSS]})
        record: ArrayRecord = to_record(model, self._channel.layout)
        question = Message(RecordDict(), dst_node_id=share.address, message_type="train")
        return Message(RecordDict({ARRAYS: record, "metrics": metrics}), reply_to=question)

    @override
    def snapshot(self) -> Mapping[str, Any]:
        """Return the arrays that the strategy keeps in its attributes: moments, momentum, its own
        copy of the model."""
        kept = {name: _plain(value) for name, value in vars(self._strategy).items()}
        return {"lengths": asdict(self._proportion), "strategy": {k: v for k, v in kept.items() if v is not None}}

    @override
    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._proportion = NormFilter(**snapshot["lengths"])
        for name, value in snapshot["strategy"].items():
            if isinstance(value, tuple):
                value = ArrayRecord({key: Array(np.ascontiguousarray(array)) for key, array in value})
            setattr(self._strategy, name, value)


def _plain(value: Any) -> Any:
    """Return an attribute with arrays as checkpoints keep it, an ArrayRecord as pairs; None for any
    other."""
    if isinstance(value, ArrayRecord):
        return tuple((key, array.numpy()) for key, array in value.items())
    of = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return copy(value) if of and all(isinstance(array, np.ndarray) for array in of) else None


class BoardGrid(Grid):
    """Shows a strategy the boards that are idle now. The coordinator sends messages itself."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self._node_ids = list(node_ids)

    @override
    def get_node_ids(self) -> Iterable[int]:
        return list(self._node_ids)

    @override
    def set_run(self, run: Any) -> None:
        _unsupported()

    @property
    @override
    def run(self) -> Any:
        _unsupported()

    @override
    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    @override
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        _unsupported()

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        _unsupported()

    @override
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        _unsupported()


def _unsupported() -> NoReturn:
    raise UsageError("a strategy only chooses boards and aggregates; the coordinator sends the messages itself")


# -- rules


def _check_params(name: str, make: Callable[..., Strategy], params: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value of the wrong type or out of its range; names are the strategy's
    own to check."""
    known = inspect.signature(make).parameters
    for key, value in params.items():
        if key in known and (problem := _problem(make, key, known[key].default, value)):
            raise ConfigError(f"server.strategy_params.{key} = {value!r} of {name}: {problem}")


def _problem(make: Callable[..., Strategy], key: str, default: Any, value: Any) -> str:
    """Return what is wrong with a value, "" for nothing. Defaults say of what type it is."""
    if not isinstance(default, (int, float)):
        return "this is not for a recipe"
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "a whole number is needed" if whole else "a number is needed"
    if not math.isfinite(value):
        return "it is not finite"
    if key in _LOWEST and value < _LOWEST[key]:
        return f"at least {_LOWEST[key]}"
    if _HALF.get(key) is make and not 0 <= value < 0.5:
        return "from 0 to below 0.5"
    return ""


def _check_codec(strategy: Strategy, channel: Channel) -> None:
    """Raise ConfigError for a strategy that goes value by value where most boards send nothing of
    most values: the middle of their changes is then mostly 0, and the model stays where it is."""
    if not isinstance(strategy, (flower.FedMedian, FedTrimmedAvg)):
        return
    codec, layout = channel.codec, channel.layout
    some = np.random.default_rng(0).normal(size=layout.size).astype(np.float32)
    body, _ = codec.encode(some, codec.init(layout), Ctx(key=0, round=0))
    share = np.count_nonzero(codec.decode(body, layout)) / layout.size
    if share < 0.5:
        name = _name(strategy)
        raise ConfigError(
            f"server.strategy = {name} hardly learns with codec {codec.name}, which sends {100 * share:.2g} % of the "
            "values: the middle one of all boards is 0 nearly everywhere; use krum or multikrum, or a codec that sends "
            "every value, such as 4-bit-elastiquant"
        )


def _liars(strategy: Strategy, malicious: int) -> int:
    """Return how many may lie: `malicious`, or as many as the strategy is told of."""
    return max(malicious, getattr(strategy, "num_malicious_nodes", 0))


def _bearing(strategy: Strategy, liars: int, answers: int) -> Strategy:
    """Return the strategy as it leaves out so many liars where not all boards answered: a share of
    fewer answers is fewer liars, and a number of them to take is more."""
    if isinstance(strategy, FedTrimmedAvg):
        strategy = copy(strategy)
        strategy.beta = max(strategy.beta, (liars + 0.25) / answers)  # it rounds down; 0.5 of an answer might be half
    elif isinstance(strategy, MultiKrum):
        strategy = copy(strategy)
        strategy.num_nodes_to_select = min(strategy.num_nodes_to_select, answers - liars)
    return strategy


def _too_few(strategy: Strategy, liars: int, answers: int, silent: int = 0) -> str:
    """Return what is wrong with so many answers, "" for nothing, `silent` of which may not come."""
    each, more = (4, 3) if isinstance(strategy, Bulyan) else (2, 1)
    if liars and isinstance(strategy, MultiKrum):
        more = 3
    least = each * liars + more
    if answers >= least + silent:
        return ""
    missing = f", and {silent} more for liars that send none" if silent else ""
    return f"{_name(strategy)} needs {each}*{liars} + {more} = {least} answers{missing}, got {answers}"


def _name(strategy: Strategy) -> str:
    return type(strategy).__name__.lower()


def _bears_fewer(strategy: Strategy, answers: int, liars: int) -> str:
    """Return what to set where the strategy bears fewer liars among so many answers, "" where it
    does not."""
    if isinstance(strategy, FedTrimmedAvg):
        cut = int(strategy.beta * answers)
        least = next((k / 100 for k in range(50) if int(k / 100 * answers) >= liars), 0.499)
        text = f"of {answers} answers beta = {strategy.beta:g} leaves out {cut} at either end"
        return f"{text}; say server.strategy_params.beta = {least:g}" if cut < liars else ""
    told = getattr(strategy, "num_malicious_nodes", liars)
    text = f"{_name(strategy)} is told of {told}"
    return f"{text}; say server.strategy_params.num_malicious_nodes = {liars}" if told < liars else ""


def check_enough(strategy: Strategy, server: ServerSection, boards: int) -> None:
    """Raise ConfigError when no round of a run with so many boards can have the answers that the
    strategy needs, or liars that send none could end it."""
    asked = min(boards, wanted(server.fraction, server.min_nodes, boards))
    answers = min(asked, server.quorum or asked)
    if (malicious := server.malicious_nodes) and server.strategy not in ROBUST:
        raise ConfigError(
            f"server.malicious_nodes = {malicious} cannot hold for server.strategy = {server.strategy}, which takes what "
            f"every board says: use {', '.join(ROBUST[:-1])} or {ROBUST[-1]}"
        )
    liars = _liars(strategy, malicious)
    # Krum needs so many that it has one to spare, and not one a liar: 8 boards for 2, and not 9.
    silent = min(liars, 1) if isinstance(strategy, MultiKrum) else liars
    if words := _too_few(strategy, liars, answers, silent):
        keys = "run.nodes, server.fraction and server.quorum"
        raise ConfigError(f"server.strategy: {words} in every round by {keys}: raise these or choose another strategy")
    if words := _bears_fewer(strategy, answers, malicious):
        raise ConfigError(f"server.malicious_nodes = {malicious} cannot hold: {words}")
    if liars and isinstance(strategy, MultiKrum) and (taken := strategy.num_nodes_to_select) > answers - liars:
        raise ConfigError(
            f"server.strategy: multikrum takes {taken} of {answers} answers, {liars} of which may be lies; say "
            f"server.strategy_params.num_nodes_to_select = {answers - liars}"
        )
