"""The recipes of the papers are the papers': their settings line by line, what their codecs send,
where momentum is put; and they run as their comments say.

LP is Aketi, Kodge, Roy 2021, "Low precision decentralized distributed training with heterogeneous
data"; the others have their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, training
from edgegossip import recipe as recipes
from edgegossip.codecs.base import Ctx
from edgegossip.engine.combine import Mean, with_outer
from edgegossip.engine.server_frames import Channel, frame_key
from edgegossip.gossip import outer
from edgegossip.gossip.parallel import Parallel
from edgegossip.layout import Layout, TensorSpec
from edgegossip.node.spec import default_members, make_algorithm, make_topology
from edgegossip.recipe import Recipe
from edgegossip.studies.cases import StudyPlan, make_cases
from edgegossip.studies.measure import ModelRecorder
from edgegossip.studies.run_case import DataSetCache, run_case
from edgegossip.studies.server import VirtualServer
from edgegossip.types import Metrics
from tests.one_thread import one_thread

_one_thread = one_thread

PAPERS = ("elastiquant", "qsgd", "elasticl", "co3", "bagua", "low-precision", "choco", "deep-squeeze")
SETTINGS = [  # recipe, section of its paper, key, value
    ("elastiquant", "table 4", "run.nodes", 6),
    ("elastiquant", "table 4", "model.name", "resnet18"),
    ("elastiquant", "3.4: behind the decoder", "training.momentum", 0.0),
    ("elastiquant", "3: the sum of all", "server.weighting", "uniform"),
    ("elastiquant", "3: one gradient an iteration", "training.local_steps", 1),
    ("qsgd", "3.4: behind the decoder", "training.momentum", 0.0),
    ("co3", "table II", "training.lr", 0.01),
    ("co3", "table II", "training.momentum", 0.0),
    ("co3", "table II", "training.batch_size", 64),
    ("co3", "table II: a constant rate", "training.schedule", "constant"),
    ("co3", "IV.C", "codec.params", {"gamma": 0.9}),
    ("co3", "algorithm 1, line 14", "server.weighting", "uniform"),
    ("elasticl", "3", "training.lr", 0.1),
    ("elasticl", "3", "training.local_steps", 10),
    ("elasticl", "3", "run.nodes", 10),
    ("elasticl", "3: every 100 rounds", "training.step_rounds", 100),
    ("elasticl", "3: times 0.9", "training.step_factor", 0.9),
    ("bagua", "steps 1 to 5", "gossip.algorithm", "bagua-lp"),
    ("bagua", "its quantisation function", "codec.name", "minmax8"),
    ("bagua", "step 2: the gradient alone", "training.momentum", 0.0),
    ("low-precision", "LP 3: range EvoNorm with 8 bits", "model.norm", "range-evonorm"),
    ("low-precision", "LP 3", "training.precision", "int8"),
    ("low-precision", "LP 3: gradient bifurcation, 16 bits", "training.dw", 16),
    ("low-precision", "LP table 2, 0 %", "codec.name", "fp32"),
    ("low-precision", "LP 8.1: 1 without compression", "gossip.params", {"eta": 1.0}),
    *(
        row
        for name, algorithm in (
            ("low-precision", "quant-sgp"),
            ("choco", "quant-sgp"),
            ("deep-squeeze", "sparse-push"),
        )
        for row in (
            (name, "LP 8.1: algorithms 4 and 5", "gossip.algorithm", algorithm),
            (name, "LP table 2", "gossip.topology", "directed-ring"),
            (name, "LP table 2", "run.nodes", 8),
            (name, "LP table 2", "model.name", "resnet20"),
            (name, "LP 4.1", "training.lr", 0.1),
            (name, "LP 4.1: epochs 100 and 150 of 200", "training.milestones", [0.5, 0.75]),
            (name, "LP 4.1: a factor of 10", "training.step_factor", 0.1),
            (name, "LP 8.2", "training.momentum", 0.9),
            (name, "LP 8.2", "training.nesterov", True),
            (name, "LP 8.2: crops and flips", "data.augment", True),
            (name, "LP table 2", "data.skew", 0.0),
        )
    ),
    *(
        row
        for name in ("choco", "deep-squeeze")
        for row in (
            (name, "LP 4: S0 in full precision", "model.norm", "evonorm-s0"),
            (name, "LP 4: full precision", "training.precision", "fp32"),
            (name, "LP table 2, 99 %", "codec.params", {"ratio": 0.01}),
            (name, "LP 4.1: the largest of each layer", "codec.name", "topk"),
        )
    ),
]


@pytest.mark.parametrize(("name", "section", "key", "value"), SETTINGS, ids=lambda v: str(v))
def test_a_setting_is_its_papers(name: str, section: str, key: str, value: Any) -> None:
    part, _, field = key.partition(".")
    assert getattr(getattr(recipes.load(name), part), field) == value, f"{name}: section {section}"


@pytest.mark.parametrize(
    ("name", "epochs"), [("co3", 150), ("low-precision", 200), ("choco", 200), ("deep-squeeze", 200)]
)
def test_runs_are_as_long_as_the_papers(name: str, epochs: int) -> None:
    """CO3, table II; LP, section 4.1: epochs of CIFAR-10's 50,000 images, the last batch cut."""
    recipe = recipes.load(name)
    share = 50_000 / recipe.run.nodes
    assert epochs * share / recipe.training.batch_size == pytest.approx(recipe.run.rounds, rel=0.01)


def magnitudes(name: str, x: np.ndarray) -> np.ndarray:
    """What magnitudes the recipe's codec makes of a vector, under many keys."""
    section = recipes.load(name).codec
    codec = codecs.get(section.name, **section.params)
    layout = Layout.of([TensorSpec("w", (x.size,))])
    bodies = [codec.encode(x, codec.init(layout), Ctx(key, 0))[0] for key in range(30)]
    return np.unique(np.abs([codec.decode(body, layout) for body in bodies]))


# Of an L2 norm of 1 but for what a norm's 16 bits round up.
SPREAD = np.array([0.8, 0.5, 0.28, 0.15, 0.08, 0.04, 0.02, 0.01, 0.001, 0.0], np.float32)
SPREAD /= np.linalg.norm(SPREAD)


def test_elastiquants_levels() -> None:
    """Section 3.1: 0, 1/2^s, ..., 1/2, 1 of the L2 norm, with a sign; in 4 bits s = 6."""
    found = magnitudes("elastiquant", SPREAD)
    np.testing.assert_allclose(found, [0.0, *(2.0**-k for k in range(6, -1, -1))], rtol=2**-8)


def test_qsgds_levels() -> None:
    """The comparison of ElastiQuant's section 4.2: uniform levels of the L2 norm, in 4 bits 7 of
    them and 0, with a sign."""
    found = magnitudes("qsgd", SPREAD)
    np.testing.assert_allclose(found, np.arange(7) / 7, rtol=2**-8)


@pytest.mark.parametrize(("loss", "lr"), [(2.0, 0.1), (0.5, 0.1), (0.125, 0.09), (0.02, 0.05)])
def test_elasticls_levels(loss: float, lr: float) -> None:
    """ElastiCL, equation 4: s_k = s_0 lr_k / lr_0 sqrt(f(w_0) / f(w_k)), to the nearest integer;
    its section 3: uniform levels of the L2 norm of the whole vector. The paper's rule: losses as
    they come, one tensor."""
    section = recipes.load("elasticl").codec
    codec = codecs.get(section.name, **{**section.params, "smoothing": 0.0})
    layout = Layout.of([TensorSpec("a", (SPREAD.size,))])
    _, state = codec.encode(SPREAD, codec.init(layout), Ctx(1, 0, 2.0, 0.1))
    s = round(section.params["s0"] * lr / 0.1 * (2.0 / loss) ** 0.5)
    bodies = [codec.encode(SPREAD, state, Ctx(key, 1, loss, lr))[0] for key in range(60)]
    found = np.unique(np.abs([codec.decode(body, layout) for body in bodies])) * s
    np.testing.assert_allclose(found, np.round(found), atol=1e-3)
    assert abs(found[-1] - SPREAD[0] * s) < 1


def test_elasticls_recipe_smooths_losses_and_has_a_norm_a_tensor() -> None:
    """Where the recipe is not the paper's: f is a tenth of the new loss and nine of the old one,
    and each tensor has levels of its own norm."""
    section = recipes.load("elasticl").codec
    codec = codecs.get(section.name, **section.params)
    layout = Layout.of([TensorSpec("a", (SPREAD.size,)), TensorSpec("b", (SPREAD.size,))])
    x = np.concatenate([SPREAD, 100 * SPREAD])
    _, state = codec.encode(x, codec.init(layout), Ctx(1, 0, 2.0, 0.1))
    s = round(section.params["s0"] * (2.0 / (0.9 * 2.0 + 0.1 * 0.02)) ** 0.5)
    bodies = [codec.encode(x, state, Ctx(key, 1, 0.02, 0.1))[0] for key in range(60)]
    found = np.abs([codec.decode(body, layout) for body in bodies]) * s
    for tensor in (found[:, : SPREAD.size], found[:, SPREAD.size :] / 100):
        np.testing.assert_allclose(tensor, np.round(tensor), atol=1e-3)
        assert abs(tensor.max() - SPREAD[0] * s) < 1


def test_baguas_levels() -> None:
    """Bagua: evenly spaced between smallest and largest, 8 bits."""
    found = magnitudes("bagua", np.linspace(0.0, 1.0, 4000, dtype=np.float32))
    assert len(found) == 256 and np.ptp(np.diff(found)) < 1e-5


def test_co3s_grid() -> None:
    """CO3, section III: 1 sign, 2 exponent and 1 mantissa bits."""
    found = magnitudes("co3", np.random.default_rng(0).laplace(size=20_000).astype(np.float32))
    np.testing.assert_allclose(found / found[1], [0, 1, 2, 3, 4, 6], rtol=1e-5)


@pytest.mark.parametrize("name", ["choco", "deep-squeeze"])
def test_one_in_a_hundred_of_each_layer_travels(name: str) -> None:
    """LP, section 4.1: layer-wise top-k, 99 % left out."""
    recipe = recipes.load(name)
    codec = codecs.get(recipe.codec.name, **recipe.codec.params)
    layout = Layout.of([TensorSpec("loud", (1000,)), TensorSpec("quiet", (500,))])
    x = np.random.default_rng(1).normal(size=1500).astype(np.float32)
    x[1000:] *= np.float32(1e-4)
    y = codec.decode(codec.encode(x, codec.init(layout), Ctx(1, 0))[0], layout)
    assert (np.count_nonzero(y[:1000]), np.count_nonzero(y[1000:])) == (10, 5)
    assert (y[y != 0] == x[y != 0]).all()


SMALL = {"data.name": "digits", "data.augment": False, "data.train_examples": 300, "data.test_examples": 50}
SMALL |= {"model.name": "mlp", "model.params": {"hidden": [8]}, "training.batch_size": 8}


def small(name: str, **settings: Any) -> Recipe:
    return recipes.with_settings(recipes.load(name), {**SMALL, "run.rounds": 5, "evaluation.every": 5, **settings})


@pytest.mark.parametrize("name", ["elastiquant", "qsgd"])
@pytest.mark.parametrize("kind", ["nesterov", "heavy-ball"])
def test_momentum_follows_the_decoded_mean(name: str, kind: str) -> None:
    """ElastiQuant, section 3.4: y_(t+1) = w_t - a g(w_t); y'_(t+1) = w_t - l a g(w_t); w_(t+1) =
    y_(t+1) + mu (y'_(t+1) - y'_t), g the mean of what was decoded (section 3), l = 1 or 0. In the
    recipe's own rounds: its boards, its codec, its coordinator."""
    recipe = small(name, **{"outer.optimizer": kind})
    layout, w = training.initial_model(recipe)
    codec = codecs.get(recipe.codec.name, **recipe.codec.params)
    members, run = default_members(recipe.run.nodes), recipes.run_id(recipe)
    channel = Channel.of(layout, run, codec)
    uniform = recipe.server.weighting == "uniform"
    o = recipe.outer
    optimizer = outer.OuterOptimizer(o.optimizer, o.lr, o.momentum)
    combiner = with_outer(Mean(channel, uniform=uniform), optimizer, layout)
    boards = training.build_workloads(recipe)
    server = VirtualServer(layout, run, codec, members, boards, recipe.run.rounds, uniform=uniform, combiner=combiner)
    server.play(w, ModelRecorder(len(members), frozenset(), frozenset(), lambda x: Metrics(0, 1), lambda: 0))

    l, mu = float(kind == "nesterov"), 0.9  # noqa: E741
    boards = training.build_workloads(recipe)
    w = y_dash = w.astype(np.float64)
    for t in range(recipe.run.rounds):
        a_g = np.zeros(layout.size)
        for k, board in enumerate(boards):
            update = board.local_update(w.astype(np.float32), t)
            body, _ = codec.encode(update.delta, codec.init(layout), Ctx(frame_key(run, members[k], t), t))
            a_g -= codec.decode(body, layout) / len(boards)
        y, y_dash_next = w - a_g, w - l * a_g
        w = y + mu * (y_dash_next - y_dash)
        y_dash = y_dash_next
    np.testing.assert_allclose(server.model, w, atol=2e-3)  # a level may tip where rounding differs
    assert np.median(np.abs(server.model - w)) < 1e-6


@pytest.mark.parametrize("name", ["elastiquant", "qsgd"])
def test_without_a_server_everybody_sums_with_the_same_momentum(name: str) -> None:
    recipe = recipes.load(name, ["run.mode=gossip", "outer.optimizer=none"])
    algorithm: Any = make_algorithm(recipe)
    assert algorithm.scheme == Parallel(0.9, True)
    assert recipe.training.momentum == 0.0 and recipe.gossip.momentum == "none"


def test_baguas_weights_are_a_third() -> None:
    """Bagua, step 2, by its code: L / 3 + R / 3 - 5 / 3 x + the model after its step."""
    recipe = recipes.load("bagua")
    w = make_topology(recipe, default_members(recipe.run.nodes)).matrix(0)
    near = np.eye(8) + np.roll(np.eye(8), 1, axis=0) + np.roll(np.eye(8), -1, axis=0)
    np.testing.assert_allclose(w, near / 3)


@pytest.mark.parametrize("name", PAPERS)
def test_it_runs(name: str) -> None:
    (case,) = make_cases(small(name), StudyPlan())
    result = run_case(case, DataSetCache())
    assert result["state"] == "done" and np.isfinite(result["loss"]["averaged"])


_SETTING = r'--set [a-z_.0-9]+= ?(?:"[^"]*"|[^\s,;]*[^\s,;.:])'


def offered(name: str) -> list[tuple[str, ...]]:
    """Return what the recipe's comment offers: settings that stand together; a list of values as
    one offer each."""
    text = (Path(recipes.__file__).parent / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    comment = " ".join(line.removeprefix("# ") for line in text.partition("\n[")[0].splitlines())
    found = []
    for together, others in re.findall(rf"({_SETTING}(?: {_SETTING})*)((?:, [0-9.]+\b)*)", comment):
        settings = [re.sub('= ?"?', "=", one, count=1).strip(' "') for one in together.split("--set ") if one]
        found.append(tuple(settings))
        key = settings[-1].partition("=")[0]
        found += [(*settings[:-1], f"{key}={other}") for other in re.findall(r"[0-9.]+\b", others)]
    return found


@pytest.mark.parametrize(
    ("name", "settings"), [(name, settings) for name in PAPERS for settings in offered(name)], ids=str
)
def test_what_its_comment_offers_runs(name: str, settings: tuple[str, ...]) -> None:
    recipe = recipes.with_settings(recipes.load(name, settings), {**SMALL, "run.rounds": 1, "evaluation.every": 1})
    (case,) = make_cases(recipe, StudyPlan())
    assert run_case(case, DataSetCache())["state"] == "done"
