"""A server run as a user starts it, one command a process; kill -9 of all of them, and the same
commands again.

A coordinator alone is killed in test_forked.py; it has identities and tells its boards the
recipe."""

from __future__ import annotations

import numpy as np
import pytest

from edgegossip import codecs, training
from edgegossip import recipe as recipes
from edgegossip.modelfile import ModelFile
from edgegossip.node.spec import default_members
from edgegossip.node.storage import vector_of
from edgegossip.telemetry.run_folder import read_run
from edgegossip.types import Metrics
from lab.soak.servers import server_fleet

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

SETTINGS = [
    "run.nodes=2",
    "run.rounds=24",
    "codec.name=fp32",
    "evaluation.every=24",
    "training.local_steps=2",
]
PATIENCE_S = 110.0  # of a loaded machine


@pytest.fixture
def fleet(tmp_path):
    with server_fleet(tmp_path, ("board-0", "board-1"), SETTINGS, PATIENCE_S) as made:
        yield made


def undisturbed(recipe, members):
    """(Layout, final model) of the same run without an accident, computed in this process."""
    from edgegossip.studies.measure import ModelRecorder
    from edgegossip.studies.server import VirtualServer

    layout, x = training.initial_model(recipe)
    server = VirtualServer(
        layout,
        recipes.run_id(recipe),
        codecs.get(recipe.codec.name),
        members,
        training.build_workloads(recipe),
        recipe.run.rounds,
        downlink=codecs.get(recipe.server.downlink),
    )
    server.play(x, ModelRecorder(2, frozenset(), frozenset(), lambda x: Metrics(0, 1), lambda: 0))
    return layout, server.model


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_after_kill_9_of_all_the_run_ends_where_it_would_have_to_the_bit(fleet):
    victims = ("coordinator", "board-0", "board-1")
    # rounds enough that a board is back before they are over, however busy the machine is
    fleet.settings = (*SETTINGS, "run.rounds=300", "evaluation.every=300")
    for name in ("coordinator", "board-0", "board-1"):
        fleet.start(name)
    fleet.until_round(6)
    for name in victims:
        fleet.kill(name)
    for name in victims:
        fleet.start(name)
    fleet.finish()
    recipe = recipes.load("quickstart-server", fleet.settings)
    layout, expected = undisturbed(recipe, default_members(2))
    model = vector_of(ModelFile(fleet.run_folder("coordinator") / "checkpoint" / "model.npz"), layout)
    assert np.array_equal(model, expected)
    for name in victims[1:]:
        assert any("goes on from its checkpoint" in e.text for e in read_run(fleet.run_folder(name)).events())
