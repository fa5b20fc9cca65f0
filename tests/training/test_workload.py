"""TorchWorkload: the local update, its determinism, resuming, evaluation and errors; the package's
recipes train."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.training import models
from edgegossip.training.base import stage_metrics
from edgegossip.training.data import open_data
from edgegossip.training.device import Precision
from edgegossip.training.loader import Normalize, Sampler
from edgegossip.training.partition import partition
from edgegossip.training.workload import channels_last
from edgegossip.types import ConfigError, DataError, UsageError
from tests.training.fakes import recipe, write_cifar

SMALL = {"params": {"hidden": [8]}}


def test_update_equals_torch_sgd_on_the_same_batches():
    chosen = recipe(model=SMALL, training={"local_steps": 3, "batch_size": 16, "weight_decay": 0.01})
    workload = training.build_workload(chosen, 1)
    data = open_data(chosen.data)
    share = partition(data.train.labels, chosen)[1]
    model = models.build(chosen.model, (1, 8, 8), 10)
    x = workload.initial(5)
    with torch.no_grad():
        for p, view in zip(model.parameters(), workload.layout.views(x).values(), strict=True):
            p.copy_(torch.from_numpy(view))
    sgd = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=0.01, nesterov=True)
    sampler, normalise = Sampler(len(share), 16, chosen.run.seed, 1), Normalize.of(data.about)
    for round in range(2):
        update = workload.local_update(x, round)
        losses = []
        for step in range(3 * round, 3 * round + 3):
            picked = share[sampler.batch(step)]
            sgd.zero_grad()
            logits = model(normalise(data.train.inputs.take(picked)))
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(data.train.labels[picked]))
            loss.backward()
            sgd.step()
            losses.append(loss.item())
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
        np.testing.assert_allclose(x + update.delta, after, atol=1e-6)
        assert (update.lr, update.examples, update.steps) == (0.1, 48, 3)
        assert update.loss == pytest.approx(np.mean(losses), rel=1e-5)
        x = after


def rounds(workload, x, first, last):
    for r in range(first, last):
        x = x + workload.local_update(x, r).delta
    return x


@pytest.mark.parametrize("memory", ["normal", "low"])
def test_the_stages_of_an_update_are_told_and_take_no_longer_than_it(memory):
    workload = training.build_workload(recipe(model=SMALL, training={"local_steps": 3, "memory": memory}), 0)
    began_s = time.perf_counter()
    update = workload.local_update(workload.initial(5), 0)
    whole_s = time.perf_counter() - began_s
    told = stage_metrics(update.stages_s)
    assert set(told) == {"time/forward_s", "time/backward_s", "time/optimiser_s"}
    assert all(seconds > 0 for seconds in told.values()) and sum(told.values()) <= whole_s
    x, began_s = workload.initial(5), time.perf_counter()
    other = workload.local_update(x, 1)
    assert sum(other.stages_s.values()) <= time.perf_counter() - began_s
    assert stage_metrics(update.stages_s) == told != stage_metrics(other.stages_s)  # an update keeps its own


def test_a_step_that_overflowed_is_missing_in_its_own_round_alone():
    workload = training.build_workload(recipe(model=SMALL, training={"local_steps": 3}), 0)
    factors = iter([1.0, math.inf])

    class Overflows(Precision):
        def backward(self, loss):
            super().backward(loss * next(factors, 1.0))

    workload._precision = Overflows(torch.device("cpu"), None, torch.amp.GradScaler("cpu"))
    x = workload.initial(5)
    assert [workload.local_update(x, round, 0 * x).steps for round in range(2)] == [2, 3]


def test_same_seed_same_bits_and_another_seed_others():
    def train(seed):
        workload = training.build_workload(recipe(run={"seed": seed}, model=SMALL, data={"augment": True}), 0)
        return rounds(workload, workload.initial(seed), 0, 5).tobytes()

    assert train(1) == train(1)
    assert train(1) != train(2)


def test_boards_start_alike_and_learn_from_different_examples():
    first, second = (training.build_workload(recipe(model=SMALL), k) for k in (0, 1))
    x = first.initial(3)
    assert x.dtype == np.float32
    assert (x == second.initial(3)).all()
    assert not (first.local_update(x, 0).delta == second.local_update(x, 0).delta).all()


def test_torch_random_state_is_left_alone():
    workload = training.build_workload(recipe(model=SMALL), 0)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    workload.local_update(workload.initial(1), 0)
    assert torch.rand(1) == expected


def test_x_is_not_written_to_and_results_are_not_overwritten():
    workload = training.build_workload(recipe(model=SMALL), 0)
    x = workload.initial(1)
    kept = x.copy()
    x.flags.writeable = False
    first = workload.local_update(x, 0)
    delta = first.delta.copy()
    workload.local_update(x, 1)
    workload.evaluate(x, 10)
    assert (x == kept).all()
    assert (first.delta == delta).all()


def test_every_step_follows_a_correction_and_the_proximal_term():
    """K steps of x <- x - lr (g + c + mu (x - x_0)), where g is what a step without both takes."""
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": 0.1}
    one = training.build_workload(recipe(model=SMALL, training=plain), 0)
    many = training.build_workload(recipe(model=SMALL, training={**plain, "local_steps": 3, "proximal": 0.5}), 0)
    start = one.initial(1)
    c = 0.01 * np.random.default_rng(1).standard_normal(start.size).astype(np.float32)
    x = start
    for k in range(3):
        gradient = -one.local_update(x, k).delta / np.float32(0.1)
        x = x - np.float32(0.1) * (gradient + c + np.float32(0.5) * (x - start))
    update = many.local_update(start, 0, c)
    assert update.corrected
    np.testing.assert_allclose(start + update.delta, x, atol=1e-5)
    assert np.abs(start + many.local_update(start, 0).delta - x).max() > 1e-4


@pytest.mark.parametrize(
    "kept",
    [{}, {"momentum": 0.0, "schedule": "plateau", "plateau_rounds": 1, "step_factor": 0.5, "lr": 2.0}],
    ids=["momentum", "plateau"],
)
def test_resuming_from_a_snapshot_continues_bit_for_bit(kept):
    chosen = recipe(model=SMALL, data={"augment": True}, training={"local_steps": 2, **kept})
    straight = training.build_workload(chosen, 0)
    x = rounds(straight, straight.initial(1), 0, 3)
    snapshot = straight.snapshot()
    expected = rounds(straight, x, 3, 6)
    resumed = training.build_workload(chosen, 0)
    assert not (rounds(training.build_workload(chosen, 0), x, 3, 6) == expected).all()  # what is kept matters
    resumed.restore(snapshot)
    assert (rounds(resumed, x, 3, 6) == expected).all()


def test_a_foreign_snapshot_is_refused():
    workload = training.build_workload(recipe(model=SMALL), 0)
    workload.local_update(workload.initial(1), 0)
    good = dict(workload.snapshot())
    assert list(good) == [f"optimizer/{k}/momentum_buffer" for k in range(4)]
    for wrong in (
        {"momentum": np.zeros(3, np.float32)},
        {**good, "optimizer/1/momentum_buffer": np.zeros(3, np.float32)},
        {**good, "optimizer/4/momentum_buffer": good["optimizer/0/momentum_buffer"]},
        {**good, "optimizer/x/momentum_buffer": good["optimizer/0/momentum_buffer"]},
        {**good, "optimizer": np.frombuffer(b"\x80\x04cos\nsystem\n.", np.uint8)},
        {**good, "kept/head": np.zeros(3)},
    ):
        with pytest.raises(UsageError, match="not one of this workload"):
            workload.restore(wrong)
    workload.restore(good)


def test_batch_statistics_travel_and_weight_decay_leaves_them_alone():
    chosen = recipe(model={"name": "resnet20", "norm": "batchnorm"}, training={"lr": 0.0, "batch_size": 4})
    workload = training.build_workload(chosen, 0)
    x, n = workload.initial(1), workload.layout.trainable_size
    assert workload.layout.size - n == 2 * 688
    delta = workload.local_update(x, 0).delta
    assert (delta[:n] == 0).all()
    assert (delta[n:] != 0).mean() > 0.9
    means = workload.layout.views(x + delta)["1.0.running_mean"]
    assert np.abs(means).max() > 0
    decayed = replace(chosen, training=replace(chosen.training, lr=0.1, weight_decay=0.5))
    assert np.array_equal(training.build_workload(decayed, 0).local_update(x, 0).delta[n:], delta[n:])


def test_evaluate_counts_right_answers():
    workload = training.build_workload(recipe(model={"params": {"hidden": []}}), 0)
    x = np.zeros(workload.layout.size, np.float32)
    workload.layout.views(x)["1.bias"][4] = 100.0  # always says 4
    labels = open_data(recipe().data).test.labels
    metrics = workload.evaluate(x)
    assert metrics.examples == 355
    assert metrics.accuracy == pytest.approx((labels == 4).mean())
    assert metrics.loss == pytest.approx(100 * (labels != 4).mean(), rel=1e-5)
    assert workload.evaluate(x, 100).accuracy == pytest.approx((labels[:100] == 4).mean())
    assert workload.evaluate(x, 10**6) == metrics
    with pytest.raises(UsageError, match="at least one example"):
        workload.evaluate(x, 0)


def test_evaluation_uses_running_statistics():
    batchnorm = {"name": "resnet20", "norm": "batchnorm"}
    chosen = recipe(model=batchnorm, data={"test_examples": 6}, training={"device": "cpu"})
    workload = training.build_workload(chosen, 0)
    x = workload.initial(1)
    x = x + workload.local_update(x, 0).delta
    model = models.build(chosen.model, (1, 8, 8), 10).eval()
    views = workload.layout.views(x)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in views.items()}, strict=False)
    data = open_data(chosen.data)
    with torch.no_grad():
        logits = model(Normalize.of(data.about)(data.test.inputs.take(np.arange(6))))
        expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(data.test.labels)).item()
    assert workload.evaluate(x).loss == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_is_not_finite_is_an_error():
    workload = training.build_workload(recipe(model=SMALL), 2)
    x = workload.initial(1)
    x[3] = np.nan
    with pytest.raises(UsageError, match=r"board 2: the training loss became nan in round 7.*smaller training\.lr"):
        workload.local_update(x, 7)


def test_a_vector_of_another_size_is_refused():
    workload = training.build_workload(recipe(model=SMALL), 0)
    for wrong in (np.zeros(3, np.float32), np.zeros(workload.layout.size)):
        with pytest.raises(UsageError, match=r"expected a .*float32\[610\]"):
            workload.local_update(wrong, 0)


@pytest.mark.parametrize(("name", "norm"), [("mlp", "evonorm-s0"), ("resnet20", "batchnorm"), ("vgg11", "groupnorm")])
def test_layout_of_is_the_layout_of_the_workload(name, norm):
    chosen = recipe(model={"name": name, "norm": norm}, data={"train_examples": 50})
    assert training.layout_of(chosen) == training.build_workload(chosen, 0).layout


def test_layout_of_needs_no_data_files():
    assert (
        training.layout_of(recipe(model={"name": "cnn"}, data={"name": "cifar10", "dir": "/nonexistent"})).size
        == 156_074
    )


def test_cifar_board_trains_on_its_share(tmp_path):
    write_cifar(tmp_path)
    chosen = recipe(
        data={"name": "cifar10", "dir": str(tmp_path), "train_examples": 64, "test_examples": 16, "augment": True},
        model={"name": "cnn"},
        training={"batch_size": 8},
    )
    workload = training.build_workload(chosen, 3)
    x = workload.initial(1)
    assert np.isfinite(workload.local_update(x, 0).delta).all()
    assert workload.evaluate(x).examples == 16


def test_board_number_is_checked():
    for index in (-1, 4):
        with pytest.raises(ConfigError, match=rf"board {index} does not exist: boards are 0 to 3"):
            training.build_workload(recipe(), index)


def test_more_data_than_examples_in_a_batch():
    workload = training.build_workload(recipe(data={"train_examples": 20}, training={"batch_size": 500}), 0)
    assert workload.local_update(workload.initial(1), 0).examples == 5


@pytest.mark.parametrize("name", recipes.names())
def test_recipes_of_the_package_name_things_that_exist(name, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEGOSSIP_DATA", str(tmp_path))
    chosen = recipes.load(name)
    if chosen.data.name == "digits":
        training.check(chosen)
    else:
        with pytest.raises(DataError, match=f"edgegossip data download {chosen.data.name}"):
            training.check(chosen)
    assert training.layout_of(chosen).size > 0


def run_in_one_process(chosen):
    """D-PSGD on a ring or FedAvg, uncompressed, in a few lines; test accuracies of the boards."""
    boards = [training.build_workload(chosen, k) for k in range(chosen.run.nodes)]
    n = len(boards)
    models = [boards[0].initial(chosen.run.seed)] * n
    for t in range(chosen.run.rounds):
        stepped = [x + b.local_update(x, t).delta for b, x in zip(boards, models, strict=True)]
        if chosen.run.mode == "server":
            models = [sum(stepped) / np.float32(n)] * n
        else:
            models = [(stepped[k - 1] + stepped[k] + stepped[(k + 1) % n]) / np.float32(3) for k in range(n)]
    return [b.evaluate(x).accuracy for b, x in zip(boards, models, strict=True)]


@pytest.mark.parametrize("name", ["quickstart-gossip", "quickstart-server"])
def test_quickstart_recipes_learn(name):
    assert min(run_in_one_process(recipes.load(name))) >= 0.96


@pytest.mark.parametrize("channels", [1, 3])
def test_images_reach_the_network_in_the_order_that_its_fast_kernels_want(channels):
    images = torch.arange(2 * channels * 5 * 4, dtype=torch.float32).reshape(2, channels, 5, 4)
    turned = channels_last(images)
    assert torch.equal(turned, images) and turned.stride() == (20 * channels, 1, 4 * channels, channels)
    out = torch.nn.Conv2d(channels, 8, 3)(turned)
    assert out.stride()[1] == 1  # and stays so
