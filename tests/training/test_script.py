"""A user's script as a workload: what it trains reaches the run, and every way to go wrong is a
sentence."""

from __future__ import annotations

import io
import re
import runpy
import sys
import textwrap
import threading
import warnings
import weakref
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import edgegossip
from edgegossip.training.script import ScriptWorkload
from edgegossip.types import UsageError
from tests.training.conftest import Start


class Script(str):
    """Is the text of a script, in which nothing is replaced that is not there."""

    def replace(self, *change: Any) -> Script:
        assert change[0] in self
        return Script(super().replace(*change))


REGRESSION = Script("""
    import torch
    from torch import nn
    import edgegossip

    x = torch.randn(64, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    with edgegossip.join(model, state=[optimizer, scheduler]) as run:
        @run.evaluate
        def test():
            return {"mae": (model(x) - y).abs().mean(), "loss": ((model(x) - y) ** 2).mean(), "examples": 64}
        for round in run.rounds():
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.exchange(loss=loss.item(), examples=64, metrics={"noise": float(torch.rand(()))})
    print("ended", run.round)
""")


def rounds(workload: ScriptWorkload, x: np.ndarray, begin: int, end: int) -> tuple[np.ndarray, list[Any]]:
    """Play rounds alone; the model then, and the updates."""
    updates = []
    for round in range(begin, end):
        updates.append(workload.local_update(x, round))
        x = x + updates[-1].delta
    return x, updates


def test_the_loop_trains_from_the_model_of_the_run(start: Start) -> None:
    workload = start(REGRESSION)
    x0 = workload.initial(1)
    assert x0.shape == (workload.layout.size,) == (21,)
    x, updates = rounds(workload, x0, 0, 6)
    assert updates[-1].loss < updates[0].loss
    assert [u.lr for u in updates] == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]  # before the scheduler's step
    assert {u.weight for u in updates} == {u.holds for u in updates} == {64}
    assert {u.examples for u in updates} == {0}  # how many a round saw is not known
    assert set(updates[0].metrics) == {"noise"}
    # another start, another update: it is the run's model that is trained
    found = workload.evaluate(x)
    assert found is not None and found.examples == 64 and set(found.scores) == {"mae"}
    assert found.loss < workload.evaluate(x0).loss  # type: ignore[union-attr]
    workload.over(x)


def test_evaluating_another_model_leaves_the_round_as_it_was(start: Start) -> None:
    """Even an evaluation that draws random numbers, as loaders do."""
    text = REGRESSION.replace("loss = (", "rows = torch.randint(64, (16,)); loss = (").replace(
        "(model(x) - y) ** 2).mean()\n            optimizer", "(model(x) - y)[rows] ** 2).mean()\n            optimizer"
    )
    text = text.replace('return {"mae"', 'torch.rand(3)\n            return {"mae"')
    first = start(text)
    x, _ = rounds(first, first.initial(1), 0, 3)
    second = start(text)
    y = second.initial(1)
    for round in range(3):
        second.evaluate(np.zeros_like(y))
        y = y + second.local_update(y, round).delta
    assert np.array_equal(x, y)


def test_a_script_that_is_started_again_goes_on_bit_for_bit(start: Start) -> None:
    """Optimiser, scheduler and random numbers go on where they were."""
    whole = start(REGRESSION)
    x, updates = rounds(whole, whole.initial(1), 0, 6)
    first = start(REGRESSION)
    y, _ = rounds(first, first.initial(1), 0, 3)
    kept = {name: array.copy() for name, array in first.snapshot().items()}
    second = start(REGRESSION)
    second.restore(kept)
    y, rest = rounds(second, y, 3, 6)
    assert np.array_equal(x, y)
    assert [u.metrics for u in rest] == [u.metrics for u in updates[3:]]
    assert [u.lr for u in rest] == [u.lr for u in updates[3:]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_numbers_that_a_gpu_draws_go_on_after_a_checkpoint(start: Start) -> None:
    torch.cuda.init()
    workload = start(REGRESSION)
    kept = workload.snapshot()
    drawn = torch.rand(5, device="cuda")
    workload.restore(kept)
    assert torch.equal(torch.rand(5, device="cuda"), drawn)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test above does it for real")
def test_a_checkpoint_has_the_random_states_of_the_gpus(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here: torch's two functions are stood in for, on what they give and take."""
    there, taken = [torch.arange(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)], []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: there)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", taken.append)
    workload = start(REGRESSION)
    workload.restore(workload.snapshot())
    assert [[state.tolist() for state in states] for states in taken] == [[state.tolist() for state in there]]


def test_a_checkpoint_of_another_script_is_refused(start: Start) -> None:
    kept = start(REGRESSION).snapshot()
    other = start(REGRESSION.replace("state=[optimizer, scheduler]", "state=[optimizer]"))
    with pytest.raises(UsageError, match="the checkpoint has 2 states, join was given 1"):
        other.restore(kept)
    third = start(REGRESSION)
    with pytest.raises(UsageError, match="does not fit the script"):
        third.restore({"script": np.frombuffer(b"no zip file", np.uint8)})


def test_what_stays_on_the_board_is_kept_with_its_state(start: Start) -> None:
    own = REGRESSION.replace("state=[optimizer, scheduler]", "state=[optimizer, scheduler], keep='2.*'")
    whole, first = start(own), start(own)
    assert whole.layout.size == 16
    x, updates = rounds(whole, whole.initial(1), 0, 6)
    y, _ = rounds(first, first.initial(1), 0, 3)
    second = start(own)
    second.restore(first.snapshot())
    y, rest = rounds(second, y, 3, 6)
    assert np.array_equal(x, y) and rest[-1].loss == updates[-1].loss


FROZEN = Script("""
    import torch
    from torch import nn
    import edgegossip

    model = nn.ModuleDict({"base": nn.Linear(300, 300), "teacher": nn.Linear(3, 1), "head": nn.Linear(3, 1)})
    model["base"].requires_grad_(False)
    model["teacher"].requires_grad_(False)
    x = torch.randn(64, 3)
    optimizer = torch.optim.SGD(model["head"].parameters(), 0.1)
    run = edgegossip.join(model, state=[optimizer])
    for round in run.rounds():
        loss = (model["head"](x) - model["teacher"](x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(model["teacher"].parameters(), model["head"].parameters()):
                slow.lerp_(fast, 0.5)
        run.exchange(loss=loss.item())
""")


def test_a_parameter_that_is_unfrozen_later_is_named_unless_it_is_kept(start: Start) -> None:
    text = FROZEN.replace("loss.backward()", "loss.backward(); model['base'].requires_grad_(True)")
    workload = start(text)
    with pytest.raises(UsageError, match=r"parameter base\.weight requires .* before the join, or name it in keep"):
        workload.local_update(workload.initial(1), 0)
    kept = start(text.replace("state=[optimizer]", "state=[optimizer], keep='base.*'"))
    rounds(kept, kept.initial(1), 0, 2)


def test_frozen_weights_that_are_loaded_after_the_join_are_named(start: Start) -> None:
    workload = start(FROZEN.replace("for round in run", "model['base'].weight.data.zero_()\n    for round in run"))
    with pytest.raises(UsageError, match="load weights before the join"):
        workload.local_update(workload.initial(1), 0)


def test_what_is_frozen_after_the_join_is_told_so(start: Start) -> None:
    workload = start(FROZEN.replace("for round in run", "model.requires_grad_(False)\n    for round in run"))
    with pytest.raises(UsageError, match="had other frozen parameters.* before its first round: .* and freeze there"):
        workload.local_update(workload.initial(1), 0)


EXTRA = """
    class Scaled(nn.Linear):
        ranges = {"least": 0.0}
        def get_extra_state(self):
            return self.ranges
        def set_extra_state(self, state):
            self.ranges = state
"""


def test_a_modules_extra_state_stays_on_its_board_and_is_kept(start: Start) -> None:
    text = (
        REGRESSION.replace("    x = torch", EXTRA + "    x = torch", 1)
        .replace("nn.Linear(3", "Scaled(3")
        .replace("scheduler.step()", "model[0].ranges = {'least': np.float64(round)}")
        .replace("import torch\n", "import torch\n    import numpy as np\n", 1)
        .replace("metrics={", "metrics={'least': model[0].ranges['least'] + 0 * round, ")
    )
    first = start(text)
    x, _ = rounds(first, first.initial(1), 0, 3)
    assert set(first.state(x)) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    second = start(text.replace("model[0].ranges = ", "pass; "))
    second.restore(first.snapshot())
    assert second.local_update(x, 3).metrics["least"] == 2.0
    with pytest.raises(UsageError, match=r"the model could not be restored: .*_extra_state'\] is a function"):
        start(text.replace("return self.ranges", "return lambda: None")).snapshot()


@pytest.mark.parametrize("write", ["slow.lerp_(fast, 0.5)", "slow.data.lerp_(fast, 0.5)", "slow.data = slow + fast"])
def test_a_checkpoint_has_of_the_frozen_parameters_only_what_the_script_writes_to(start: Start, write: str) -> None:
    """A teacher that follows the model is kept; the base, which may be most of the model, is
    not."""
    text = FROZEN.replace("slow.lerp_(fast, 0.5)", write)
    whole, first = start(text), start(text)
    x, updates = rounds(whole, whole.initial(1), 0, 6)
    y, _ = rounds(first, first.initial(1), 0, 3)
    kept = first.snapshot()
    assert kept["script"].size < 50_000  # the base has 361,200 bytes
    second = start(text)
    second.restore(kept)
    y, rest = rounds(second, y, 3, 6)
    assert np.array_equal(x, y) and [u.loss for u in rest] == [u.loss for u in updates[3:]]


def test_boards_from_one_seed_agree_and_from_others_do_not(start: Start) -> None:
    from edgegossip.agreement import difference

    one, two = start(REGRESSION), start(REGRESSION, index=2, name="board-2")
    other = start(REGRESSION.replace("model = ", "torch.manual_seed(9); model = "))
    assert difference(one.agreement(), two.agreement()) == ""
    assert "the first model" in difference(one.agreement(), other.agreement())


def test_arguments_know_the_board_and_the_run(start: Start) -> None:
    check = "import sys; assert sys.argv[1:] == ['--data', 'photos/board-1', '1', '6 of 3'], sys.argv"
    text = REGRESSION.replace("import torch\n", f"import torch\n    {check}\n", 1)
    start(text, "--data", "photos/{board}", "{index}", "{rounds} of {boards}")


def test_rounds_of_the_script_that_are_not_the_runs_are_said(start: Start) -> None:
    said: list[str] = []
    text = REGRESSION.replace("scheduler]", "scheduler], rounds=20")
    start(text, event=lambda name, text, **_: said.append(text))
    assert said == [], "one board says it for all"
    start(text, index=0, name="board-0", event=lambda name, text, **_: said.append(text))
    assert said == [
        "train.py asked join for 20 rounds, and the run has run.rounds = 6: "
        "say --set run.rounds=20, or give it {rounds} as an argument"
    ]
    start(REGRESSION.replace("scheduler]", "scheduler], rounds=6"), event=lambda name, text, **_: said.append(text))
    start(REGRESSION, event=lambda name, text, **_: said.append(text))
    assert len(said) == 1


def test_state_may_be_added_up_to_the_first_round(start: Start) -> None:
    """A board goes on bit for bit, as if `join` had been given all of it."""
    later = REGRESSION.replace("state=[optimizer, scheduler]", "").replace(
        "@run.evaluate", "run.add_state(optimizer, scheduler)\n        @run.evaluate"
    )
    whole, first = start(later), start(later)
    x, _ = rounds(whole, whole.initial(1), 0, 6)
    y, _ = rounds(first, first.initial(1), 0, 3)
    second = start(later)
    second.restore(first.snapshot())
    assert np.array_equal(rounds(second, y, 3, 6)[0], x)
    late = start(REGRESSION.replace("scheduler.step()", "run.add_state(scheduler)"))
    with pytest.raises(UsageError, match="add_state was called after the first round began"):
        late.local_update(late.initial(1), 0)


def test_a_coordinator_wants_the_model_alone_unless_it_evaluates(start: Start) -> None:
    """Data that only boards have may be read after the join."""
    text = REGRESSION.replace("@run.evaluate", "open('no-such-folder/photos')\n        @run.evaluate")
    coordinator = start(text, index=-1, name="coordinator")
    x = coordinator.initial(1)
    assert x.shape == (21,)
    coordinator.over(x)
    here = start(REGRESSION, index=-1, name="coordinator", where="coordinator")
    assert "mae" in here.require_evaluation(here.initial(1)).scores
    here.over(x)


def test_an_evaluation_that_fails_is_the_scripts_error_even_a_timeout(start: Start) -> None:
    text = REGRESSION.replace('return {"mae"', 'raise TimeoutError("the camera is away")\n            return {"mae"')
    workload = start(text)
    with pytest.raises(UsageError, match="train.py, line \\d+: TimeoutError: the camera is away"):
        workload.evaluate(workload.initial(1))


def test_an_evaluation_leaves_each_part_in_its_own_mode(start: Start) -> None:
    """A model that is trained with a frozen part stays so."""
    text = REGRESSION.replace(
        "for round in run.rounds():", "model[1].eval()\n        for round in run.rounds():"
    ).replace("scheduler.step()", "assert [m.training for m in model] == [True, False, True]")
    workload = start(text.replace('return {"mae"', 'model.eval()\n            return {"mae"'))
    x = workload.initial(1)
    workload.evaluate(x)
    workload.local_update(x, 0)


def test_the_script_ends_with_the_final_model(start: Start, tmp_path: Path) -> None:
    text = REGRESSION + "    torch.save(model.state_dict(), 'REPLACE')\n".replace("REPLACE", str(tmp_path / "m.pt"))
    workload = start(text, rounds=1)
    x, _ = rounds(workload, workload.initial(1), 0, 1)
    workload.over(np.full_like(x, 7.0))
    import torch

    saved = torch.load(tmp_path / "m.pt", weights_only=True)
    assert all(bool((value == 7.0).all()) for value in saved.values())


LOOP = "for round in run.rounds():"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (LOOP, "raise SystemExit('no camera')\n        " + LOOP, r"train\.py ended itself: no camera"),
        (LOOP, "1 / 0\n        " + LOOP, r"train\.py, line \d+: ZeroDivisionError: division by zero"),
        ("loss.backward()", "raise OSError('disk on fire')", r"train\.py, line \d+: OSError: disk on fire"),
        (
            "run.exchange(loss=loss.item()",
            "continue; run.exchange(loss=loss.item()",
            "left round 0 without run.exchange",
        ),
        ("examples=64", "examples=0", "examples is 0: a board trains on at least one; without it all boards count"),
        ("{'noise'".replace("'", '"'), '{"loss"', "metrics has 'loss', which exchange tells already"),
        ("scheduler])", "scheduler], rounds=0)", "rounds is 0: give join at least one round, or leave rounds out"),
        ("loss=loss.item()", "loss=float('nan')", "the training loss became nan in round 0"),
        ("scheduler.step()", "model[0].weight.data.fill_(float('inf'))", "not finite after round 0"),
        ("scheduler.step()", "model[0] = nn.Linear(3, 5)", r"tensor 0\.weight was float32\[4, 3\] at the join"),
        ("scheduler.step()", "del model[2]", r"tensor 2\.weight was there at the join and is not"),
        (
            "scheduler.step()",
            "model.add_module('late', nn.Linear(1, 1))",
            r"parameter late\.weight requires a gradient now and did not at the join",
        ),
        (
            LOOP,
            "model[0].weight.data.mul_(2)\n        " + LOOP,
            "other values at the join than now, before its first round: load weights before the join",
        ),
        ("scheduler.step()", "break", "left the run in round 0 of 6"),
        (LOOP, "edgegossip.join(model)\n        " + LOOP, "join was called twice"),
        (LOOP, "run.exchange(loss=1.0)\n        " + LOOP, "exchange was called before run.rounds"),
        ("optimizer, scheduler])", "optimizer], schema={'lables': 'a'})", r"schema: there is no 'lables'.*labels"),
        ("optimizer, scheduler])", "optimizer], schema={'layout': '0'})", "schema: there is no 'layout'"),
        (
            "scheduler.step()",
            "import concurrent.futures as c; c.ThreadPoolExecutor().submit(run.exchange, loss=1.0).result()",
            "on another thread than join",
        ),
    ],
    ids=lambda v: v[:24] if isinstance(v, str) else None,
)
def test_a_script_that_goes_wrong_is_named(start: Start, old: str, new: str, sentence: str) -> None:
    assert old in REGRESSION

    def one_round() -> None:
        workload = start(REGRESSION.replace(old, new))
        workload.local_update(workload.initial(1), 0)

    with pytest.raises(UsageError, match=sentence):
        one_round()


@pytest.mark.parametrize(
    ("optimizer", "gossip", "sentence"),
    [
        (
            "AdamW(",
            {"algorithm": "d2"},
            r"train\.py: gossip\.algorithm = d2 .* that of adamw is not.*torch\.optim\.SGD",
        ),
        ("AdamW(", {"momentum": "nesterov"}, r"gossip\.momentum = nesterov .* that of adamw is not"),
        ("SGD(momentum=0.9, params=", {"momentum": "nesterov"}, r"training\.momentum = 0\.9.*momentum=0"),
    ],
)
def test_an_optimiser_that_the_algorithm_cannot_do_with_is_refused(
    start: Start, optimizer: str, gossip: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        start(REGRESSION.replace("AdamW(", optimizer), gossip=gossip)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "@run.evaluate",
            "run.add_state(torch.optim.Adam(model.parameters()))\n        @run.evaluate",
            "that of adam is not",
        ),
        (
            "@run.evaluate",
            "optimizer.param_groups[0]['momentum'] = 0.5\n        @run.evaluate",
            r"training\.momentum = 0\.5",
        ),
        (
            "scheduler.step()",
            "optimizer.add_param_group({'params': [nn.Parameter(x)], 'momentum': 0.7})",
            r"training\.momentum = 0\.7",
        ),
    ],
    ids=["state", "before", "group"],
)
def test_an_optimiser_that_comes_after_the_join_is_looked_at_too(
    start: Start, old: str, new: str, sentence: str
) -> None:
    workload = start(REGRESSION.replace("AdamW(", "SGD(").replace(old, new), gossip={"momentum": "nesterov"})
    with pytest.raises(UsageError, match=sentence):
        workload.local_update(workload.initial(1), 0)


def test_the_rate_of_a_round_is_the_mean_of_its_steps(start: Start) -> None:
    """Then delta / rate is the sum of the gradients, as a momentum in gossip takes it."""
    twice = "optimizer.step()\n            scheduler.step()\n            "
    text = REGRESSION.replace("StepLR(optimizer, 2, 0.5)", "StepLR(optimizer, 1, 0.5)").replace(
        "optimizer.step()\n", twice + "optimizer.step()\n"
    )
    workload = start(text)
    assert rounds(workload, workload.initial(1), 0, 2)[1][1].lr == (0.05 / 4 + 0.05 / 8) / 2


@pytest.mark.parametrize("steps", [1, 3])
def test_an_optimiser_corrects_each_step_of_a_round(start: Start, steps: int) -> None:
    """Of a loss that is a sum of values: each step goes so much farther back. A parameter without a
    gradient has 0."""
    one = """optimizer.zero_grad()
            loss = model[2].bias.sum()
            loss.backward()
            optimizer.step()
            """
    head, tail = REGRESSION.index("loss = (("), REGRESSION.index("scheduler.step()")
    text = (REGRESSION[:head] + steps * one + REGRESSION[tail:]).replace("AdamW(", "SGD(")
    plain, corrected = start(text, mode="server"), start(text, mode="server", server={"strategy": "scaffold"})
    x = plain.initial(1)
    correction = np.linspace(-1.0, 1.0, len(x), dtype=np.float32)
    before, after = plain.local_update(x, 0), corrected.local_update(x, 0, correction)
    assert after.corrected and not before.corrected and (after.steps, before.steps) == (steps, 1)
    expected = -0.05 * steps * correction
    expected[-1] -= 0.05 * steps
    np.testing.assert_allclose(after.delta, expected, atol=1e-6)
    assert not corrected.local_update(x, 1).corrected


def test_a_strategy_that_corrects_steps_wants_plain_ones(start: Start) -> None:
    with pytest.raises(UsageError, match=r"scaffold corrects each gradient.*torch\.optim\.SGD.*fedavg"):
        start(REGRESSION, mode="server", server={"strategy": "scaffold"})


def test_a_loop_that_exchanges_twice_in_a_round_is_named(start: Start) -> None:
    workload = start(REGRESSION.replace("scheduler.step()", "run.exchange(loss=1.0)"))
    x = workload.initial(1)
    workload.local_update(x, 0)
    with pytest.raises(UsageError, match="exchange was called twice in a round"):
        workload.local_update(x, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("print('hello')", r"train\.py ended without edgegossip\.join"),
        ("import no_such_package", r"train\.py, line 1: ModuleNotFoundError"),
        ("def f(:", r"train\.py.*SyntaxError"),
        ("import edgegossip, torch; edgegossip.join(torch.nn.ReLU())", "nothing would travel"),
        (
            "import edgegossip, torch; edgegossip.join(torch.nn.Linear(1, 1), share='body.*')",
            "no tensor of the model matches",
        ),
    ],
)
def test_a_script_that_does_not_come_to_its_join(start: Start, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        start(text)


def test_evaluations_that_return_nonsense_are_named(start: Start) -> None:
    workload = start(REGRESSION.replace('return {"mae"', 'return "good"\n            return {"mae"'))
    with pytest.raises(UsageError, match="the evaluation returned 'good'"):
        workload.evaluate(workload.initial(1))


def test_a_script_that_goes_on_after_its_rounds_is_waited_for_and_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgegossip.training.script._SLOW_S", 0.01)
    told, goes_on = (
        [],
        """
    import os, time
    while not os.path.exists(__file__ + ".told"):
        time.sleep(0.01)
    """,
    )

    def event(name: str, text: str, **_: object) -> None:
        if name == "ending":
            told.append(text)
            (tmp_path / "train.py.told").touch()

    workload = start(REGRESSION + goes_on, rounds=1, event=event)
    x, _ = rounds(workload, workload.initial(1), 0, 1)
    workload.over(x)
    assert told[0].startswith("board-1 has done its rounds, and waits for the end of train.py; Ctrl-C")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("open('no-such-file')", r"train\.py, line \d+: FileNotFoundError"),
        ("return {'mae': 1.0, 'examples': float('nan')}", "it was over nan examples"),
        ("return {}", "the evaluation returned nothing: return a number"),
        ("run.exchange(loss=1.0)", r"called in the function of run\.evaluate: call it in the loop"),
    ],
)
def test_evaluations_that_fail_are_named(start: Start, line: str, sentence: str) -> None:
    workload = start(REGRESSION.replace('return {"mae"', f'{line}\n            return {{"mae"'))
    with pytest.raises(UsageError, match=sentence):
        workload.evaluate(workload.initial(1))


def test_other_machines_are_told_the_kind_of_an_error_and_not_its_words(start: Start) -> None:
    workload = start(REGRESSION.replace("scheduler.step()", "float('Jane Doe, born 1970-01-01')"))
    with pytest.raises(UsageError, match="Jane Doe") as raised:
        workload.local_update(workload.initial(1), 0)
    assert re.match(r"train\.py, line \d+: ValueError", raised.value.public_message)
    assert "Jane" not in raised.value.public_message


def test_a_state_that_cannot_be_kept_is_named(start: Start) -> None:
    text = REGRESSION.replace(
        "state=[optimizer, scheduler]", "state=[type('S', (), {'state_dict': lambda self: 1 / 0})()]"
    )
    workload = start(text)
    with pytest.raises(UsageError, match=r"train\.py, line \d+: ZeroDivisionError"):
        workload.snapshot()


COUNTER = """
    class Counter:
        def __init__(self):
            self.seen, self.sizes, self.best = np.int64(0), np.zeros(2), {"loss": np.float32(9)}
        def state_dict(self):
            return vars(self)
        def load_state_dict(self, state):
            self.__dict__.update(state)
            assert isinstance(self.sizes, np.ndarray), self.sizes
    counter = Counter()
"""
COUNTING = (
    REGRESSION.replace("import torch\n", "import torch\n    import numpy as np\n", 1)
    .replace("    with edgegossip", COUNTER + "    with edgegossip")
    .replace("scheduler])", "scheduler, counter])")
    .replace("scheduler.step()", "scheduler.step(); counter.seen += 1; counter.sizes[0] += 2")
    .replace("metrics={", "metrics={'seen': counter.seen, 'size': counter.sizes[0], ")
)


def test_numpys_numbers_and_arrays_in_a_state_go_on(start: Start) -> None:
    first = start(COUNTING)
    x, _ = rounds(first, first.initial(1), 0, 3)
    second = start(COUNTING)
    second.restore(first.snapshot())
    _, updates = rounds(second, x, 3, 5)
    assert [(u.metrics["seen"], u.metrics["size"]) for u in updates] == [(4, 8), (5, 10)]


def test_a_state_that_could_not_be_restored_is_named_at_the_first_checkpoint(start: Start) -> None:
    odd = COUNTING.replace('{"loss": np.float32(9)}', '{"at": [1, object()]}')
    with pytest.raises(
        UsageError, match=r"state 2 of join, a Counter, could not .*\['best'\]\['at'\]\[1\] is a object"
    ):
        start(odd).snapshot()
    # one that turns odd in training: the first checkpoint after a round says so
    workload = start(COUNTING.replace("counter.seen += 1", "counter.best = print"))
    workload.snapshot()
    workload.local_update(workload.initial(1), 0)
    with pytest.raises(UsageError, match=r"a Counter, could not be restored: its state_dict\(\)\['best'\] is a"):
        workload.snapshot()


def test_without_an_evaluation_there_is_none(start: Start) -> None:
    workload = start(REGRESSION.replace("@run.evaluate", ""))
    assert workload.evaluate(workload.initial(1)) is None


def test_a_coordinator_that_shall_evaluate_says_before_the_run_that_it_cannot(start: Start) -> None:
    start(REGRESSION, where="coordinator", index=-1).require_function()
    before = threading.active_count()
    workload = start(REGRESSION.replace("@run.evaluate", ""), where="coordinator", index=-1)
    with pytest.raises(UsageError, match=r"train\.py has no evaluation: give run\.evaluate a function"):
        workload.require_function()
    assert threading.active_count() == before


def test_boards_that_say_no_number_of_examples_count_the_same(start: Start) -> None:
    workload = start(REGRESSION.replace("examples=64, metrics", "metrics"))
    assert workload.local_update(workload.initial(1), 0).weight == 1


def test_a_script_that_waits_holds_no_model_of_the_round_before(start: Start) -> None:
    """Neither what it trained from, nor what it handed over, nor what it evaluated last."""
    workload = start(REGRESSION)
    x, evaluated = workload.initial(1), workload.initial(1)
    update = workload.local_update(x, 0)
    workload.evaluate(evaluated)
    workload.snapshot()
    held = [weakref.ref(array) for array in (x, update.delta, evaluated)]
    del x, update, evaluated
    workload.evaluate(workload.initial(1))
    assert [array() for array in held] == [None, None, None]


def test_by_itself_a_script_leaves_its_model_as_it_is(tmp_path: Path) -> None:
    """float64 stays float64: nothing travels, so nothing is rounded."""
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """
            import edgegossip, torch
            model = torch.nn.Linear(1, 1).double()
            model.weight.data.fill_(0.1)
            run = edgegossip.join(model, rounds=3)
            run.evaluate(lambda: model.weight.item())
            for _ in run.rounds():
                run.exchange(loss=0.0)
            assert model.weight.item() == 0.1, model.weight.item()
            """
        )
    )
    runpy.run_path(str(path), run_name="__main__")


def test_by_itself_a_script_trains_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    text = textwrap.dedent(REGRESSION).replace("scheduler]", "scheduler], rounds=20")
    path.write_text(text)
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("round 2 of 20, alone: loss ") and "mae" in lines[0]
    assert len(lines) == 11 and lines[-1] == "ended 19"


def test_a_script_that_is_abandoned_ends_where_it_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["notebook"])
    before = set(threading.enumerate())
    workload = start(REGRESSION)
    workload.local_update(workload.initial(1), 0)
    for _ in range(2):
        workload.abandon()
        assert set(threading.enumerate()) <= before and sys.argv == ["notebook"]
    assert capsys.readouterr().out == ""  # what comes after its rounds is not for a run that failed


@pytest.mark.parametrize("what", ["share='0.*'", "keep=['2.*']"])
def test_a_coordinator_cannot_evaluate_a_part_of_the_model(start: Start, what: str) -> None:
    text = REGRESSION.replace("scheduler])", f"scheduler], {what})")
    with pytest.raises(UsageError, match=r'which the coordinator has not; set evaluation\.where = "boards"'):
        start(text, index=-1, name="coordinator", where="coordinator")
    start(text, index=-1, name="coordinator").abandon()  # of the boards' evaluation it takes no part


def test_batch_norms_that_are_averaged_are_named_once(start: Start) -> None:
    body = """
        import edgegossip
        from torch import nn
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        with edgegossip.join(model{keep}) as run:
            for _ in run.rounds():
                run.exchange(loss=1.0)
    """
    said: list[str] = []
    start(body.format(keep=""), index=0, event=lambda name, text, **_: said.append(text))
    (text,) = said
    assert text.startswith("batch norm's statistics are averaged") and text.endswith("join(keep=...): 1.*")
    start(body.format(keep=""), index=1, event=lambda name, text, **_: said.append(text))
    start(body.format(keep=", keep=['1.*']"), index=0, event=lambda name, text, **_: said.append(text))
    assert len(said) == 1


def test_a_coordinator_whose_script_reads_data_before_its_join_says_so(start: Start) -> None:
    with pytest.raises(UsageError, match=r"FileNotFoundError.*this is the coordinator.*after its join"):
        start("open('no such file of data')", index=-1, name="coordinator")


def test_values_that_cannot_travel_are_named_at_the_join(start: Start) -> None:
    with pytest.raises(UsageError, match="weight holds a NaN or an infinity at the join"):
        start("""
            import edgegossip
            from torch import nn
            model = nn.Linear(2, 1)
            nn.init.constant_(model.weight, float("nan"))
            edgegossip.join(model)
        """)


@pytest.mark.parametrize("wrong", ["lr=float('nan')", "steps=0", "steps=None", "examples=10**400"])
def test_figures_of_a_round_that_are_none_are_named(start: Start, wrong: str) -> None:
    workload = start(re.sub(r"run\.exchange\(.*\)", f"run.exchange(loss=1.0, {wrong})", REGRESSION))
    with pytest.raises(UsageError, match=wrong.partition("=")[0] + " is"):
        workload.local_update(workload.initial(1), 0)


def test_what_is_wrong_with_a_round_is_told_though_the_script_goes_on(start: Start) -> None:
    workload = start("""
        import edgegossip, torch
        run = edgegossip.join(torch.nn.Linear(1, 1))
        for _ in run.rounds():
            try:
                run.exchange(loss=float("nan"))
            except Exception:
                break
    """)
    with pytest.raises(UsageError, match="the training loss became nan in round 0"):
        workload.local_update(workload.initial(1), 0)


def test_a_counter_in_a_state_comes_back_as_it_was() -> None:
    from edgegossip.training.serialization import find_unserializable, pack, unpack

    state = {"seen": Counter(batches=4), "at": np.arange(3)}
    assert not find_unserializable(state)
    seen = unpack(pack(state))["seen"]
    assert type(seen) is Counter and seen == Counter(batches=4)  # as a dict it would be equal, too


def test_a_state_takes_no_more_memory_than_its_file() -> None:
    from edgegossip.training.serialization import pack, unpack

    whole, small = pack({"at": np.zeros(5_000_000)}), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole.tobytes())) as source, zipfile.ZipFile(small, "w") as to:
        for entry in source.infolist():
            to.writestr(entry.filename, source.read(entry), zipfile.ZIP_DEFLATED)
    assert small.tell() < whole.nbytes / 100
    with pytest.raises(ValueError, match="larger than its file"):
        unpack(np.frombuffer(small.getbuffer(), np.uint8))


def test_a_script_finds_the_surroundings_that_python_gives_it(start: Start) -> None:
    """An event loop, and itself: its file, its folder, its classes."""
    text = """
        import asyncio
        import pickle
        import sys
        from pathlib import Path
        import edgegossip
        import torch

        async def read():
            return torch.ones(2, 1)

        class Batch:
            pass

        x = asyncio.get_event_loop().run_until_complete(read())
        assert asyncio.run(read()).sum() == 2.0
        assert type(pickle.loads(pickle.dumps(Batch()))) is Batch and __name__ == "__main__"
        assert Path(__file__).is_absolute() and str(Path(__file__).parent) in sys.path
        with edgegossip.join(torch.nn.Linear(1, 1)) as run:
            for _ in run.rounds():
                run.exchange(loss=float(x.sum()))
    """
    workload = start(text, rounds=1)
    x, updates = rounds(workload, workload.initial(1), 0, 1)
    assert updates[0].loss == 2.0
    workload.over(x)


@pytest.mark.parametrize("ask", ["input('Enter your choice: ')", "sys.stdin.readline() or 1 / 0"])
def test_a_question_to_a_terminal_is_answered_by_its_end(start: Start, ask: str) -> None:
    text = REGRESSION.replace("import torch\n", f"import sys\n    {ask}\n    import torch\n", 1)
    with pytest.raises(UsageError, match=r"train\.py, line \d+: (EOFError|ZeroDivisionError)"):
        start(text)


def test_what_a_script_changes_of_the_process_is_as_before(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an error after it has gone elsewhere still names its line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    leave = "import os, sys, io; os.chdir('elsewhere'); sys.stdout = sys.stderr = io.StringIO()"
    before = sys.stdin, sys.stdout, sys.stderr, list(sys.argv)
    workload = start(REGRESSION.replace("scheduler.step()", leave), rounds=1)
    x, _ = rounds(workload, workload.initial(1), 0, 1)
    assert Path.cwd() == tmp_path / "elsewhere"
    workload.over(x)
    assert (sys.stdin, sys.stdout, sys.stderr, sys.argv) == before and Path.cwd() == tmp_path
    assert edgegossip.join(nn.Linear(1, 1)).name == "alone"
    failing = start(REGRESSION.replace("loss.backward()", "import os; os.chdir('elsewhere'); 1 / 0"))
    with pytest.raises(UsageError, match=r"train\.py, line \d+: ZeroDivisionError"):
        failing.local_update(failing.initial(1), 0)


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "torch.tensor(0.0) / 0"])
def test_a_score_that_is_no_number_is_left_out_and_said_once(start: Start, value: str) -> None:
    said: list[str] = []
    text = REGRESSION.replace('"examples": 64}', f'"examples": 64, "auc": {value}, "loss": {value}}}')
    workload = start(text, event=lambda name, text, **_: said.append(f"{name}: {text}"))
    x = workload.initial(1)
    for _ in range(2):
        found = workload.evaluate(x)
        assert found is not None and set(found.scores) == {"mae"} and np.isnan(found.loss)
        assert set(found.records()) == {"eval/mae", "eval/examples"}
    assert said == [
        f"left-out: board-1: the evaluation's {name} is no finite number: it is left out" for name in ("loss", "auc")
    ]
    alone = start(REGRESSION.replace('return {"mae"', 'return float("nan")\n            return {"mae"'))
    found = alone.evaluate(alone.initial(1))
    assert found is not None and not found.scores and not found.records()


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("nn.functional.mse_loss(model(x), y[:, 0])", True),
        ("nn.L1Loss()(model(x), y[:, 0]) + nn.L1Loss()(model(x)[:9], y[:9, 0])", True),
        ("nn.functional.mse_loss(model(x), y)", False),
        ("(model(x) - y).square().mean() + 0 * len([__import__('warnings').warn('a noise', stacklevel=1)])", False),
        ("nn.Softmax()(model(x)).sum()", False),  # deprecated
    ],
)
def test_what_torch_warns_of_a_losss_inputs_is_told_once(start: Start, loss: str, told: bool) -> None:
    said: list[tuple[str, Any]] = []
    event = lambda name, text, **fields: said.append((text, fields.get("why")))  # noqa: E731
    workload = start(
        REGRESSION.replace("((model(x) - y) ** 2).mean()\n            opt", f"{loss}\n            opt"), event=event
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        rounds(workload, workload.initial(1), 0, 3)
    assert len(said) == told
    for text, why in said:
        assert (
            text == f"board-1: {why}" and "torch warned train.py: Using a target size (torch.Size([64])) that" in text
        )


def test_a_run_through_a_coordinator_is_not_alone_whatever_its_topology_key_says(start: Start) -> None:
    none = {"topology": "none"}
    assert start(REGRESSION, gossip=none)._run.alone
    assert not start(REGRESSION, mode="server", gossip=none)._run.alone
