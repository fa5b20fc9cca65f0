"""Everything about a recipe that can be known to be wrong before a process is started or a file is
written."""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click
import numpy as np

from edgegossip import codecs, gossip, training
from edgegossip.codecs.base import Codec, inside, remembers
from edgegossip.gossip.averaging import COARSE, follows, lost_of_normal, on_probe
from edgegossip.gossip.base import GossipAlgorithm, Says
from edgegossip.gossip.fragments import cut
from edgegossip.layout import Layout, TensorSpec
from edgegossip.mesh.address import Address
from edgegossip.node.spec import NodeSpec, make_algorithm, make_codec, make_view
from edgegossip.recipe import Recipe, run_id, unread
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.training.check import data_notice
from edgegossip.training.data import Board, is_custom, is_declared
from edgegossip.types import ConfigError, HostError, NodeId, UsageError

_PORT_S = 5.0  # that a process which was just killed may still hold a port
FLEET = "fleet"  # where `edgegossip fleet init` puts one
FLOWER_HINT = "pip install flwr==1.41.0"
TORCH_HINT = "pip install torch (any of 2.9 to 2.13 with CPU support will do)"


def preflight(recipe: Recipe, members: Sequence[NodeId]) -> None:
    """Raise ConfigError, DataError or HostError with one sentence, or return when the run can be
    started here."""
    if recipe.run.mode == "gossip":
        require("torch", TORCH_HINT)
        check_parts(recipe, members)
        training.check_data(recipe, own_boards(recipe, members))
        _check_model(recipe, members[0])
    else:
        preflight_server(recipe, members, here=True)
    training.require_device(recipe)
    _check_ports(recipe, len(members))


def preflight_server(recipe: Recipe, members: Sequence[NodeId], here: bool = False) -> None:
    """Check the same for a coordinator alone, whose boards are elsewhere; or `here`, on this
    machine."""
    if recipe.run.mode != "server":
        raise ConfigError(f"run.mode = {recipe.run.mode}: {recipe.run.name} has no coordinator; the nearest is server")
    require("torch", TORCH_HINT)
    require("flwr", FLOWER_HINT)
    check_parts(recipe, members)
    training.check_data(recipe, own_boards(recipe, members) if here else ())
    _check_model(recipe, members[0] if here else COORDINATOR)


def check_parts(recipe: Recipe, members: Sequence[NodeId]) -> None:
    """Raise ConfigError where the recipe's parts do not go together, on whatever machines."""
    training.check_parts(recipe)
    if recipe.run.mode == "gossip":
        _check_gossip(recipe, members)
        return
    if recipe.network.restarts:
        raise ConfigError(f"network.restarts = {recipe.network.restarts}: only gossip boards are started again; say 0")
    codecs.get(recipe.codec.name, **recipe.codec.params)
    for key in ("min_nodes", "quorum"):
        if (asked := getattr(recipe.server, key)) > len(members):
            limit = len(members)
            raise ConfigError(f"server.{key} = {asked}: the run has {limit} boards; the nearest is {limit}")
    _check_server(recipe)


def notices(recipe: Recipe, *, joins: bool = False) -> list[str]:
    """Return what a user should know before the run, a sentence each. `joins`: only what the owner
    of one board should, which imports little, as a board that waits for others is small."""
    every = (unused_notice, data_notice, privacy_notice) + (() if joins else (codec_notice, memory_notice))
    said = [notice for look in every if (notice := look(recipe))]
    return said if joins else said + training.conversion_notices(recipe)


def tell(recipe: Recipe, *, joins: bool = False) -> None:
    """Say so where a person starts the run, or a board of it."""
    for notice in notices(recipe, joins=joins):
        click.echo(f"!! {notice}", err=True)


def unused_notice(recipe: Recipe) -> str:
    """Name keys that were set and are for the other mode only; empty when there are none."""
    changed = unread(recipe)
    if not changed:
        return ""
    return f"{' and '.join(changed)} {'have' if changed[1:] else 'has'} no effect with run.mode = {recipe.run.mode}"


def memory_notice(recipe: Recipe) -> str:
    """Name a codec that fits no memory of what was lost, or has one of its own, where the algorithm
    keeps one, and a difference to a public copy is one. Empty otherwise."""
    if recipe.run.mode != "gossip" or not (says := (algorithm := _algorithm(recipe)).says).repaired:
        return ""
    codec = codecs.get(recipe.codec.name, **recipe.codec.params)
    if codecs.leaves_rate(codec):  # a dead zone there, which fits
        return ""
    try:
        codecs.error_feedback(codec)
    except ConfigError as error:
        why = str(error).removeprefix("codec error-feedback: ")
        if says is Says.COMPENSATED or remembers(codec):
            return f"{algorithm.name} remembers what a message loses, as error-feedback does: {why}"
    return ""


FEW_EXAMPLES = 16  # in a message: of one of 8, 92 % were read out (lab/results/leaks.py); of 32, 31 %


def privacy_notice(recipe: Recipe) -> str:
    """Say that messages of a handful of examples give them away; empty otherwise."""
    section = recipe.training
    examples = section.batch_size * section.local_steps
    if recipe.run.script or examples > FEW_EXAMPLES:
        return ""
    return (
        f"each message is made of {examples} example{'s' if examples > 1 else ''}, and whoever gets it can read examples out "
        "of it: raise training.batch_size or training.local_steps where data are private"
    )


def codec_notice(recipe: Recipe) -> str:
    """Say what a user should know of the codec; empty when there is nothing. Of whole models, which
    some gossip algorithms send, a coarse codec takes its share in every round; differences and
    updates may be coarse."""
    if recipe.run.mode != "gossip" or (algorithm := _algorithm(recipe)).says is not Says.MODELS:
        return ""
    codec = _on_model(recipe)
    if codec is None:
        return ""
    if follows(codec):  # as fine as links allow
        return ""
    error = lost_of_normal(codec) ** 0.5
    if error <= COARSE:
        return ""
    return (
        f"codec {recipe.codec.name} changes a vector by {100 * error:.0f} % of its length; whole models travel with "
        f"{recipe.gossip.algorithm}, and this may keep them from training; fp16, bf16, minmax8 and 8-bit-elastiquant fit, "
        f"and so does {algorithm.traits.in_differences}, which sends differences"
    )


def require(module: str, cure: str) -> None:
    """Raise HostError unless the optional package is installed. Does not import it."""
    if importlib.util.find_spec(module) is None:
        raise HostError(f"this needs the package {module}, which is not installed: {cure}")


def _check_ports(recipe: Recipe, nodes: int) -> None:
    """Raise HostError naming the first port of the run that is taken, ConfigError for an address
    that is not ours."""
    host, first = recipe.network.host, recipe.network.port
    if not Address(host, first).is_local:
        raise ConfigError(f"network.host = {host}: `run` keeps its boards on this machine; the nearest is 127.0.0.1")
    count = nodes if recipe.run.mode == "gossip" else 1
    if first + count - 1 > 65_535:
        raise ConfigError(
            f"network.port = {first}: {count} ports from there go past 65535; the nearest is {65_536 - count}"
        )
    for port in range(first, first + count) if first else ():
        _check_port(host, port)


def check_exposure(host: str, insecure: bool) -> None:
    """Raise ConfigError for an address that others can reach, unless that was asked for."""
    if not insecure and not Address(host, 0).is_local:
        raise ConfigError(
            f"--host {host} lets everybody on that network join without a key or encryption: make a fleet "
            "(`edgegossip fleet init`) and name it with --fleet, use 127.0.0.1, or say --insecure on a network you trust"
        )


def _check_port(host: str, port: int) -> None:
    """Raise HostError when nothing can listen there."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        cure = "choose another port, or 0 for any free one"
        raise HostError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}; {cure}") from None


def wait_for_port(host: str, port: int) -> None:
    """Check a port with a moment for the SuperLink of a coordinator that was killed just now to be
    gone."""
    until = time.monotonic() + _PORT_S
    while True:
        try:
            return _check_port(host, port)
        except HostError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def own_boards(recipe: Recipe, members: Sequence[NodeId]) -> list[Board]:
    """Return the boards of this machine that have data of their own."""
    own = recipe.data.partition == "local"
    return [Board(name, k) for k, name in enumerate(members)] if own else []


def _check_model(recipe: Recipe, name: NodeId) -> None:
    """Build a model with parameters, or a user's own, once: that takes torch, and finds every
    mistake in it. So do limits of bytes, which are held against it. `name`: whose data say what an
    example is, where the recipe does not."""
    section, limited = recipe.model, any(map(_is_limited, _codecs_of(recipe)))
    if recipe.run.script:  # which has its own
        return
    if not (
        limited or section.params or section.share or section.keep or ":" in section.name or is_custom(recipe.data)
    ):
        return
    try:
        layout = training.layout_of(recipe, Board(name, 0 if name != COORDINATOR else -1))
    except UsageError as error:
        if name != COORDINATOR or is_declared(recipe.data):
            raise
        raise ConfigError(
            f"the coordinator has no data of its own from which it could see what the model takes ({error}); declare "
            "data.shape and data.classes (or data.target and data.target_shape)"
        ) from error
    check_sizes(recipe, layout)


def check_sizes(recipe: Recipe, layout: Layout) -> None:
    """Raise ConfigError where a codec of the recipe cannot send a model of this layout."""
    for codec in _codecs_of(recipe):
        if recipe.run.mode == "gossip" or layout.has_sums:
            codec = codecs.for_layout(codec, layout)
        for part in cut(layout, recipe.outer.fragments):
            codec.init(part.layout)


def _codecs_of(recipe: Recipe) -> list[Codec[Any]]:
    """The codecs of all messages that have values."""
    if recipe.run.mode == "gossip":
        return [make_codec(recipe)]
    server = recipe.server
    return [codecs.get(recipe.codec.name, **recipe.codec.params), codecs.get(server.downlink, **server.downlink_params)]


def _algorithm(recipe: Recipe) -> GossipAlgorithm[Any]:
    return gossip.get(recipe.gossip.algorithm, **recipe.gossip.params)


def _is_limited(codec: Codec[Any]) -> bool:
    """Whether the bytes of a message are given: the model's size says whether they are enough."""
    return any(getattr(one, "bytes", 0) for one in inside(codec))


def _on_model(recipe: Recipe) -> Codec[Any] | None:
    """Return a codec that loses of the vectors that rates are measured on what the recipe's does of
    its model; None where the size of that counts, and is not known here."""
    codec = make_codec(recipe)
    if not _is_limited(codec):
        return codec
    if recipe.run.script or (is_custom(recipe.data) and not is_declared(recipe.data)):
        return None
    return on_probe(codec, training.layout_of(recipe).size // recipe.outer.fragments)


def _check_server(recipe: Recipe) -> None:
    """Raises ConfigError when the strategy, what is around it or the codec downwards cannot be
    made."""
    from edgegossip.engine.combine import check_outer
    from edgegossip.engine.server_frames import check_downlink
    from edgegossip.gossip import outer  # here: a board that waits has in memory what its run needs

    optimizer = outer.make(**asdict(recipe.outer))
    check_outer(optimizer)
    if importlib.util.find_spec("flwr") is not None:  # whoever only plans may have none
        from edgegossip.flower.combine import make_strategy

        make_strategy(recipe.server.strategy, recipe.server.strategy_params, optimizer)
    check_downlink(codecs.get(recipe.server.downlink, **recipe.server.downlink_params))


def _check_gossip(recipe: Recipe, members: Sequence[NodeId]) -> None:
    """The algorithm itself says whether the topology's weights are of its kind: try it on a model
    of a value for each fragment."""
    spec = NodeSpec(recipe, members[0], tuple(members), run_id(recipe))
    view = make_view(spec, Layout.of(TensorSpec(f"probe {k}", (1,)) for k in range(recipe.outer.fragments)))
    view = replace(view, codec=on_probe(view.codec, 1))  # whether a real model fits is not said by this one
    make_algorithm(recipe).init(np.zeros(view.layout.size, np.float32), view)
