"""The steps of an optimiser: what is done to a gradient, and in which order, by a recipe and by a
script alike; and whether they reach the model that takes part in the run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgegossip.recipe import TrainingSection
from edgegossip.training import optimizer as optimizers
from edgegossip.training.device import Precision
from edgegossip.training.vector import ModelVector
from edgegossip.types import UsageError
from tests.training.conftest import Start

ROWS = torch.tensor([[0, 1], [1, 1], [3, 0], [1, 4]])  # of a table with 6; 2 and 5 get no gradient
LR, CLIP, STEPS = 0.3, 0.05, 3
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}
ALL = [
    pytest.param(*combination, id="-".join(map(str, combination)))
    for combination in product(KINDS, ("dense", "sparse"), ("scaled", "as-is"), (0.0, CLIP), ("corrected", "own"))
]
# A script's clip is torch's own, and so is what a fused optimiser does with a sparse gradient: both
# refuse it, without a run as well.
OF_SCRIPTS = [
    given
    for given in ALL
    if given.values[1] == "dense" or not (given.values[3] or (given.values[0] == "fused" and given.values[4] == "own"))
]


def model_of(*, sparse: bool) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.EmbeddingBag(6, 3, sparse=sparse), nn.Linear(3, 1))


def loss_of(model: nn.Module) -> Tensor:
    return (model(ROWS) - 2.0).square().mean()


def reference(clip: float, correction: np.ndarray) -> np.ndarray:
    """x <- x - lr (clip(g) + c), in float64."""
    model = model_of(sparse=False).double()
    params = list(model.parameters())
    parts = torch.from_numpy(correction).double().split([p.numel() for p in params])
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss_of(model), params)
        length = torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros(()).double()))
        cut = min(1.0, clip / float(length)) if clip else 1.0
        with torch.no_grad():
            for p, g, c in zip(params, gradients, parts, strict=True):
                p -= LR * (cut * g + c.view_as(p))
    return np.concatenate([p.detach().numpy().ravel() for p in params])


def correction_of(kind: str) -> np.ndarray:
    size = ModelVector(model_of(sparse=False)).layout.size
    return np.linspace(-0.5, 0.5, size, dtype=np.float32) * (kind == "corrected")


@pytest.mark.parametrize(("kind", "layout", "scale", "clip", "corrected"), ALL)
def test_a_recipe_unscales_cuts_corrects_and_steps(
    kind: str, layout: str, scale: str, clip: float, corrected: str
) -> None:
    correction = correction_of(corrected)
    model = model_of(sparse=layout == "sparse")
    section = replace(TrainingSection(), lr=LR, momentum=0.0, weight_decay=0.0, optimizer_params=KINDS[kind])
    made, vector = optimizers.make(section, model), ModelVector(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scale == "scaled" else None
    precision = Precision(torch.device("cpu"), None, scaler)
    add = partial(vector.add_to_gradients, correction) if corrected == "corrected" else None
    for _ in range(STEPS):
        made.zero_grad()
        precision.backward(loss_of(model))
        precision.step(made, clip, add)
    assert np.allclose(vector.read(), reference(clip, correction), atol=2e-6)


LOOP = """
    import torch
    import edgegossip
    from tests.training.test_steps import CLIP, KINDS, LR, STEPS, loss_of, model_of

    model = model_of(sparse={sparse})
    optimizer = torch.optim.SGD(model.parameters(), LR, **KINDS["{kind}"])
    scaler = torch.amp.GradScaler("cpu", enabled={scaled}, init_scale=2.0**10)
    with edgegossip.join(model, state=[optimizer]) as run:
        for _ in run.rounds():
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = loss_of(model)
                scaler.scale(loss).backward()
                if {clip}:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), {clip})
                scaler.step(optimizer)
                scaler.update()
            run.exchange(loss=loss.item(), steps=STEPS)
"""


@pytest.mark.parametrize(("kind", "layout", "scale", "clip", "corrected"), OF_SCRIPTS)
def test_so_does_a_script(start: Start, kind: str, layout: str, scale: str, clip: float, corrected: str) -> None:
    text = LOOP.format(sparse=layout == "sparse", kind=kind, scaled=scale == "scaled", clip=clip)
    workload, correction = start(text, mode="server", server={"strategy": "scaffold"}), correction_of(corrected)
    x = workload.initial(1)
    update = workload.local_update(x, 0, correction if corrected == "corrected" else None)
    assert (update.steps, update.corrected) == (STEPS, corrected == "corrected")
    assert update.lr == LR
    assert np.allclose(x + update.delta, reference(clip, correction), atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipes_step_whose_gradients_overflow_is_none(kind: str) -> None:
    model = model_of(sparse=False)
    section = replace(TrainingSection(), lr=LR, momentum=0.0, weight_decay=0.0, optimizer_params=KINDS[kind])
    made, vector = optimizers.make(section, model), ModelVector(model)
    precision = Precision(torch.device("cpu"), None, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    add, taken = partial(vector.add_to_gradients, correction_of("corrected")), []
    for factor in (1.0, float("inf"), 1.0):
        made.zero_grad()
        precision.backward(loss_of(model) * factor)
        before = vector.read()
        taken.append(precision.step(made, CLIP, add))
        assert np.array_equal(vector.read(), before) != taken[-1]
    assert taken == [True, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_whose_gradients_overflow_is_none(start: Start, kind: str) -> None:
    """Neither corrected nor counted, whether the scaler leaves it out or a fused optimiser."""
    text = LOOP.format(sparse=False, kind=kind, scaled=True, clip=0.0).replace(
        "scaler.step(", "model[1].bias.grad *= 1.0 if _ else float('inf'); scaler.step("
    )
    workload, correction = start(text, mode="server", server={"strategy": "scaffold"}), correction_of("corrected")
    x = workload.initial(1)
    update = workload.local_update(x, 0, correction)
    assert (update.steps, update.corrected) == (STEPS - 1, True)


def test_a_round_in_which_every_step_overflowed_is_one_without_steps(start: Start) -> None:
    """It is not one that does not let its steps be corrected, which a coordinator refuses."""
    text = LOOP.format(sparse=False, kind="plain", scaled=True, clip=0.0).replace(
        "scaler.step(", "model[1].bias.grad *= float('inf'); scaler.step("
    )
    workload = start(text, mode="server", server={"strategy": "scaffold"})
    update = workload.local_update(workload.initial(1), 0, correction_of("corrected"))
    assert (update.steps, update.corrected) == (0, True) and not update.delta.any()
    by_hand = text.replace("scaler.step(optimizer)", "model[1].bias.data += 1.0").replace("scaler.update()", "pass")
    workload = start(by_hand, mode="server", server={"strategy": "scaffold"})
    assert not workload.local_update(workload.initial(1), 0, correction_of("corrected")).corrected


# -- what is trained, and what was joined

JOINED = """
    import copy
    import torch
    from torch import nn
    import edgegossip

    torch.manual_seed(5)
    x = torch.randn(32, 3)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    BEFORE
    run = edgegossip.join(model)
    AFTER
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for round in run.rounds():
        for _ in range(2):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        run.exchange(loss=loss.item())
"""


def remarks(start: Start, text: str, rounds: int = 3, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """What such a script has a board say of its model in a run: sentences and figures."""
    said: list[tuple[str, dict[str, Any]]] = []

    def event(name: str, text: str, **fields: Any) -> None:
        if name in ("unchanged", "drifted", "notice"):
            said.append((text, fields))

    workload = start(text, rounds=rounds, event=event, **options)
    x = workload.initial(1)
    for round in range(rounds):
        x = 0.9 * (x + workload.local_update(x, round).delta)  # as others' models change it
    workload.over(x)
    return said


def joined(before: str = "pass", after: str = "pass") -> str:
    return JOINED.replace("BEFORE", before).replace("AFTER", after)


@pytest.mark.parametrize(
    "after",
    [
        "model = copy.deepcopy(model)",
        "old = model; model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))",
        "model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True); model = copy.deepcopy(model)",
        "model = torch.optim.swa_utils.AveragedModel(model).module",
    ],
    ids=["copy", "factory", "assigned", "average"],
)
def test_a_model_that_is_trained_in_place_of_the_joined_one_is_told_at_once(start: Start, after: str) -> None:
    first, last = remarks(start, joined(after=after))
    assert first == (
        "board-1: in round 0 nothing of the model changed: SGD took 2 steps, none of them on the Sequential that join "
        "was given: is a copy of it trained, or another model?",
        {},
    )
    assert last[1] == {"rounds": 3, "unchanged": 3, "elsewhere": 3, "undone": 0}


REMADE = "; optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"


@pytest.mark.parametrize(
    "inside",
    [
        f"model[2] = nn.Linear(4, 1){REMADE}",
        "model[2] = nn.Linear(4, 1); optimizer.add_param_group({'params': list(model[2].parameters())})",
        "model[2] = nn.Linear(4, 1); head = torch.optim.SGD(model[2].parameters(), 0.1); head.step()",
        "if round == 0: model[2] = nn.Linear(4, 1); torch.optim.SGD(model[2].parameters(), 0.1).step()",
        "optimizer = torch.optim.SGD(model[2 * (round % 2)].parameters(), lr=0.1)",  # in turns
        "model.train(); kept = copy.deepcopy(model.state_dict()); model.load_state_dict(best); model.load_state_dict(kept)",
        "best = copy.deepcopy(model.state_dict()); model.load_state_dict(best)",
        "with torch.no_grad(): model[2].bias.zero_()",
        "model[0].load_state_dict({'weight': best['0.weight'], 'bias': best['0.bias']})",
        "with torch.no_grad(): [p.add_(0.01 * torch.randn_like(p)) for p in model.parameters()]",
    ],
)
def test_what_a_script_may_do_in_its_rounds_is_not_told(start: Start, inside: str) -> None:
    assert remarks(start, each_round(inside)) == []


@pytest.mark.parametrize(
    ("inside", "since", "undone"),
    [
        ("model.load_state_dict(best)", "at the join", 2),
        ("round and model.load_state_dict(torch.load('last.pt'))", "before the exchange", 2),
    ],
    ids=["first", "own"],
)
def test_a_round_that_throws_away_what_the_exchange_brought_is_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, since: str, undone: int
) -> None:
    monkeypatch.chdir(tmp_path)
    text = each_round(inside).replace("run.exch", "torch.save(model.state_dict(), 'last.pt'); run.exch")
    (first, _), (last, counts) = remarks(start, text)
    assert first.startswith(
        f"board-1: in round 1 training began at what the model was {since}, and not at what the exch"
    )
    assert last == "board-1: training began at older values in 2 of 3 rounds" and counts["undone"] == undone


@pytest.mark.parametrize(
    "back",
    [
        "model.load_state_dict(own.state_dict())",
        "[p.lerp_(q, 0.8) for p, q in zip(model.parameters(), own.parameters())]",
    ],
)
def test_a_copy_that_begins_at_what_was_mixed_and_is_loaded_back_is_not_told(start: Start, back: str) -> None:
    text = each_round("own = copy.deepcopy(model); optimizer = torch.optim.SGD(own.parameters(), lr=0.1)")
    text = text.replace("model(x)", "own(x)").replace("run.exch", f"with torch.no_grad(): {back}\n        run.exch")
    assert remarks(start, text) == []


FREEZES = "model.add_module('base', nn.Linear(30, 30).requires_grad_(False))"


@pytest.mark.parametrize(
    ("freezes", "inside", "told"),
    [
        (FREEZES, "model.base.weight.data.mul_(0.99)", True),
        (FREEZES, "with torch.no_grad(): model.base.bias[0] += 1.0", True),
        (FREEZES + "; model.base.to(torch.bfloat16)", "model.base.weight.data.mul_(0.7)", True),
        (
            FREEZES,
            "low = torch.randn(30, 30); model.base.weight.data.add_(low); model.base.weight.data.sub_(low)",
            False,
        ),
        (FREEZES, "model.base.to(torch.bfloat16)", False),
        ("model.add_module('base', nn.BatchNorm1d(3).requires_grad_(False))", "model.base(x)", False),
    ],
)
def test_a_base_that_is_frozen_and_changes_is_told_once(start: Start, freezes: str, inside: str, told: bool) -> None:
    text = each_round(inside, freezes).replace("model(x)", "model[2](model[1](model[0](x)))")
    said = remarks(start, text)
    assert [text.startswith("board-1: base.") and "frozen at the join, changed by the" in text for text, _ in said] == [
        True
    ] * told
    assert remarks(start, text.replace("join(model)", "join(model, keep='base.*')")) == []
    assert remarks(start, text, gossip={"topology": "none"}) == [], "nobody has another base"


def each_round(inside: str, before: str = "pass", after: str = "best = copy.deepcopy(model.state_dict())") -> str:
    """A script that does so at the beginning of each round, before its steps."""
    text = joined(before, after)
    return text.replace("run.rounds():", f"run.rounds():\n        {inside}")


def test_an_average_of_what_is_trained_is_told_though_it_changes(start: Start) -> None:
    """It gets the mixed values, and the trained one never sees them."""
    text = joined(before="trained = model; model = torch.optim.swa_utils.AveragedModel(model)")
    text = text.replace("SGD(model", "SGD(trained").replace("(model(x)", "(trained(x)")
    text = text.replace("optimizer.step()", "optimizer.step(); model.update_parameters(trained)")
    first, last = remarks(start, text)
    assert first[0].startswith("board-1: in round 1 SGD took 2 steps, none of them on the AveragedModel")
    assert last[1] == {"rounds": 3, "unchanged": 0, "elsewhere": 2, "undone": 0}  # in the first both are the same


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pass", "model = torch.compile(model, backend='eager')"),
        ("model = torch.compile(model, backend='eager')", "pass"),
        ("pass", "model = nn.DataParallel(model)"),
        ("pass", "model[0].weight = nn.Parameter(model[0].weight.detach().clone())"),
        ("pass", "model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)"),
        ("model = model.to(torch.bfloat16); x, y = x.bfloat16(), y.bfloat16()", "pass"),
        ("model[0].requires_grad_(False)", "pass"),
    ],
)
def test_what_shares_its_parameters_is_the_joined_model(start: Start, before: str, after: str) -> None:
    assert remarks(start, joined(before, after)) == []


@pytest.mark.parametrize(
    ("old", "new", "counted"),
    [
        ("lr=0.1", "lr=0.0", [3]),
        ("optimizer.step()", "optimizer.param_groups[0]['lr'] = 0.1 * (round > 0); optimizer.step()", [1]),
        (
            "optimizer.step()",
            "model[0].weight.grad *= float('inf') if round < 2 else 1; round < 2 or optimizer.step()",
            [2],
        ),
        (
            "optimizer.step()",
            "optimizer.step(); torch.optim.SGD([nn.Parameter(x)], 0.1).step()",  # a second model, of its own
            [],
        ),
    ],
    ids=["rate-0", "warm-up", "overflow", "second-optimiser"],
)
def test_what_may_be_meant_to_be_so_is_counted_alone(start: Start, old: str, new: str, counted: list[int]) -> None:
    said = remarks(start, joined().replace(old, new))
    assert [fields for _, fields in said] == [
        {"rounds": 3, "unchanged": k, "elsewhere": 0, "undone": 0} for k in counted
    ]


def test_of_a_round_without_steps_only_that_is_said(start: Start) -> None:
    first, last = remarks(start, joined().replace("range(2)", "range(0)").replace("loss=loss.item()", "loss=0.0"))
    assert first[0] == (
        "board-1: in round 0 nothing of the model changed, and no optimiser of torch took a step: is what is trained the "
        "model that join was given?"
    )
    assert last[1] == {"rounds": 3, "unchanged": 3, "elsewhere": 0, "undone": 0}


def test_steps_too_small_for_the_models_numbers_are_told_once(start: Start) -> None:
    text = joined("model = model.to(torch.bfloat16); x, y = x.bfloat16(), y.bfloat16()").replace("lr=0.1", "lr=1e-9")
    first, _ = remarks(start, text)
    assert "though SGD took 2 steps on it: its gradients are 0, or its steps too small" in first[0]


def test_gradients_that_are_never_finite_are_told_in_the_end(start: Start) -> None:
    text = joined().replace("optimizer.step()", "model[0].weight.grad *= float('nan')")
    first, last = remarks(start, text, rounds=30)
    assert first[0] == (
        "board-1: in round 24 nothing of the model changed, nor in the 24 before it: its gradients are not finite"
    )
    assert last[1] == {"rounds": 30, "unchanged": 30, "elsewhere": 0, "undone": 0}


def test_an_evaluation_may_adapt_a_copy(start: Start) -> None:
    adapts = """@run.evaluate
    def test():
        with torch.enable_grad():
            own = copy.deepcopy(model)
            own(x).sum().backward()
            torch.optim.SGD(own.parameters(), 0.1).step()
        return 1.0
    """
    text = joined().replace("for round in", adapts + "for round in").replace("range(2)", "range(0)")
    said: list[str] = []
    workload = start(text.replace("loss=loss.item()", "loss=0.0"), event=lambda name, text, **_: said.append(text))
    x = workload.initial(1)
    workload.evaluate(x)
    workload.local_update(x, 0)
    assert "no optimiser of torch took a step" in said[0]


def test_the_steps_of_an_evaluation_are_none_of_the_next_rounds(start: Start) -> None:
    adapts = """@run.evaluate
    def test():
        with torch.enable_grad():
            model(x).sum().backward()
        optimizer.param_groups[0]["lr"] = 9.0
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1
        return 1.0
    """
    workload = start(joined().replace("for round in", f"run.add_state(optimizer)\n    {adapts}for round in"))
    x, rates = workload.initial(1), []
    for round in range(2):
        rates.append(workload.local_update(x, round).lr)
        workload.evaluate(x)
    assert rates == [0.1, 0.1]


def test_rounds_that_train_nothing_are_counted(start: Start) -> None:
    text = joined().replace("for _ in range(2)", "for _ in range(2 * (round == 1))")
    text = text.replace("loss=loss.item()", "loss=0.0")
    (first, fields), last = remarks(start, text)
    assert "in round 0 nothing of the model changed" in first and fields == {}
    counts = {"rounds": 3, "unchanged": 2, "elsewhere": 0, "undone": 0}
    assert last == ("board-1: nothing of the model changed in 2 of 3 rounds", counts)


def test_the_optimiser_that_is_corrected_is_the_joined_models(start: Start) -> None:
    """Not the first one in `state`, where that is of another model."""
    text = joined(before="other = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=7.0)")
    text = text.replace("run = edgegossip.join(model)", "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    text = text.replace("AFTER", "pass").replace(
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    for",
        "    run = edgegossip.join(model, state=[other, optimizer])\n    for",
    )
    workload = start(text.replace("optimizer.step()", "other.step(); optimizer.step()"), mode="server")
    x = workload.initial(1)
    update = workload.local_update(x, 0, np.ones_like(x))
    assert (update.lr, update.steps, update.corrected) == (0.1, 2, True)


def test_hooks_are_gone_with_the_run(start: Start) -> None:
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    before = len(hooks)
    assert remarks(start, joined()) == [] and len(hooks) == before


def test_an_optimiser_of_another_model_cannot_be_wrapped() -> None:
    import edgegossip
    from edgegossip.integrations.optimizer import GossipOptimizer

    other = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    run = edgegossip.join(nn.Linear(2, 1))
    with pytest.raises(
        UsageError, match="GossipOptimizer's optimiser shares no parameter with the Linear that join was"
    ):
        GossipOptimizer(other, run)
