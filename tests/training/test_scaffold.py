"""SCAFFOLD on digits of which boards have unequal shares, where each round asks half of them and
the way down has 4 bits: its loss stays below FedAvg's to the end."""

from __future__ import annotations

import numpy as np
import pytest

from edgegossip import codecs, training
from edgegossip import frame as wire
from edgegossip.engine.combine import Mean, WeightedUpdate, with_control
from edgegossip.engine.server_frames import Channel, Downlink, Replica, Uplink
from edgegossip.frame import Aux
from edgegossip.recipe import load, run_id, with_settings

NODES, ROUNDS = 6, 230
SETTINGS = {
    "run.nodes": NODES,
    "run.rounds": ROUNDS,
    "data.partition": "dirichlet",
    "data.alpha": 0.3,
    "training.momentum": 0.0,
    "training.schedule": "constant",
}


def losses(strategy: str, down: str) -> list[float]:
    """The loss on the test set after each tenth round from the hundredth on."""
    recipe = with_settings(load("quickstart-server"), SETTINGS)
    boards, (layout, x) = training.build_workloads(recipe), training.initial_model(recipe)
    channel, codec = Channel.of(layout, run_id(recipe), codecs.get("fp32")), codecs.get(down)
    combiner = with_control(Mean(channel), strategy, channel, NODES)
    downlink = Downlink(layout, run_id(recipe), codec)
    ends = [(Replica(layout, run_id(recipe), codec), Uplink(channel, f"board-{k}")) for k in range(NODES)]
    rng, found = np.random.default_rng(1), []
    for round in range(ROUNDS):
        downlink.publish(x, round)
        shares = []
        for k in sorted(rng.choice(NODES, NODES // 2, replace=False)):
            name, (replica, uplink), frame = f"board-{k}", ends[k], downlink.whole(round)
            if (correction := combiner.correction(name)) is not None:
                frame = downlink.with_correction(frame, name, correction)
            _, start = replica.open(b"".join(wire.build(frame)))
            more = () if replica.correction is None else (replica.correction,)
            sent = uplink.frame(boards[k].local_update(start, round, *more), round, frame.aux)
            had = downlink.corrections.get(name)
            shares.append(WeightedUpdate(name, sent, sent.aux[Aux.EXAMPLES], correction=had))
        model = combiner.combine(round, x, shares).model
        assert model is not None
        x = model
        if round >= 99 and round % 10 == 9:
            metrics = boards[0].evaluate(x)
            assert metrics is not None
            found.append(metrics.loss)
    return found


@pytest.mark.slow  # tests/engine/test_scaffold.py has the optimum that it comes to and FedAvg does not
def test_its_loss_stays_below_fedavgs() -> None:
    plain, corrected = losses("fedavg", "fp32"), losses("scaffold", "elastiquant")  # of 4 bits
    assert np.mean(corrected[-5:]) < np.mean(plain[-5:]) and max(corrected) < max(plain)
