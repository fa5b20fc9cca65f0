"""How a board that was told nothing but its coordinator's address comes to its recipe: it asks."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgegossip import recipe as recipes
from edgegossip.choices import did_you_mean
from edgegossip.node.entering import check_functions, own_settings
from edgegossip.profiling.watch import Watch
from edgegossip.recipe import Recipe
from edgegossip.types import ConfigError, LocalError, NodeId, PeerError
from edgegossip.untrusted import printable

if TYPE_CHECKING:
    from edgegossip.mesh.security.identity import Identity

_PAUSE_S = 0.5


def follow(
    coordinator: str,
    name: NodeId,
    identity: Identity | None,
    settings: Iterable[str],
    say: Callable[[str], None],
    patience_s: float,
) -> tuple[Recipe, tuple[NodeId, ...]]:
    """The recipe of the run there, with this board's own `settings` in it, and the run's boards. Functions that it names are not
    called, and no folder of this board is read, unless `settings` say so too. Every 5 s `say` that nobody answers. Raises
    ConfigError, PeerError when the coordinator refuses us, LocalError after `patience_s`."""
    from edgegossip.flower._private.link import LinkError
    from edgegossip.flower.asking import ask
    from edgegossip.node.server_node import board_credentials

    credentials = None if identity is None else board_credentials(identity)
    watch = Watch()
    while True:
        try:
            told = ask(coordinator, credentials)
            break
        except LinkError as error:
            if not error.gone:
                raise
            if watch.s > patience_s:
                raise LocalError(f"no coordinator at {coordinator} for {watch.s:.0f} s: {error}") from None
            if watch.due():
                say(f"waiting for the coordinator at {coordinator} for {watch.s:.0f} s: {error}")
            time.sleep(_PAUSE_S)
    if name not in told.boards:
        known = ", ".join(printable(board, 60) for board in told.boards[:20])
        raise ConfigError(f"--name {name}: not one of the run's boards {known}{did_you_mean(name, told.boards)}")
    recipe, settings = _recipe_of(told.recipe, len(told.boards)), tuple(settings)
    recipe = own_settings(recipe, settings)
    check_functions(recipe, settings)
    return recipe, told.boards


def _recipe_of(text: str, boards: int) -> Recipe:
    try:
        recipe = recipes.from_dict(tomllib.loads(text))
    except (ConfigError, ValueError, RecursionError) as error:
        why = printable(str(error), 300)
        raise PeerError(f"the run's recipe cannot be used: {why}; install the same edgegossip on all boards") from error
    if recipe.run.mode != "server" or recipe.run.nodes != boards:
        raise PeerError("the run's recipe and its boards do not fit each other")
    return replace(recipe, data=replace(recipe.data, dir=""))  # where this board's data lies, it says itself
