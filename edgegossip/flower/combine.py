"""How a round's updates become the next model: our own weighted mean, or any Flower strategy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.flower.averaging import Averaged, Averager, Share
from edgegossip.flower.channel import Channel, finite_sum
from edgegossip.flower.grid import BoardGrid
from edgegossip.flower.lengths import Proportion, length
from edgegossip.flower.payload import ARRAYS
from edgegossip.flower.records import conform, to_record
from edgegossip.flower.strategy_rules import check_params, too_few
from edgegossip.frame import Aux
from edgegossip.types import ConfigError, NodeId, PeerError, Round, Vec

WEIGHT = "num-examples"
_COMMON: dict[str, Any] = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": 1,
    "min_evaluate_nodes": 0,
    "min_available_nodes": 1,
}
_INSTEAD = {  # what a strategy is not told, and the recipe's key that does it
    "fraction_train": "the coordinator chooses boards itself; see server.fraction",
    "min_train_nodes": "the coordinator chooses boards itself; see server.fraction and server.min_nodes",
    "min_available_nodes": "the coordinator waits for boards itself; see server.min_nodes",
    "fraction_evaluate": "the coordinator asks boards to evaluate itself; see the section [evaluation]",
    "min_evaluate_nodes": "the coordinator asks boards to evaluate itself; see the section [evaluation]",
    "weighted_by_key": "the coordinator weights updates itself; see server.weighting",
    "arrayrecord_key": "records have names of the coordinator's own",
    "configrecord_key": "records have names of the coordinator's own",
    "train_metrics_aggr_fn": "the coordinator keeps the records itself",
    "evaluate_metrics_aggr_fn": "the coordinator keeps the records itself",
}
_LENGTHS = "edgegossip/lengths"  # in a snapshot: how long updates of the run are
_MAKERS: dict[str, Callable[..., Strategy]] = {
    "fedavg": FedAvg,
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


def make_strategy(name: str, params: Mapping[str, Any]) -> Strategy:
    """Flower's strategy of this name over whoever is asked; who that is, is the coordinator's business. Raises ConfigError."""
    if name not in _MAKERS:
        raise ConfigError(f"server.strategy = {name}: not one of {', '.join(_MAKERS)}{did_you_mean(name, _MAKERS)}")
    if clash := sorted(set(params) & set(_INSTEAD)):
        raise ConfigError(f"server.strategy_params.{clash[0]}: {_INSTEAD[clash[0]]}")
    check_params(name, _MAKERS[name], params)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # it would warn that it does not evaluate, which we do
    try:
        return _MAKERS[name](**_COMMON, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"server.strategy_params of {name}: {error}") from None


class Combiner(Protocol):
    """Makes the next model. Its state, arrays by name, goes into checkpoints."""

    def choose(self, round: Round, x: Vec, node_ids: Sequence[int]) -> list[int]: ...

    def combine(self, round: Round, x: Vec, shares: Mapping[int, Share]) -> Averaged:
        """x float32[n] is the coordinator's model, `shares` are by the boards' Flower ids, in the order of names."""

    def snapshot(self) -> dict[str, NDArray[Any]]: ...

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None: ...


def combiner(strategy: Strategy, channel: Channel, uniform: bool) -> Combiner:
    """The mean for plain FedAvg, which is the same and needs no model a board; the strategy itself for any other."""
    if type(strategy) is FedAvg and strategy.weighted_by_key == WEIGHT:
        return Mean(channel, uniform)
    return Through(strategy, channel, uniform)


class Mean:
    """FedAvg."""

    def __init__(self, channel: Channel, uniform: bool) -> None:
        self._average = Averager(channel, uniform=uniform)

    def choose(self, round: Round, x: Vec, node_ids: Sequence[int]) -> list[int]:
        return list(node_ids)

    def combine(self, round: Round, x: Vec, shares: Mapping[int, Share]) -> Averaged:
        return self._average(x, list(shares.values()))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return _kept(self._average.memory)

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        self._average.restore(_found(snapshot))


class Through:
    """A Flower strategy that sees plain models, x + delta, as if boards had sent them."""

    def __init__(self, strategy: Strategy, channel: Channel, uniform: bool) -> None:
        self._strategy, self._channel, self._uniform = strategy, channel, uniform
        self._dtypes = {spec.name: "float32" for spec in channel.layout.tensors}
        self._proportion = Proportion()

    def choose(self, round: Round, x: Vec, node_ids: Sequence[int]) -> list[int]:
        arrays = to_record(x, self._channel.layout)
        messages = self._strategy.configure_train(round + 1, arrays, ConfigRecord(), BoardGrid(node_ids))
        return [m.metadata.dst_node_id for m in messages]

    def combine(self, round: Round, x: Vec, shares: Mapping[int, Share]) -> Averaged:
        deltas, refused = self._decoded(shares)
        lengths = {name: length(delta) for name, delta in deltas.items()}
        refused |= self._proportion.refused(lengths, x)
        replies = []
        for node_id, share in shares.items():
            if share.name in refused:
                continue
            try:
                replies.append(self._reply(node_id, share, finite_sum(x, deltas.pop(share.name))))
            except PeerError as error:
                refused[share.name] = str(error)
        if not replies:
            return Averaged(None, refused)
        if lack := too_few(self._strategy, len(replies)):
            return Averaged(None, refused, lack)
        try:
            arrays, _ = self._strategy.aggregate_train(round + 1, replies)
        except ValueError as error:  # such as updates that it cannot compare: this round changes nothing
            return Averaged(
                None, refused | {s.name: f"the strategy could not use it: {error}" for s in shares.values()}
            )
        if arrays is None:
            name = type(self._strategy).__name__
            return Averaged(None, refused, f"{name} made no model of {len(replies)} answers")
        arrays = conform(arrays, self._dtypes)
        model = self._channel.layout.flatten({k: a.numpy() for k, a in arrays.items()})
        if not np.isfinite(model).all():
            return Averaged(None, refused | {s.name: "the model would not be finite" for s in shares.values()})
        self._proportion.used({name: v for name, v in lengths.items() if name not in refused}, x)
        return Averaged(model, refused)

    def _decoded(self, shares: Mapping[int, Share]) -> tuple[dict[NodeId, Vec], dict[NodeId, str]]:
        """Every update that can be decoded, float32[n]; the others' reasons."""
        deltas, refused = {}, {}
        for share in shares.values():
            try:
                deltas[share.name] = self._channel.codec.decode(share.frame.body, self._channel.layout)
            except PeerError as error:
                refused[share.name] = str(error)
        return deltas, refused

    def _reply(self, node_id: int, share: Share, model: Vec) -> Message:
        aux = share.frame.aux
        metrics = MetricRecord({WEIGHT: 1.0 if self._uniform else share.weight, "train-loss": aux[Aux.LOSS]})
        record: ArrayRecord = to_record(model, self._channel.layout)
        question = Message(RecordDict(), dst_node_id=node_id, message_type="train")
        question.metadata.__dict__["_message_id"] = f"{node_id}"
        return Message(RecordDict({ARRAYS: record, "metrics": metrics}), reply_to=question)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The arrays that the strategy keeps in its attributes: moments, momentum, its own copy of the model."""
        found = _kept(self._proportion.memory)
        for name, value in vars(self._strategy).items():
            for key, array in _arrays(value):
                found[f"{name}/{key}"] = array
        return found

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        grouped: dict[str, dict[str, NDArray[Any]]] = {}
        self._proportion.restore(_found(snapshot))
        for path, array in snapshot.items():
            if path.startswith(_LENGTHS):
                continue
            name, _, key = path.partition("/")
            grouped.setdefault(name, {})[key] = array
        for name, arrays in grouped.items():
            if all(key.startswith("#") for key in arrays):
                setattr(self._strategy, name, [arrays[f"#{k}"] for k in range(len(arrays))])
            elif any(key.startswith("@") for key in arrays):
                record = ArrayRecord({key[1:]: Array(np.ascontiguousarray(a)) for key, a in arrays.items()})
                setattr(self._strategy, name, record)
            else:
                setattr(self._strategy, name, dict(arrays))


def _kept(memory: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    return {f"{_LENGTHS}/{key}": np.array([value]) for key, value in memory.items()}


def _found(snapshot: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """What `_kept` made. Earlier versions kept the longest and the usual length in one array, or nothing."""
    before = zip(("longest", "usual"), snapshot.get(_LENGTHS, ()), strict=False)
    now = ((path, array[0]) for path, array in snapshot.items() if path.startswith(_LENGTHS + "/"))
    return {key.removeprefix(_LENGTHS + "/"): float(value) for key, value in (*before, *now)}


def _arrays(value: Any) -> list[tuple[str, NDArray[Any]]]:
    """Arrays in an attribute: of a dict by key, of a list as #0, #1, ..., of an ArrayRecord as @name."""
    if isinstance(value, ArrayRecord):
        return [(f"@{k}", a.numpy()) for k, a in value.items()]
    if isinstance(value, dict):
        return [(str(k), a) for k, a in value.items() if isinstance(a, np.ndarray)]
    if isinstance(value, list) and value and all(isinstance(a, np.ndarray) for a in value):
        return [(f"#{k}", a) for k, a in enumerate(value)]
    return []
