"""One torch thread, so that results repeat bit for bit; a recipe that takes a tenth of a second."""

import pytest

from edgegossip.recipe import Recipe, with_settings
from tests import one_thread

_one_thread = one_thread.one_thread


@pytest.fixture
def base():
    settings = {"run.rounds": 6, "data.train_examples": 400, "data.test_examples": 100, "evaluation.every": 3}
    return with_settings(Recipe(), {**settings, "model.params.hidden": [8], "training.batch_size": 8})
