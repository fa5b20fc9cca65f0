"""Everything about a recipe that can be known to be wrong before a process is started or a file is written."""

from __future__ import annotations

import importlib.util
import ipaddress
import socket
from collections.abc import Sequence

import numpy as np

from edgegossip import codecs, training
from edgegossip.layout import Layout, TensorSpec
from edgegossip.node.spec import NodeSpec, make_algorithm, make_view
from edgegossip.recipe import Recipe, run_id
from edgegossip.types import ConfigError, HostError, NodeId

TORCH_HINT = "pip install torch (any of 2.9 to 2.13 with CPU support will do)"


def preflight(recipe: Recipe, members: Sequence[NodeId]) -> None:
    """Raises ConfigError, DataError or HostError with one sentence; returns when the run can be started here."""
    if recipe.run.mode == "gossip":
        require("torch", TORCH_HINT)
        _check_gossip(recipe, members)
        training.check(recipe)
    else:
        preflight_server(recipe, members)
    check_ports(recipe, len(members))


def preflight_server(recipe: Recipe, members: Sequence[NodeId]) -> None:
    """The same for a coordinator alone, whose boards are elsewhere."""
    if recipe.run.mode != "server":
        raise ConfigError(f"run.mode = {recipe.run.mode}: {recipe.run.name} has no coordinator; the nearest is server")
    require("torch", TORCH_HINT)
    require("flwr", "pip install 'edgegossip[server]'")
    codecs.get(recipe.codec.name, **recipe.codec.params)
    if recipe.server.min_nodes > len(members):
        limit = len(members)
        raise ConfigError(
            f"server.min_nodes = {recipe.server.min_nodes}: the run has {limit} boards; the nearest is {limit}"
        )
    training.check(recipe)


def require(module: str, cure: str) -> None:
    """Raises HostError unless the optional package is installed. Does not import it."""
    if importlib.util.find_spec(module) is None:
        raise HostError(f"this needs the package {module}, which is not installed: {cure}")


def check_ports(recipe: Recipe, nodes: int) -> None:
    """Raises HostError naming the first port of the run that is taken, ConfigError for an address that is not ours."""
    host, first = recipe.network.host, recipe.network.port
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ConfigError(f"network.host = {host}: `run` keeps its boards on this machine; the nearest is 127.0.0.1")
    count = nodes if recipe.run.mode == "gossip" else 1
    if first + count - 1 > 65_535:
        raise ConfigError(
            f"network.port = {first}: {count} ports from there go past 65535; the nearest is {65_536 - count}"
        )
    for port in range(first, first + count) if first else ():
        check_port(host, port)


def check_port(host: str, port: int) -> None:
    """Raises HostError when nothing can listen there."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        cure = "choose another network.port, or 0 for any free one"
        raise HostError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}; {cure}") from None


def _check_gossip(recipe: Recipe, members: Sequence[NodeId]) -> None:
    """The algorithm itself says whether the topology's weights are of its kind: try it on a model of one value."""
    spec = NodeSpec(recipe, members[0], tuple(members), run_id(recipe))
    view = make_view(spec, Layout.of([TensorSpec("probe", (1,))]))
    make_algorithm(recipe).init(np.zeros(1, np.float32), view)
