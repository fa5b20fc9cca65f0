"""GossipOptimizer: an optimiser like any other that exchanges as it steps."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

import edgegossip
from edgegossip.types import UsageError
from tests.integrations.conftest import Start, play

SCRIPT = """
    import torch
    from torch import nn
    import edgegossip
    from edgegossip.integrations.optimizer import GossipOptimizer

    x = torch.randn(64, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
    model = nn.Linear(3, 1)
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    with edgegossip.join(model, state=[inner]) as run:
        optimizer = GossipOptimizer(inner, run, every=5, examples=64)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        steps = 0
        while not optimizer.over:
            rows = torch.randint(64, (16,))
            loss = ((model(x[rows]) - y[rows]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(loss=loss)
            scheduler.step()
            steps += 1
    assert steps == 20, steps
"""


def trained_by_torch(kind: str, *, clip: bool = False) -> tuple[np.ndarray, list[float]]:
    """Parameters float32[n] after five steps of the same loop without a run, and its losses."""
    import torch

    torch.manual_seed(1)
    x = torch.randn(64, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
    model = torch.nn.Linear(3, 1)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]), losses


def test_a_round_is_every_so_many_steps(start: Start) -> None:
    workload = start(SCRIPT)
    x, updates = play(workload, workload.initial(1), 0, 4)
    assert [(u.steps, u.holds) for u in updates] == [(5, 64)] * 4
    # a scheduler that was built on the wrapper sets the wrapped optimiser's rate
    assert [u.lr for u in updates] == [0.1, 0.05, 0.025, 0.0125]
    assert updates[-1].loss < updates[0].loss
    workload.over(x)


def test_what_it_trains_is_what_the_wrapped_optimiser_alone_trains(start: Start) -> None:
    """Between two exchanges nothing is different from plain torch."""
    workload = start(SCRIPT.replace("torch.randint(64, (16,))", "slice(None)"), rounds=1)
    x0 = workload.initial(1)
    update = workload.local_update(x0, 0)
    plain, losses = trained_by_torch("Adam")
    assert np.allclose(x0 + update.delta, plain, atol=1e-6)
    assert update.loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_board_that_is_started_again_goes_on_bit_for_bit(start: Start) -> None:
    script = SCRIPT.replace("scheduler = ", "").replace("            scheduler.step()\n", "").replace("assert", "#")
    script = script.replace("torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)", "None")
    whole = start(script)
    x, _ = play(whole, whole.initial(1), 0, 4)
    first = start(script)  # only now: scripts of one process share torch's random numbers
    y, _ = play(first, first.initial(1), 0, 2)
    kept = first.snapshot()
    second = start(script)
    second.restore(kept)
    assert np.array_equal(play(second, y, 2, 4)[0], x)


def test_a_closure_tells_the_loss(start: Start) -> None:
    script = SCRIPT.replace(
        "optimizer.step(loss=loss)", "optimizer.step(lambda: ((model(x) - y) ** 2).mean().detach())"
    )
    workload = start(script)
    _, (update,) = play(workload, workload.initial(1), 0, 1)
    assert update.loss > 0.0


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("optimizer.step(loss=loss)", "optimizer.step()", r"step was told no loss: call optimizer\.step\(loss=loss\)"),
        ("every=5", "every=0", "every is 0: exchange every 1 step"),
    ],
)
def test_a_wrong_use_is_named(start: Start, old: str, new: str, sentence: str) -> None:
    workload = start(SCRIPT.replace(old, new))
    with pytest.raises(UsageError, match=sentence):
        workload.local_update(workload.initial(1), 0)


def test_a_step_after_the_run_is_refused(start: Start) -> None:
    workload = start(SCRIPT.replace("assert steps", "optimizer.step(loss=1.0); assert steps"))
    x, _ = play(workload, workload.initial(1), 0, 4)
    with pytest.raises(UsageError, match="the run is over: leave the loop"):
        workload.over(x)


def test_the_state_and_groups_are_the_wrapped_optimisers_own() -> None:
    import torch

    from edgegossip.integrations.optimizer import GossipOptimizer

    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer = GossipOptimizer(inner, edgegossip.join(model))
    optimizer.add_param_group({"params": list(other.parameters()), "lr": 0.1})
    assert optimizer.param_groups is inner.param_groups and len(inner.param_groups) == 2
    saved = optimizer.state_dict()
    inner.param_groups[0]["lr"] = 7.0
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5 and isinstance(optimizer, torch.optim.Optimizer)


SCALED = """
    scaler.scale(loss).backward()
    if step == 2:
        model.bias.grad += float("inf")  # as float16 would
    step += 1
    if clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_scaler_around_it_does_what_it_does_around_a_plain_optimiser(
    kind: str, clip: bool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the one inside is fused, too, which unscales and leaves steps out by itself. One that
    is left out here and there is none of many in a row."""
    monkeypatch.setattr("edgegossip.integrations.optimizer._MOST_LEFT_OUT", 4)
    text = SCRIPT.replace("torch.randint(64, (16,))", "slice(None)").replace("optim.Adam", f"optim.{kind}")
    text = text.replace("lr=0.1)", "lr=0.1, fused=True)").replace("scheduler.step()", "pass")
    lines = textwrap.indent(textwrap.dedent(SCALED).strip(), " " * 12).lstrip()
    text = text.replace("loss.backward()", lines).replace("optimizer.step(", "scaler.step(optimizer, ")
    text = text.replace("pass\n", "scaler.update()\n").replace(
        "    steps = 0\n", f"    steps, step, clip, scaler = 0, 0, {clip}, torch.amp.GradScaler('cpu')\n"
    )
    workload = start(text, rounds=1)
    x0 = workload.initial(1)
    update = workload.local_update(x0, 0)
    plain, _ = trained_by_torch(kind, clip=clip)  # a step that overflows is none
    assert np.allclose(x0 + update.delta, plain, atol=1e-5) and update.steps == 5


def test_a_scaler_that_leaves_every_step_out_ends_the_loop(start: Start) -> None:
    """No step is taken, so no round ends, and `over` would never be true."""
    text = SCRIPT.replace("loss.backward()", "scaler.scale(loss * float('nan')).backward()")
    text = text.replace("optimizer.step(", "scaler.step(optimizer, ").replace("scheduler.step()", "scaler.update()")
    text = text.replace("    steps = 0\n", "    steps, scaler = 0, torch.amp.GradScaler('cpu')\n")
    text = text.replace("            steps += 1\n", "            steps += 1; assert steps < 1000\n")
    workload = start(text)
    with pytest.raises(UsageError, match="99 steps in a row were left out, and gradients are not finite"):
        workload.local_update(workload.initial(1), 0)
