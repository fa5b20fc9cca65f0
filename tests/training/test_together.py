"""data.normalise = "together": the statistics of all boards' examples, of whatever averages
models."""

import numpy as np
import pytest
import torch

from edgegossip import codecs, gossip, training
from edgegossip.agreement import Agreement, difference
from edgegossip.gossip import topologies
from edgegossip.layout import SUMS
from edgegossip.node.spec import NodeSpec, default_members, make_algorithm, make_view
from edgegossip.recipe import Recipe, run_id, with_settings
from edgegossip.studies.measure import ModelRecorder
from edgegossip.studies.server import VirtualServer
from edgegossip.studies.virtual import VirtualFleet
from edgegossip.training.check import check
from edgegossip.training.data import open_data
from edgegossip.training.data.schema import Sums
from edgegossip.training.model import Standardise
from edgegossip.types import ConfigError, DataError, Metrics

CHANNELS, BOARDS = 5, 4


def data(folder, board, index):
    """Board k has 20 * (k + 1) examples, with a scale and a middle of its own."""
    random, n = np.random.default_rng(index), 20 * (index + 1)
    y = np.arange(n) % 2
    x = random.normal(2.0 * index - 3.0, 1.0 + index, (n, CHANNELS))
    x[:, 0] += 4.0 * (1.0 + index) * y  # what tells the classes apart
    x = (x * 10.0 ** np.arange(-2, CHANNELS - 2)).astype(np.float32)
    return (x, y), (x[:10], y[:10])


def pooled(boards=range(BOARDS)):
    x = np.concatenate([data("", "", k)[0][0] for k in boards]).astype(np.float64)
    return x.mean(0), x.std(0)


@pytest.fixture
def chosen():
    return recipe_with({})


def recipe_with(settings):
    base = {
        "run.nodes": BOARDS,
        "run.rounds": 40,
        "data.name": f"{__name__}:data",
        "data.partition": "local",
        "data.normalise": "together",
        "data.classes": 2,
        "model.params.hidden": [8],
        "training.batch_size": 8,
        "training.local_steps": 1,
        "evaluation.every": 0,
    }
    return with_settings(Recipe(), base | settings)


def recorder():
    return ModelRecorder(BOARDS, frozenset(), frozenset(), lambda x: Metrics(0.0, 1), lambda: 0)


def play_gossip(recipe):
    """The models of a fleet at the end of its run."""
    layout, x = training.initial_model(recipe)
    members = default_members(recipe.run.nodes)
    views = [make_view(NodeSpec(recipe, name, members, run_id(recipe)), layout) for name in members]
    fleet = VirtualFleet(make_algorithm(recipe), views, training.build_workloads(recipe), recipe.run.rounds)
    fleet.play(x, recorder())
    return fleet.models


def play_server(recipe):
    """The model of a coordinator at the end of its run."""
    layout, x = training.initial_model(recipe)
    codec, down = codecs.get(recipe.codec.name, **recipe.codec.params), codecs.get(recipe.server.downlink)
    uniform = recipe.server.weighting == "uniform"
    members, workloads = default_members(recipe.run.nodes), training.build_workloads(recipe)
    run = recipe.run
    server = VirtualServer(
        layout, run_id(recipe), codec, members, workloads, run.rounds, downlink=down, uniform=uniform
    )
    server.play(x, recorder())
    return server.model


def model_with(recipe, x):
    """The recipe's model with the values x, as export builds it."""
    module, state = training.build_model(recipe), training.build_workload(recipe, 0).state(x)
    module.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in state.items()})
    return module.eval()


def first_layer(recipe, x):
    return model_with(recipe, x).standardise


def require_pooled(recipe, x, boards=range(BOARDS)):
    found = first_layer(recipe, x).moments()
    for ours, wanted in zip(found, pooled(boards), strict=True):
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=3e-6)


def sums_of(layout, vec):
    return {name: view for name, view in layout.views(vec).items() if name.startswith(SUMS)}


# -- the statistics are those of all examples ------------------------------------------------------


def gossips():
    """Both algorithms with every codec, on both topologies in turn; the other one is slow."""
    for a, algorithm in enumerate(("dpsgd", "choco-sgd")):
        for b, codec in enumerate(("fp32", "bf16", "fp16", "4-bit-elastiquant")):
            for c, topology in enumerate(("complete", "ring")):
                yield pytest.param(topology, algorithm, codec, marks=pytest.mark.slow if (a + b + c) % 2 else ())


@pytest.mark.parametrize(("topology", "algorithm", "codec"), [*gossips()])
def test_gossip_brings_every_board_to_the_statistics_of_all_examples(topology, algorithm, codec):
    settings = {"gossip.topology": topology, "gossip.algorithm": algorithm, "codec.name": codec}
    recipe = recipe_with(settings | {"run.rounds": 5 if topology == "complete" else 18})
    for x in play_gossip(recipe):
        require_pooled(recipe, x)


@pytest.mark.parametrize("algorithm", sorted(set(gossip.names()) - {"d2"}))
def test_every_algorithm_averages_them(algorithm):
    settings = {"training.momentum": 0.0} if algorithm == "k-gt" else {}
    settings |= {
        "gossip.topology": "complete",
        "gossip.algorithm": algorithm,
        "run.rounds": 15 if algorithm == "ad-psgd" else 3,
    }
    recipe = recipe_with(settings)
    for x in play_gossip(recipe):
        require_pooled(recipe, x)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize(
    ("codec", "downlink"), [("fp32", "fp32"), ("bf16", "fp32"), ("topk", "minmax8"), ("elasticl", "fp32")]
)
def test_a_coordinator_has_them_after_one_round_and_keeps_them(weighting, codec, downlink):
    for rounds in (1, 3):
        settings = {"codec.name": codec, "server.downlink": downlink, "server.weighting": weighting}
        recipe = recipe_with(settings | {"run.mode": "server", "run.rounds": rounds})
        require_pooled(recipe, play_server(recipe))


def test_one_data_set_that_is_shared_out_has_its_own_statistics():
    recipe = with_settings(Recipe(), {"data.normalise": "together", "run.rounds": 18, "data.partition": "dirichlet"})
    images = open_data(recipe.data).indexed().take(np.arange(1442)).inputs
    mean, std = first_layer(recipe, play_gossip(recipe)[0]).moments()
    assert mean.item() == pytest.approx(images.mean(), rel=1e-6)
    assert std.item() == pytest.approx(images.std(), rel=1e-6)


def test_no_board_loses_its_own_weight_whatever_the_topology():
    """A board knows by its own weight in the model that its statistics are in; mixing must not take
    all of it away."""
    for name in set(topologies.names()) - {"file"}:
        for n in (2, 3, 4, 9, 16):
            try:
                topology = topologies.get(name, n)
            except ConfigError:
                continue  # not for so many
            for round in range(topology.period):
                assert np.diag(topology.matrix(round)).min() > 0.0, (name, n)


# -- each board puts its own in once ---------------------------------------------------------------


def test_a_board_trains_with_its_own_statistics_in_its_first_round(chosen):
    """Its update is that of a board which normalises by its own data."""
    own = with_settings(chosen, {"data.normalise": "board"})
    together, alone = (training.build_workload(recipe, 2) for recipe in (chosen, own))
    one = together.local_update(together.initial(7), 0)
    other = alone.local_update(alone.initial(7), 0)
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    trained = together.layout.trainable_size
    np.testing.assert_allclose(one.delta[:trained], other.delta, rtol=1e-3, atol=1e-6)
    require_pooled(chosen, together.initial(7) + one.delta, [2])


def test_a_board_that_starts_again_does_not_count_twice(chosen):
    before = training.build_workload(chosen, 1)
    x = before.initial(7)
    x = x + before.local_update(x, 0).delta
    restarted = training.build_workload(chosen, 1)
    restarted.restore(before.snapshot())
    for board in (before, restarted, training.build_workload(chosen, 1)):  # the last one has an empty disk
        delta = board.local_update(x, 1).delta
        assert all(not part.any() for part in sums_of(board.layout, delta).values())


def test_what_a_coordinator_has_dropped_is_put_in_again(chosen):
    board = training.build_workload(chosen, 1)
    x = board.initial(7)
    first, second = (sums_of(board.layout, board.local_update(x, round).delta) for round in (0, 1))
    assert first and all(np.array_equal(first[name], second[name]) for name in first)


def test_a_board_that_takes_over_the_model_of_others_adds_its_own(chosen):
    boards = [training.build_workload(chosen, k) for k in range(BOARDS)]
    x = boards[0].initial(7)
    of_three = x + sum(board.local_update(x, 0).delta for board in boards[:3])
    require_pooled(chosen, of_three, range(3))
    require_pooled(chosen, of_three + boards[3].local_update(of_three, 5).delta)


def test_the_update_of_a_late_board_is_no_longer_for_its_statistics(chosen):
    """Else a coordinator would take it for one that is out of proportion."""
    board = training.build_workload(chosen, 3)
    delta = board.local_update(board.initial(7), 0).delta
    trained = board.layout.trainable_size
    assert 0.0 < np.linalg.norm(delta[trained:]) < 1e-9 * np.linalg.norm(delta[:trained])


def test_inputs_that_are_not_finite_do_not_get_into_the_model(chosen, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "train_inputs.npy", np.full((20, CHANNELS), np.nan, np.float32))
    np.save(folder / "train_targets.npy", np.arange(20) % 2)
    board = training.build_workload(with_settings(chosen, {"data.name": "npz", "data.dir": str(folder)}), 0)
    with pytest.raises(DataError, match="an input holds a NaN"):
        board.local_update(board.initial(7), 0)


# -- the layer -------------------------------------------------------------------------------------


def test_an_input_passes_unchanged_until_there_are_statistics():
    layer, x = Standardise((3, 4, 4), 2), torch.randn(6, 3, 4, 4)
    assert torch.equal(layer(x), x)


def test_channels_that_never_change_become_zero():
    x = np.random.default_rng(1).normal(0, 1, (30, 4)).astype(np.float32)
    x[:, 0], x[:, 1] = 0.0, 1234.5
    layer = Standardise((4,), 1)
    layer.add_board(0, Sums(30, x.sum(0, dtype=np.float64), np.square(x, dtype=np.float64).sum(0)), 30.0)
    out = layer(torch.from_numpy(x)).numpy()
    assert np.abs(out[:, :2]).max() < 1e-3
    np.testing.assert_allclose(out[:, 2:].std(0), 1.0, rtol=1e-5)


def test_images_are_normalised_channel_by_channel():
    x = np.random.default_rng(1).integers(0, 255, (20, 3, 4, 4)) // np.array([1, 2, 5])[:, None, None]
    flat = x.transpose(1, 0, 2, 3).reshape(3, -1)
    layer = Standardise(x.shape[1:], 1)
    layer.add_board(0, Sums(flat.shape[1], flat.sum(1), np.square(flat).sum(1)), 20.0)
    out = layer(torch.from_numpy(x).float())
    assert out.mean((0, 2, 3)).abs().max() < 1e-5
    np.testing.assert_allclose(out.std((0, 2, 3), correction=0), 1.0, rtol=1e-5)


# -- the run ---------------------------------------------------------------------------------------


def test_a_model_takes_inputs_as_they_are_stored(chosen):
    """So does its file: tests/export/test_programs.py."""
    board = training.build_workload(chosen, 3)
    x = board.initial(7) + board.local_update(board.initial(7), 0).delta
    module, raw = model_with(chosen, x), torch.from_numpy(data("", "", 3)[0][0])
    mean, std = (torch.from_numpy(v).float() for v in pooled([3]))
    with torch.inference_mode():
        wanted = module.model((raw - mean) / std)
        torch.testing.assert_close(module(raw), wanted, rtol=1e-4, atol=1e-5)


def test_what_an_autoencoder_gives_back_is_what_the_layer_gave_it(chosen):
    settings = {"training.task": "autoencoder", "data.target": "none"}
    losses = []
    for how in ("together", "board"):
        board = training.build_workload(with_settings(chosen, settings | {"data.normalise": how}), 0)
        losses.append(board.local_update(board.initial(7), 0).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_shared_and_kept_tensors_have_the_names_of_the_model_alone(chosen):
    plain = training.layout_of(with_settings(chosen, {"data.normalise": "none"}))
    last = plain.tensors[-1].name
    kept = training.layout_of(with_settings(chosen, {"model.keep": [last]}))
    shared = training.layout_of(with_settings(chosen, {"model.share": [last]}))
    sums = [f"{SUMS}{name}" for name in ("weights", "sums", "squares")]
    assert [t.name for t in shared.tensors] == [f"model.{last}", *sums]
    assert [t.name for t in kept.tensors] == [*(f"model.{t.name}" for t in plain.tensors[:-1]), *sums]


def test_boards_agree_to_normalise_together(chosen):
    facts = training.build_workload(chosen, 0).agreement()
    assert facts.facts["scale"] == "together"
    assert difference(facts, training.build_workload(chosen, 1).agreement()) == ""
    other = Agreement({"scale": "none"})
    assert "the normalisation is together here and none there" in difference(facts, other)


def test_a_coordinator_needs_no_data_to_know_the_model(chosen):
    chosen = with_settings(chosen, {"data.shape": [CHANNELS], "run.mode": "server"})
    declared = with_settings(chosen, {"data.name": "nowhere:nothing"})
    assert training.layout_of(declared) == training.layout_of(chosen)


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training.precision": "int8"}, 'together: .*"int8"'),
        ({"gossip.algorithm": "d2"}, "together: gossip.algorithm = d2 repeats"),
        ({"run.mode": "server", "server.strategy": "fedadam"}, "server.strategy = fedadam does not; say fedavg"),
        ({"run.mode": "server", "server.strategy": "krum"}, "server.strategy = krum does not"),
    ],
)
def test_recipes_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        check(recipe_with(settings))


def test_the_mean_of_a_coordinator_may_have_momentum():
    check(recipe_with({"run.mode": "server", "server.strategy": "fedavgm"}))
