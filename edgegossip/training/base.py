"""The interface to training: what a board trains, seen as one flat vector. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from numpy.typing import NDArray
from typing_extensions import override

from edgegossip import codecs, gossip, plugins
from edgegossip.agreement import Agreement, Fact
from edgegossip.gossip import topologies
from edgegossip.gossip.registry import MADE_BY
from edgegossip.layout import Layout
from edgegossip.recipe import GossipSection, Recipe, ServerSection
from edgegossip.types import ConfigError, LocalUpdate, Metrics, Round, Vec

KEPT = "kept/"  # in a snapshot, before the names of what of the model stays on its board


class Workload(Protocol):
    """Trains a model on this board's partition of the data, with a local optimiser.

    It is deterministic: the same seed, x, round and snapshot give the same update. Vectors are
    float32[layout.size].

    Example:
        workload = training.build_workload(recipe, node_index=0)
        x = workload.initial(recipe.run.seed)
        update = workload.local_update(x, round=0)
        metrics = workload.evaluate(x + update.delta)
    """

    @property
    def layout(self) -> Layout:
        """The names and shapes of the tensors whose values a vector holds."""

    def initial(self, seed: int) -> Vec:
        """Return the model that every board starts from."""

    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        """Train from x for one round, and return what that changed. `correction`, float32[n], is
        added to the gradient of each step; None: nothing. Neither is written to. Raises UsageError
        when the loss is not finite."""

    def take_share(self, share: float, *, spare_memory: bool = False) -> float:
        """Take this share, in (0, 1], of a round's steps from the next local update on, and at
        least one step; with `spare_memory` a few examples at a time, where the model's layers allow
        it. Return the share that will be taken: 1 where the steps are not the workload's own, as in
        a script."""
        return 1.0

    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics | None:
        """Return loss and scores of x on the test set, or on its first `examples` examples; None
        where this board has no test set."""

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        """Return what must be kept beside the model to continue, as arrays by name: the optimiser's
        state and what of the model does not travel."""

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `snapshot` gave. Raises UsageError when it is of another workload."""

    def agreement(self) -> Agreement:
        """Return what every board must have alike, for those that cannot be sure of it: boards
        whose model or data are a user's own."""

    def over(self, x: Vec | None) -> None:
        """Take note that the run is over, and that x, where it is known, came of it."""
        return  # a recipe has no work after the run

    def abandon(self) -> None:
        """End what goes on by itself, such as a script: the run does not go on, or begins anew."""
        return  # a recipe's training has no thread of its own

    def state(self, x: Vec | None) -> Mapping[str, NDArray[Any]]:
        """Return the model's whole `state_dict` with the values x, for its file: first the layout's
        tensors, as views of x, then what stays on this board. x None: only what stays."""


class AroundWorkload(Workload):
    """Hands all on to the workload that it is around, but for its training, evaluation and shares
    of a round, which are for those who have a reason to be around it."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @property
    @override
    def layout(self) -> Layout:
        return self._workload.layout

    @override
    def initial(self, seed: int) -> Vec:
        return self._workload.initial(seed)

    @override
    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return self._workload.snapshot()

    @override
    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        self._workload.restore(snapshot)

    @override
    def agreement(self) -> Agreement:
        return self._workload.agreement()

    @override
    def over(self, x: Vec | None) -> None:
        self._workload.over(x)

    @override
    def abandon(self) -> None:
        self._workload.abandon()

    @override
    def state(self, x: Vec | None) -> Mapping[str, NDArray[Any]]:
        return self._workload.state(x)


def plugin_facts(recipe: Recipe) -> dict[str, Fact]:
    """Return the fact "plugins" of an agreement, where the run takes something from another
    package."""
    down = {"name": recipe.server.downlink, "params": recipe.server.downlink_params}
    built_in = {*codecs.REGISTRY.families, *MADE_BY, *topologies.BUILDERS, topologies.NOBODY}
    found = plugins.used([asdict(recipe.codec), asdict(recipe.gossip), down], built_in)
    return {"plugins": ", ".join(f"{name} of {origin}" for name, origin in sorted(found.items()))} if found else {}


def stage_metrics(stages_s: Mapping[str, float]) -> dict[str, float]:
    """Return LocalUpdate.stages_s as metrics: time/forward_s and so on."""
    return {f"time/{stage}_s": seconds for stage, seconds in stages_s.items()}


def require_plain_steps(section: ServerSection, optimizer: str, momentum: float) -> None:
    """Raise ConfigError when the strategy corrects each step and this optimiser would not take the
    correction as it is."""
    if section.strategy == "scaffold" and (optimizer != "sgd" or momentum):
        raise ConfigError(
            "server.strategy = scaffold corrects each gradient, which an optimiser's memory would repeat or rescale: say "
            "training.optimizer = sgd and training.momentum = 0 (in a script: torch.optim.SGD, momentum=0), or "
            "server.strategy = fedavg"
        )


def require_gradient_steps(section: GossipSection, optimizer: str, momentum: float) -> None:
    """Raise ConfigError when the gossip algorithm takes a step for something that this optimiser's
    is not.

    Most algorithms add whatever a board did (`LocalUpdate.delta`). A momentum in gossip, around any
    algorithm or parallel-sgd's own, divides the step by lr and takes that for a gradient; d2 and
    gradient tracking take off what pulled the boards apart, which is their gradients' only where
    every board scales them alike."""
    traits = gossip.get(section.algorithm).traits
    if traits.corrects_steps and (section.momentum != "none" or momentum):
        raise ConfigError(
            f"gossip.algorithm = {section.algorithm} corrects each gradient, and a momentum would repeat the correction "
            "until it runs away: say training.momentum = 0 and gossip.momentum = none, or gossip.algorithm = gt-dsgd"
        )
    if section.momentum != "none":
        who, cure = f"gossip.momentum = {section.momentum}", "gossip.momentum = none"
    elif traits.takes_gradients:
        who, cure = f"gossip.algorithm = {section.algorithm}", "gossip.algorithm = dpsgd"
    elif section.params.get("momentum"):
        who, cure = f"the momentum of {section.algorithm}", "gossip.params.momentum = 0"
    else:
        return
    if optimizer != "sgd":
        raise ConfigError(
            f"{who} takes a board's step for its gradient times the learning rate, and that of {optimizer} "
            f"is not: say training.optimizer = sgd (in a script: torch.optim.SGD), or {cure}"
        )
    if section.momentum != "none" and momentum:
        raise ConfigError(
            f"gossip.momentum = {section.momentum} and training.momentum = {momentum:g}: a run has one momentum "
            "only; say training.momentum = 0 (in a script: momentum=0)"
        )
