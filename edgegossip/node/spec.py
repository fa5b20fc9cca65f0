"""Who a node is and what run it takes part in."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgegossip import codecs, gossip
from edgegossip.codecs.base import Codec
from edgegossip.engine.joining import PENDING_BYTES
from edgegossip.files import text_of
from edgegossip.frame import HEADER_BYTES, Limits
from edgegossip.gossip import topologies
from edgegossip.gossip.base import GossipAlgorithm, NodeView, Topology
from edgegossip.gossip.momentum import with_momentum
from edgegossip.gossip.order import with_order
from edgegossip.gossip.robust import with_robust_mixing
from edgegossip.layout import Layout
from edgegossip.mesh.base import MeshLimits
from edgegossip.mesh.shelf import most_bytes
from edgegossip.recipe import Recipe
from edgegossip.security.names import check_name
from edgegossip.training.base import require_gradient_steps
from edgegossip.training.data import boards_of
from edgegossip.types import ConfigError, NodeId


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Says what one board's place in one run is. Every board of a run has the same recipe, members
    (in this order) and run id."""

    recipe: Recipe
    name: NodeId
    members: tuple[NodeId, ...]
    run_id: bytes  # 16 bytes
    restarted: bool = False  # known to have been in the run before, in another process

    @property
    def index(self) -> int:
        """The board's place among the members."""
        return self.members.index(self.name)


def default_members(nodes: int) -> tuple[NodeId, ...]:
    """Return the names of a local fleet."""
    return tuple(board.name for board in boards_of(nodes))


def check_names(option: str, names: Iterable[str]) -> None:
    """Check names of boards by the rule of the fleet: they become files' and folders' names. Raises
    ConfigError."""
    for name in names:
        try:
            check_name(name)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from None


def make_topology(recipe: Recipe, members: Sequence[NodeId]) -> Topology:
    """Return the recipe's topology over these members. Raises ConfigError, or DataError for a bad
    topology file."""
    section = recipe.gossip
    if section.topology_file and section.topology != "file":
        raise ConfigError(
            f"gossip.topology_file is given, but gossip.topology = {section.topology}: say gossip.topology = file to use it"
        )
    if section.topology == topologies.NOBODY:
        if section.topology_params:
            raise ConfigError(f"gossip.topology_params.{next(iter(section.topology_params))}: none takes no parameters")
        return topologies.nobody(len(members))
    if section.topology == "file":
        if not section.topology_file:
            raise ConfigError("gossip.topology = file needs gossip.topology_file = PATH")
        params = dict(section.topology_params)
        weights = params.pop("weights", None)
        if params:
            raise ConfigError(
                f"gossip.topology_params.{next(iter(params))}: a topology file takes the parameter weights only"
            )
        text, source = text_of(section.topology_file, "topology file")
        return topologies.from_text(text, tuple(members), weights, source)
    return topologies.get(section.topology, len(members), **section.topology_params)


def make_view(spec: NodeSpec, layout: Layout) -> NodeView:
    """Return what the gossip algorithm gets to know. Raises ConfigError on an unknown codec or
    topology."""
    return NodeView(
        node=spec.name,
        members=spec.members,
        topology=make_topology(spec.recipe, spec.members),
        layout=layout,
        codec=codecs.for_layout(make_codec(spec.recipe), layout),
        run_id=spec.run_id,
        seed=spec.recipe.run.seed,
        deadline_s=spec.recipe.gossip.deadline_s,
        boot=secrets.randbits(48),
    )


def make_codec(recipe: Recipe) -> Codec[Any]:
    """Return the codec of the recipe's gossip; one whose rate the engine chooses as the algorithm's
    messages need it. Raises ConfigError on an unknown one, and where the engine cannot choose."""
    codec = codecs.get(recipe.codec.name, **recipe.codec.params)
    if not codecs.leaves_rate(codec):
        return codec
    from edgegossip.codecs import auto

    if key := "overlap" if recipe.outer.overlap else "fragments" if recipe.outer.fragments > 1 else "":
        raise ConfigError(
            f"codec.name = auto does not go with outer.{key}: it measures what a round waits for; choose the codec dither"
        )
    algorithm = gossip.get(recipe.gossip.algorithm, **recipe.gossip.params)
    if algorithm.asynchronous or algorithm.bodies > 1:
        why = "answer each other" if algorithm.asynchronous else "hold more than one vector"
        raise ConfigError(
            f"codec.name = auto does not go with gossip.algorithm = {algorithm.name}, whose messages {why}; "
            "choose another algorithm, or the codec dither"
        )
    return auto.for_scheme(codec, repaired=algorithm.says.repaired)


def mesh_limits(grace_s: float) -> MeshLimits:
    """Return the limits of a board's transport. While it loads its model nobody takes frames, and
    how large those of the run are is not known yet."""
    return MeshLimits(grace_s=grace_s, max_unmeasured_bytes=PENDING_BYTES)


def frame_limit(layout: Layout, bodies: int = 1) -> int:
    """Return the size of the largest frame that a board of this run may send: head, codec
    parameters and small numbers around so many bodies."""
    return HEADER_BYTES + Limits.of(layout, bodies).max_body_bytes + 4096


def message_memory(recipe: Recipe, layout: Layout) -> int:
    """Return how many bytes of a board's memory messages of this gossip run take at most, whatever
    members send."""
    return most_bytes(frame_limit(layout, make_algorithm(recipe).bodies))


def make_algorithm(recipe: Recipe) -> GossipAlgorithm[Any]:
    """Return the recipe's gossip algorithm in its order, with robust mixing, momentum and outer
    optimiser around it. Raises ConfigError on an unknown name or parameter, and when the local
    optimiser is not what the algorithm takes it for."""
    section, training = recipe.gossip, recipe.training
    if recipe.evaluation.patience:
        raise ConfigError(
            f"evaluation.patience = {recipe.evaluation.patience} needs run.mode = server: in gossip nobody ends a run for "
            "all boards, and one that ended by itself would be missing to its neighbours; say 0, and checkpoint.best = true "
            "keeps the best round"
        )
    if not recipe.run.script:  # a script's optimiser is seen when it joins
        require_gradient_steps(section, training.optimizer, training.momentum)
    algorithm = gossip.get(section.algorithm, **section.params)
    algorithm = with_order(algorithm, section.order, many_steps=bool(recipe.run.script))
    algorithm = with_robust_mixing(algorithm, section.malicious_nodes, section.malicious_rule)
    if "none" not in (section.momentum, recipe.outer.optimizer):
        raise ConfigError(
            f"gossip.momentum = {section.momentum} and outer.optimizer = {recipe.outer.optimizer}: a run has one of the "
            "two around its rounds; say none for the other"
        )
    algorithm = with_momentum(algorithm, section.momentum, section.momentum_factor)
    if recipe.outer.optimizer == "none":
        return algorithm
    from edgegossip.gossip import outer  # here: a board that waits has in memory what its run needs

    return outer.with_outer(algorithm, outer.make(**asdict(recipe.outer)))
