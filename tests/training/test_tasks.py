"""Tasks: their losses and scores against ones computed by hand, shapes that models give, and
training of each kind."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip.recipe import TrainingSection
from edgegossip.training import tasks
from edgegossip.training.check import check_task, task_of
from edgegossip.training.data.base import IGNORED, DataSet, Description, Examples, InMemory
from edgegossip.training.workload import TorchWorkload
from edgegossip.types import ConfigError, Metrics, UsageError
from tests.training.fakes import recipe

CLASS = Description((6,), 3, dtype="float32")
LABELS = Description((6,), 4, dtype="float32", target="labels", target_shape=(4,))
VALUES = Description((6,), 0, dtype="float32", target="values", target_shape=(2,))
ONE_VALUE = Description((6,), 0, dtype="float32", target="values")
PLACES = Description((1, 4, 4), 3, dtype="float32", target="places", target_shape=(4, 4))
TOKENS = Description((5,), 7, dtype="int64", target="tokens")
NONE = Description((6,), 0, dtype="float32", target="none")
EVERY = {
    "classification": CLASS,
    "multilabel": LABELS,
    "regression": VALUES,
    "segmentation": PLACES,
    "language-model": TOKENS,
    "autoencoder": NONE,
}


def evaluated(task: tasks.Task, outputs: Tensor, targets: Tensor, cuts: tuple[int, ...] = (3,)) -> Metrics:
    """As an evaluation does it, in batches that end at `cuts`."""
    sums: dict[str, Any] = {}
    edges = (0, *cuts, len(targets))
    for start, end in itertools.pairwise(edges):
        fitted = task.fit(outputs[start:end], targets[start:end])
        for name, value in task.sums(*fitted).items():
            sums[name] = sums.get(name, 0.0) + value.cpu().double().numpy()
    loss, scores = task.scores(sums)
    return Metrics(loss, len(targets), scores)


@pytest.mark.parametrize(("name", "about"), EVERY.items())
def test_the_task_follows_from_the_targets(name: str, about: Description) -> None:
    assert task_of(TrainingSection(), about) == name
    assert task_of(TrainingSection(task=name), about) == name


def test_a_task_that_does_not_fit_the_targets_names_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r'"regression" does not fit data whose targets are one class.*classification'
    ):
        task_of(TrainingSection(task="regression"), CLASS)
    with pytest.raises(ConfigError, match="set training.task = multilabel or autoencoder"):
        task_of(TrainingSection(task="classification"), LABELS)
    with pytest.raises(ConfigError, match="did you mean segmentation"):
        check_task(TrainingSection(task="segmentaton"))
    with pytest.raises(ConfigError, match="did you mean delta"):
        check_task(TrainingSection(task="regression", task_params={"detla": 1.0}))
    with pytest.raises(ConfigError, match="classification has no parameters"):
        check_task(TrainingSection(task="classification", task_params={"loss": "mse"}))
    with pytest.raises(ConfigError, match="classification has no parameters"):
        task_of(TrainingSection(task_params={"loss": "mse"}), CLASS)


def test_classification() -> None:
    task = tasks.make(TrainingSection(), CLASS)
    outputs, targets = torch.randn(8, 3), torch.tensor([0, 1, 2, 2, 1, 0, 1, 1])
    assert torch.equal(task.loss(*task.fit(outputs, targets)), F.cross_entropy(outputs, targets))
    found = evaluated(task, outputs, targets)
    assert found.loss == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-6)
    assert found.scores == {"accuracy": pytest.approx((outputs.argmax(1) == targets).float().mean().item())}


def test_smoothing_and_class_weights_are_torchs_and_of_training_alone() -> None:
    section = TrainingSection(label_smoothing=0.1, class_weights=[1.0, 2.0, 0.5])
    task, plain = tasks.make(section, CLASS), tasks.make(TrainingSection(), CLASS)
    outputs, targets = torch.randn(8, 3), torch.tensor([0, 1, 2, 2, 1, 0, 1, 1])
    weights = torch.tensor([1.0, 2.0, 0.5])
    assert torch.equal(task.loss(outputs, targets), F.cross_entropy(outputs, targets, weights, label_smoothing=0.1))
    assert float(task.terms(targets)) == 2 + 8 + 1
    assert evaluated(task, outputs, targets) == evaluated(plain, outputs, targets)


@pytest.mark.parametrize(
    ("settings", "about", "words"),
    [
        ({"class_weights": [1.0]}, CLASS, "has 1 numbers and the data have 3 classes"),
        ({"class_weights": [0.0, 0.0, 0.0]}, CLASS, "all 0"),
        ({"class_weights": [1.0, 1.0]}, VALUES, "class_weights is set, and regression takes none"),
        ({"label_smoothing": 0.1}, LABELS, "multilabel has no classes to smooth"),
        ({"task_params": {"loss": "mze"}}, VALUES, "did you mean mae|did you mean mse"),
        ({"task_params": {"delta": 2.0}}, VALUES, 'delta is of loss = "huber" only'),
        ({"task_params": {"loss": "huber", "delta": "a"}}, VALUES, "delta = 'a': must be a number from"),
        ({"task": "autoencoder"}, TOKENS, "does not fit"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], about: Description, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tasks.make(TrainingSection(**settings), about)


def test_multilabel() -> None:
    task = tasks.make(TrainingSection(class_weights=[1.0, 2.0, 1.0, 1.0]), LABELS)
    outputs = torch.tensor([[2.0, -1.0, 0.5, -3.0], [1.0, 1.0, -1.0, -1.0], [-2.0, -2.0, -2.0, 4.0]])
    targets = torch.tensor([[True, False, False, False], [True, True, True, False], [False, False, False, True]])
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0])
    expected = F.binary_cross_entropy_with_logits(outputs, targets.float(), pos_weight=weights)
    assert torch.equal(task.loss(*task.fit(outputs, targets)), expected)
    found = evaluated(task, outputs, targets, (1, 2))
    assert list(found.scores) == ["f1", "accuracy"]
    assert found.scores["f1"] == pytest.approx(2 * 4 / (2 * 4 + 1 + 1)) and found.accuracy == pytest.approx(10 / 12)
    assert found.loss == pytest.approx(F.binary_cross_entropy_with_logits(outputs, targets.float()).item())
    strict = tasks.make(TrainingSection(task_params={"threshold": 0.9}), LABELS)
    assert evaluated(strict, outputs, targets).scores["f1"] == pytest.approx(2 * 1 / (1 + 5))
    none = evaluated(task, torch.full((3, 4), -1.0), torch.zeros(3, 4, dtype=torch.bool))
    assert none.scores == {"f1": 0.0, "accuracy": 1.0}


@pytest.mark.parametrize("kind", tasks.LOSSES)
def test_regression(kind: str) -> None:
    task = tasks.make(TrainingSection(task_params={"loss": kind}), VALUES)
    outputs, targets = torch.randn(9, 2), 3 + 2 * torch.randn(9, 2)
    expected = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}[kind](outputs, targets)
    assert torch.equal(task.loss(*task.fit(outputs, targets)), expected)
    found = evaluated(task, outputs, targets, (4, 5))
    gap = (outputs - targets).double()
    spread = (targets - targets.mean(0)).double().square().sum()
    assert list(found.scores) == ["mae", "rmse", "r2"] and found.accuracy is None
    assert found.loss == pytest.approx(expected.item(), rel=1e-6)
    assert found.scores["mae"] == pytest.approx(gap.abs().mean().item())
    assert found.scores["rmse"] == pytest.approx(gap.square().mean().sqrt().item())
    assert found.scores["r2"] == pytest.approx(1 - (gap.square().sum() / spread).item(), rel=1e-5)


def test_r2_is_one_for_the_truth_and_absent_where_targets_are_all_the_same() -> None:
    task = tasks.make(TrainingSection(), ONE_VALUE)
    y = torch.arange(6.0)
    assert evaluated(task, y[:, None], y).scores == {"mae": 0.0, "rmse": 0.0, "r2": 1.0}
    assert evaluated(task, torch.full((6, 1), 2.5), y).scores["r2"] == pytest.approx(0.0)
    assert list(evaluated(task, y, torch.full((6,), 1e6)).scores) == ["mae", "rmse"]


def test_regression_takes_values_in_a_row_and_whole_numbers() -> None:
    about = Description((6,), 0, dtype="float32", target="values", target_shape=(2, 3))
    task, targets = tasks.make(TrainingSection(), about), torch.arange(24).reshape(4, 2, 3)
    for outputs in (torch.zeros(4, 2, 3), torch.zeros(4, 6)):
        fitted, wanted = task.fit(outputs, targets)
        assert fitted.shape == wanted.shape == (4, 2, 3) and wanted.dtype == torch.float32
    with pytest.raises(UsageError, match=r"gave outputs of shape \(4, 5\); expected \(4, 2, 3\) or \(4, 6\)"):
        task.fit(torch.zeros(4, 5), targets)
    single = tasks.make(TrainingSection(), ONE_VALUE)
    assert single.fit(torch.zeros(4, 1), torch.zeros(4))[0].shape == (4,)
    with pytest.raises(UsageError, match=r"expected \(4,\) or \(4, 1\)"):
        single.fit(torch.zeros(4, 4), torch.zeros(4))


def test_segmentation() -> None:
    task = tasks.make(TrainingSection(), PLACES)
    torch.manual_seed(3)
    outputs, targets = torch.randn(5, 3, 4, 4), torch.randint(0, 2, (5, 4, 4))
    targets[0, 0] = IGNORED
    expected = F.cross_entropy(outputs, targets)
    assert task.loss(*task.fit(outputs, targets)).item() == pytest.approx(expected.item(), rel=1e-6)
    last = outputs.movedim(1, -1)
    assert torch.equal(task.fit(last, targets)[0], outputs)
    found = evaluated(task, outputs, targets, (1, 4))
    said, counted = outputs.argmax(1), targets != IGNORED
    shares = []
    for k in range(3):
        mine, right = (said == k) & counted, targets == k
        shares.append((mine & right).sum().item() / (mine | right).sum().item())
    assert list(found.scores) == ["iou", "accuracy"]
    assert found.scores["iou"] == pytest.approx(np.mean(shares))
    assert found.accuracy == pytest.approx((said == targets)[counted].float().mean().item())
    assert found.loss == pytest.approx(expected.item(), rel=1e-6)
    with pytest.raises(UsageError, match=r"expected \(5, 3, 4, 4\) or \(5, 4, 4, 3\)"):
        task.fit(outputs[:, :2], targets)


def test_a_batch_in_which_no_place_counts_teaches_nothing() -> None:
    task = tasks.make(TrainingSection(), PLACES)
    outputs = torch.randn(2, 3, 4, 4, requires_grad=True)
    loss = task.loss(*task.fit(outputs, torch.full((2, 4, 4), IGNORED)))
    loss.backward()
    assert loss.item() == 0.0 and outputs.grad is not None and not outputs.grad.any()
    nothing = evaluated(task, outputs.detach(), torch.full((2, 4, 4), IGNORED), ())
    assert nothing == Metrics(0.0, 2, {"accuracy": 0.0})


def test_language_model() -> None:
    task = tasks.make(TrainingSection(label_smoothing=0.1), TOKENS)
    tokens, outputs = torch.randint(0, 7, (4, 5)), torch.randn(4, 5, 7)
    ahead, wanted = outputs[:, :-1].reshape(-1, 7), tokens[:, 1:].reshape(-1)
    expected = F.cross_entropy(ahead, wanted, label_smoothing=0.1)
    assert task.of_inputs and float(task.terms(tokens)) == 16
    assert task.loss(*task.fit(outputs, tokens)).item() == pytest.approx(expected.item(), rel=1e-6)
    found = evaluated(task, outputs, tokens)
    plain = F.cross_entropy(ahead, wanted).item()
    assert list(found.scores) == ["perplexity", "accuracy"] and found.loss == pytest.approx(plain, rel=1e-6)
    assert found.scores["perplexity"] == pytest.approx(math.exp(plain), rel=1e-5)
    assert found.accuracy == pytest.approx((ahead.argmax(1) == wanted).float().mean().item())
    with pytest.raises(UsageError, match=r"shape \(4, 7\); expected \(4, 5, 7\)"):
        task.fit(outputs[:, 0], tokens)


def test_a_language_model_with_targets_of_its_own_is_not_shifted() -> None:
    about = Description((5,), 7, dtype="int64", target="places", target_shape=(5,))
    task = tasks.make(TrainingSection(task="language-model"), about)
    outputs, targets = torch.randn(4, 5, 7), torch.randint(0, 7, (4, 5))
    targets[:, 0] = IGNORED
    expected = F.cross_entropy(outputs.reshape(-1, 7), targets.reshape(-1)).item()
    assert not task.of_inputs and evaluated(task, outputs, targets).loss == pytest.approx(expected, rel=1e-6)


def test_perplexity_is_finite_whatever_the_loss() -> None:
    task = tasks.make(TrainingSection(), TOKENS)
    sums = {name: np.float64(v) for name, v in (("loss", 1e9), ("count", 2.0), ("right", 0.0))}
    assert math.isfinite(task.scores(sums)[1]["perplexity"])  # type: ignore[arg-type]


def test_autoencoder() -> None:
    task = tasks.make(TrainingSection(), Description((2, 3), 0, dtype="float32", target="none"))
    inputs, outputs = torch.randn(4, 2, 3), torch.randn(4, 6)
    found = evaluated(task, outputs, inputs)
    assert task.of_inputs and found.scores == {"mse": found.loss}
    assert found.loss == pytest.approx(F.mse_loss(outputs, inputs.reshape(4, 6)).item())
    tokens = Description((5,), 7, dtype="int64", target="none")
    with pytest.raises(ConfigError, match="needs numbers, and the inputs are tokens"):
        tasks.make(TrainingSection(), tokens)


def contrast(outputs: Tensor, targets: Tensor, margin: float = 1.0) -> tuple[Tensor, dict[str, Any]]:
    gap = (outputs[:, 0] - targets).abs()
    return (gap - margin).clamp(min=0).mean(), {"within": (gap < margin).float().mean(), "gap": float(gap.mean())}


def careless(outputs: Tensor, targets: Tensor) -> Any:
    return outputs.mean()


def wordy(outputs: Tensor, targets: Tensor) -> Any:
    return outputs.mean(), {"Not A Name": 1.0}


def undefined(outputs: Tensor, targets: Tensor) -> Any:
    return outputs.mean(), {"auc": math.nan, "mean": torch.tensor(2.0), "worst": math.inf}


def test_a_score_that_is_no_number_is_left_out() -> None:
    board = TorchWorkload(
        recipe(model={"name": f"{__name__}:net"}, training={"task": f"{__name__}:undefined"}),
        0,
        data_for(ONE_VALUE),
        np.arange(40),
    )
    found = board.evaluate(board.initial(1))
    assert found is not None and found.scores == {"mean": 2.0}


def test_a_function_of_ones_own() -> None:
    task = tasks.make(TrainingSection(task=f"{__name__}:contrast", task_params={"margin": 0.5}), ONE_VALUE)
    outputs, targets = torch.tensor([[1.0], [2.0], [9.0], [3.0]]), torch.tensor([1.0, 2.2, 3.0, 5.0])
    assert task.loss(*task.fit(outputs, targets)).item() == pytest.approx((5.5 + 1.5) / 4)
    found = evaluated(task, outputs, targets)
    assert found.scores == {"within": pytest.approx(0.5), "gap": pytest.approx(8.2 / 4)}
    assert found.headline == ("within", pytest.approx(0.5))
    for name, words in (("careless", "must return .loss, scores."), ("wordy", "wordy: a score is named 'Not A Name'")):
        made = tasks.make(TrainingSection(task=f"{__name__}:{name}"), ONE_VALUE)
        with pytest.raises(UsageError, match=words):
            made.sums(outputs, targets)
    with pytest.raises(ConfigError, match="did you mean"):
        check_task(TrainingSection(task=f"{__name__}:contrats"))


# Training of each kind, through the workload


def net(shape: tuple[int, ...], outputs: int, norm: str) -> nn.Module:
    """One layer, of the shape that the task asks for."""
    if len(shape) == 3:
        return nn.Conv2d(shape[0], outputs, 3, padding=1)
    if outputs == 7:
        return nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, outputs))
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def data_for(about: Description, count: int = 60) -> DataSet:
    """Examples whose targets follow from their inputs."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(count, *about.shape)).astype(np.float32)
    if about.target == "class":
        y: Any = x[:, :3].argmax(1)
    elif about.target == "labels":
        y = (x[:, :4] > 0).astype(np.float32)
    elif about.target == "values":
        y = np.stack([x.sum(1), x[:, 0] - 1], 1).astype(np.float32)
    elif about.target == "places":
        y = (x[:, 0] > 0).astype(np.int64) + (x[:, 0] > 1)
    elif about.target == "tokens":
        x = (np.arange(5) + draw.integers(0, 7, (count, 1))) % 7
        y = np.zeros(count, np.int64)
    else:
        y = np.zeros(count, np.int64)
    return DataSet("made-up", about, Examples(y[:40], InMemory(x[:40])), Examples(y[40:], InMemory(x[40:])))


@pytest.mark.parametrize("memory", ["normal", "low"])
@pytest.mark.parametrize(("name", "about"), EVERY.items())
def test_every_task_learns(name: str, about: Description, memory: str) -> None:
    chosen = recipe(
        model={"name": f"{__name__}:net"},
        training={"lr": 0.05, "memory": memory, "local_steps": 40, "optimizer": "adam", "batch_size": 20},
    )
    board = TorchWorkload(chosen, 0, data_for(about), np.arange(40))
    x = board.initial(1)
    before = board.evaluate(x)
    update = board.local_update(x, 0)
    after = board.evaluate(x + update.delta)
    assert before is not None and after is not None and after.loss < 0.7 * before.loss
    assert update.holds == 40 and update.examples == 800 and after.examples == 20
    assert name == "autoencoder" or len(after.scores) == {"classification": 1, "regression": 3}.get(name, 2)


def test_an_autoencoder_learns_its_inputs_whatever_labels_are_beside_them() -> None:
    settings = {"task": "autoencoder", "lr": 0.01, "local_steps": 40, "optimizer": "adam"}
    chosen = recipe(data={"name": "digits"}, model={"name": "mlp"}, training=settings)
    board = TorchWorkload.build(chosen, 0)
    x = board.initial(1)
    before, after = board.evaluate(x), board.evaluate(x + board.local_update(x, 0).delta)
    assert before is not None and after is not None
    assert after.scores == {"mse": after.loss} and after.loss < 0.8 * before.loss


@pytest.mark.parametrize(("name", "about"), EVERY.items())
def test_a_batch_in_parts_is_the_batch(name: str, about: Description) -> None:
    data = data_for(about)
    if name == "segmentation":
        data.train.labels[:3] = IGNORED  # parts with different numbers of places
    updates = []
    for memory in ("normal", "low"):
        weights = {"class_weights": [1.0, 3.0, 0.2]} if name in ("classification", "segmentation") else {}
        chosen = recipe(
            model={"name": f"{__name__}:net"}, training={"memory": memory, "batch_size": 21, "lr": 0.05, **weights}
        )
        board = TorchWorkload(chosen, 0, data, np.arange(40))
        updates.append(board.local_update(board.initial(1), 0))
    one, other = updates
    np.testing.assert_allclose(other.delta, one.delta, atol=1e-6)
    assert other.loss == pytest.approx(one.loss, rel=1e-5)


class Wrapped(nn.Module):
    """Gives its logits in something, as transformers' and torchvision's models do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(6, 3), how

    def forward(self, x: Tensor) -> Any:
        found = self.linear(x)
        if self.how == "dict":
            return {"out": found, "aux": found}
        return type("Output", (), {"logits": found})() if self.how == "object" else (found, found)


def wrapped(shape: tuple[int, ...], outputs: int, norm: str, how: str) -> nn.Module:
    return Wrapped(how)


@pytest.mark.parametrize("how", ["dict", "object", "tuple"])
def test_logits_inside_what_a_model_gives_are_found(how: str) -> None:
    board = TorchWorkload(
        recipe(model={"name": f"{__name__}:wrapped", "params": {"how": how}}), 0, data_for(CLASS), np.arange(40)
    )
    x = board.initial(1)
    if how == "tuple":
        with pytest.raises(UsageError, match=r"wrapped must give a tensor, or something with a tensor named logits"):
            board.local_update(x, 0)
    else:
        assert np.isfinite(board.local_update(x, 0).delta).all()
