"""What can be wrong with a recipe's model and data, found before anything starts. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from edgegossip.recipe import Recipe
from edgegossip.training import models
from edgegossip.training.data import Description, describe
from edgegossip.training.data.registry import locate
from edgegossip.training.names import is_own
from edgegossip.types import ConfigError


def check(recipe: Recipe) -> None:
    """Raises ConfigError for an unknown model, data set or model parameter (with the nearest valid choice), and
    DataError for a data set whose files are not there. Reads no data; contents are checked when a board loads
    them."""
    if recipe.run.script:
        if not Path(recipe.run.script).is_file():
            raise ConfigError(f"run.script = {recipe.run.script}: there is no such file")
        return
    models.check(recipe.model)
    locate(recipe.data)
    if not is_own(recipe.data.name):
        check_augmentation(recipe, describe(recipe.data))


def check_augmentation(recipe: Recipe, about: Description) -> None:
    """Raises ConfigError when crop and flip are asked for inputs that are not images."""
    if recipe.data.augment and len(about.shape) != 3:
        raise ConfigError(
            f"data.augment = true needs images (channels, height, width); the inputs of {recipe.data.name} have shape "
            f"{about.shape}: set data.augment = false"
        )
