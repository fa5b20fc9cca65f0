"""One torch thread, so that results repeat bit for bit; a recipe that takes a tenth of a second."""

import pytest
import torch

from edgegossip.recipe import Recipe, with_settings


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def base():
    settings = {"run.rounds": 6, "data.train_examples": 400, "data.test_examples": 100, "evaluation.every": 3}
    return with_settings(Recipe(), {**settings, "model.params.hidden": [8], "training.batch_size": 8})
