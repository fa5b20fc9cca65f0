"""Runs one case: from its recipe to a result that study.jsonl can hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from edgegossip import codecs, training
from edgegossip import recipe as recipes
from edgegossip.engine.combine import Combiner, Mean, with_control, with_outer
from edgegossip.engine.server_frames import Channel
from edgegossip.gossip import outer
from edgegossip.node.spec import NodeSpec, default_members, make_algorithm, make_view
from edgegossip.recipe import DataSection, Recipe
from edgegossip.studies.cases import StudyCase
from edgegossip.studies.lanes import Lanes, lanes_of
from edgegossip.studies.measure import FrameTraffic, ModelRecorder, average, measure_rounds
from edgegossip.studies.server import VirtualServer
from edgegossip.studies.virtual import VirtualFleet
from edgegossip.sweep.results import Result, plain
from edgegossip.training.base import Workload
from edgegossip.training.data import DataSet, open_data
from edgegossip.types import ConfigError, DataError, HostError, PeerError, Round, UsageError, Vec
from edgegossip.version import VERSION

Progress = Callable[[Round], None]


class DataSetCache:
    """Keeps the data set that was opened last: most studies have but one."""

    def __init__(self) -> None:
        self._last: tuple[DataSection, DataSet] | None = None

    def get(self, section: DataSection) -> DataSet:
        """Return the section's data set; how it is partitioned does not matter to it."""
        wanted = replace(section, partition="iid", skew=0.0, alpha=0.5, augment=False)
        if self._last is None or self._last[0] != wanted:
            self._last = (wanted, open_data(section))
        return self._last[1]


def check(recipe: Recipe) -> None:
    """Check that a case can start, in far less time than it takes. Raises ConfigError or
    DataError."""
    recipes.require_all_rounds(recipe, "a study")
    training.check(recipe)
    layout = training.layout_of(recipe)
    if recipe.run.mode == "server":
        codec = codecs.get(recipe.codec.name, **recipe.codec.params)
        codec.init(layout)
        _combiner(recipe, Channel.of(layout, recipes.run_id(recipe), codec))
        return
    spec = _specs(recipe)[0]
    make_algorithm(recipe).init(np.zeros(layout.size, np.float32), make_view(spec, layout))


def run_case(case: StudyCase, data: DataSetCache, progress: Progress = lambda round: None) -> Result:
    """Run the case to its end. A run that diverges has a result too: its state is "failed", with
    the reason.

    Raises ConfigError, DataError or HostError when it could not be run at all."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    recipe = case.recipe
    local = recipe.data.partition == "local"  # then each virtual board opens its own
    count, board_recipe = lanes_of(recipe)
    lanes = Lanes(count)
    workloads = training.build_workloads(board_recipe, None if local else data.get(recipe.data), count)
    make: Callable[..., VirtualFleet | VirtualServer] = gossip_of if recipe.run.mode == "gossip" else _server_of
    run = make(case, workloads, progress, lanes)
    recorder = ModelRecorder(
        nodes=recipe.run.nodes - (case.attack.boards if case.attack else 0),
        evaluate_after=recipes.evaluation_rounds(recipe) - {recipe.run.rounds - 1},
        measure_after=measure_rounds(recipe.run.rounds) if recipe.run.mode == "gossip" else frozenset(),
        evaluate=lambda x: lanes.submit(0, workloads[0].evaluate, x, recipe.evaluation.examples or None).result(),
        sent_bytes=lambda: run.sent.total_bytes,
        now_s=lambda: run.now_s,
    )
    outcome: Result = {"state": "done", "reason": ""}
    try:
        with lanes, np.errstate(over="ignore", invalid="ignore"):  # a run that diverges is told by what comes out
            run.play(workloads[0].initial(recipe.run.seed), recorder)
            outcome |= _reached(workloads, dict(zip(run.here, run.models, strict=True)), lanes)
    except (ConfigError, DataError, HostError):
        raise
    except (UsageError, PeerError) as error:
        outcome = {"state": "failed", "reason": str(error)}
    result: Result = plain(
        {
            "key": case.key,
            "group": case.group,
            "name": case.name,
            "settings": dict(case.settings),
            "seed": case.seed,
            **({"attack": asdict(case.attack)} if case.attack else {}),
            **({"link": asdict(case.link)} if case.link else {}),
            **({"heat": asdict(case.heat)} if case.heat else {}),
            **outcome,
            **_bytes(recipe, run.sent, run.received.total_bytes),
            **run.figures(),
            **_curves(recorder),
            **({} if math.isnan(run.now_s) else {"virtual_s": run.now_s}),
            "seconds": time.perf_counter() - start_s,
            "cpu_seconds": time.process_time() - start_cpu_s,
            "version": VERSION,
            "recipe": asdict(recipe),
        }
    )
    return result


def gossip_of(case: StudyCase, workloads: Sequence[Workload], progress: Progress, lanes: Lanes) -> VirtualFleet:
    """Return the run of a gossip case over these workloads, a node each."""
    recipe = case.recipe
    views = [make_view(spec, workloads[0].layout) for spec in _specs(recipe)]
    return VirtualFleet(
        make_algorithm(recipe),
        views,
        workloads,
        recipe.run.rounds,
        progress,
        case.attack,
        case.link,
        lanes,
        case.heat,
        recipe.guard,
    )


def _server_of(case: StudyCase, workloads: Sequence[Workload], progress: Progress, lanes: Lanes) -> VirtualServer:
    recipe, layout, server = case.recipe, workloads[0].layout, case.recipe.server
    codec = codecs.get(recipe.codec.name, **recipe.codec.params)
    return VirtualServer(
        layout,
        recipes.run_id(recipe),
        codec,
        default_members(recipe.run.nodes),
        workloads,
        recipe.run.rounds,
        progress,
        codecs.get(server.downlink, **server.downlink_params),
        server.weighting == "uniform",
        _combiner(recipe, Channel.of(layout, recipes.run_id(recipe), codec)),
        case.attack,
        case.link,
        lanes,
    )


def _combiner(recipe: Recipe, channel: Channel) -> Combiner:
    """Return what makes the next model, by Flower's strategy where that is not fedavg or scaffold,
    which need no Flower. Raises ConfigError."""
    server = recipe.server
    if server.fraction < 1.0:
        raise ConfigError(
            f"server.fraction = {server.fraction:g}: a study plays every node in every round; use `edgegossip run` for others"
        )
    optimizer, uniform = outer.make(**asdict(recipe.outer)), server.weighting == "uniform"
    if server.strategy in ("fedavg", "scaffold") and not server.malicious_nodes:
        mean = with_outer(Mean(channel, uniform=uniform), optimizer, channel.layout)
        return with_control(mean, server.strategy, channel, recipe.run.nodes, uniform=uniform)
    from edgegossip.flower._private.runtime import serve_run
    from edgegossip.flower.combine import check_enough, combiner, make_strategy

    serve_run(task_id=1, run_id=1)  # without a run Flower makes no message
    strategy = make_strategy(server.strategy, server.strategy_params, optimizer)
    check_enough(strategy, server, recipe.run.nodes)
    return with_outer(combiner(strategy, channel, uniform, server.malicious_nodes), optimizer, channel.layout)


def _specs(recipe: Recipe) -> list[NodeSpec]:
    members = default_members(recipe.run.nodes)
    run_id = recipes.run_id(recipe)
    return [NodeSpec(recipe, name, members, run_id) for name in members]


def _reached(workloads: Sequence[Workload], models: Mapping[int, Vec], lanes: Lanes) -> Result:
    """The final models on the whole test set, each with what its node has of its own (model.keep).
    Models of a server run are all the same one: the first node's stands for them."""
    begun = [lanes.submit(k, workloads[k].evaluate, x) for k, x in models.items()]
    mean = average(list(models.values()))
    of_mean = lanes.submit(0, workloads[0].evaluate, mean) if len(models) > 1 else begun[0]
    nodes = [metrics for one in begun if (metrics := one.result()) is not None]
    averaged = of_mean.result()
    if averaged is None:
        return {"accuracy": None, "score": None, "scores": {}, "loss": None, "test_examples": 0}
    scores = {name: _over_nodes(value, [m.scores[name] for m in nodes]) for name, value in averaged.scores.items()}
    return {
        "accuracy": scores.get("accuracy"),
        "score": next(iter(scores), None),
        "scores": scores,
        "loss": {"averaged": averaged.loss, "mean": sum(m.loss for m in nodes) / len(nodes)},
        "test_examples": averaged.examples,
    }


def _over_nodes(averaged: float, values: Sequence[float]) -> dict[str, float]:
    """A figure of the averaged model, and of the nodes' own."""
    return {"averaged": averaged, "mean": sum(values) / len(values), "min": min(values), "max": max(values)}


def _bytes(recipe: Recipe, sent: FrameTraffic, received_bytes: int) -> Result:
    """Sums over the nodes, as `run --json` has them, and per node and round."""
    shares = recipe.run.nodes * recipe.run.rounds
    return {
        "nodes": recipe.run.nodes,
        "rounds": recipe.run.rounds,
        "sent_bytes": {"payload": sent.payload_bytes, "overhead": sent.overhead_bytes},
        "received_bytes": received_bytes,
        "bytes_per_node_round": sent.total_bytes / shares,
        "bits_per_value": sent.bits_per_value,
    }


def _curves(recorder: ModelRecorder) -> Result:
    return {
        "curve": [
            {
                "round": e.round,
                "sent_bytes": e.sent_bytes,
                **({} if math.isnan(e.now_s) else {"virtual_s": e.now_s}),
                "accuracy": None if e.averaged is None else e.averaged.accuracy,
                "scores": {} if e.averaged is None else dict(e.averaged.scores),
                "loss": None if e.averaged is None else e.averaged.loss,
                "train_loss": e.train_loss,
            }
            for e in recorder.evaluations
        ],
        "consensus_distance": [list(point) for point in recorder.distances],
    }
