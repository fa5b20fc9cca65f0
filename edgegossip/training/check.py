"""What can be wrong with a recipe's model and data, found before anything starts. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from edgegossip.recipe import Recipe
from edgegossip.training import models
from edgegossip.training.data import Board, Description, describe, is_users, locate
from edgegossip.types import ConfigError


def check(recipe: Recipe, boards: Sequence[Board] = ()) -> None:
    """Raises ConfigError for an unknown model, data set or model parameter (with the nearest valid
    choice), and DataError for a data set whose files are not there. Reads no data; contents are
    checked when a board loads them.

    `boards`: whose data are looked for on this machine; none: those that all share out."""
    models.check(recipe.model)
    for board in boards or (None,):
        locate(recipe.data, board)
    if not is_users(recipe.data):
        check_augmentation(recipe, describe(recipe.data))


def check_augmentation(recipe: Recipe, about: Description) -> None:
    """Raises ConfigError when crop and flip are asked for inputs that are not images, or would
    leave masks behind."""
    if not recipe.data.augment:
        return
    if len(about.shape) != 3:
        raise ConfigError(
            "data.augment = true needs images (channels, height, width); the inputs of "
            f"{recipe.data.name} have shape {about.shape}: set data.augment = false"
        )
    if about.target == "places":
        raise ConfigError(
            "data.augment = true moves images and not the masks beside them: set data.augment = "
            "false, and augment both in your own function"
        )


def data_notice(recipe: Recipe) -> str:
    """Return what becomes of a folder of the user's own, in a sentence; "" where there is nothing
    to say."""
    section = recipe.data
    if section.partition == "local":
        unsaid = is_users(section) and not section.classes and not section.labels
        if not unsaid or section.target in ("values", "none"):
            return ""
        return (
            "data.partition = local and neither data.classes nor data.labels is set: each board "
            "counts the classes in its own data, and boards that find other numbers cannot train "
            "together; declare data.labels (or data.classes) to be sure"
        )
    if not section.dir or not is_users(section):
        return ""
    return (
        f"data.partition = {section.partition}: every board must find the same data in data.dir, "
        f"and trains on its share, about 1/{recipe.run.nodes} of them; if each board's folder holds "
        'data of its own, set data.partition = "local"'
    )
