"""Sums over boards' inputs, and the momentum of a coordinator."""

import numpy as np

from edgegossip import codecs, training
from edgegossip.engine.combine import WeightedUpdate
from edgegossip.engine.server_frames import Channel, Uplink
from edgegossip.flower.combine import combiner, make_strategy
from edgegossip.frame import Aux
from edgegossip.training.model import UNIT
from tests.training.test_together import first_layer, recipe_with, require_pooled


def test_momentum_makes_the_sums_larger_all_alike(in_run):
    recipe = recipe_with({"run.mode": "server", "server.strategy": "fedavgm", "run.rounds": 5})
    layout, x = training.initial_model(recipe)
    channel = Channel.of(layout, bytes(16), codecs.get("fp32"))
    combined = combiner(make_strategy("fedavgm", {"server_momentum": 0.5}), channel, uniform=False)
    boards = training.build_workloads(recipe)
    for round in range(recipe.run.rounds):
        combined.choose(round, x, range(len(boards)))
        updates = [board.local_update(x, round) for board in boards]
        frames = [Uplink(channel, f"board-{k}").frame(update, round, {}) for k, update in enumerate(updates)]
        shares = [WeightedUpdate(f"board-{k}", frame, frame.aux[Aux.EXAMPLES], k) for k, frame in enumerate(frames)]
        x = combined.combine(round, x, shares).model
    weights = first_layer(recipe, x).weights / UNIT
    np.testing.assert_allclose(weights, (2 - 0.5**4) * np.array([0.1, 0.2, 0.3, 0.4]), rtol=1e-5)
    require_pooled(recipe, x)
