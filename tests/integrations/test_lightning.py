"""GossipCallback of Lightning, with the real Trainer."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from edgegossip.types import UsageError
from tests.integrations.conftest import Start, play

# It is not imported here: that takes seconds, in every worker that collects tests.
pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")

SCRIPT = """
    import sys
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import edgegossip
    from edgegossip.integrations.lightning import GossipCallback

    class Line(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def training_step(self, batch):
            x, y = batch
            return ((self.layer(x) - y) ** 2).mean()

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    x = torch.randn(48, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
    module = Line()
    run = edgegossip.join(module)
    run.evaluate(lambda: {"mae": (module.layer(x) - y).abs().mean()})
    callback = GossipCallback(run, every=3, examples=48)
    trainer = Trainer(
        max_steps=run.total_rounds * 3, accumulate_grad_batches=2, callbacks=[callback], accelerator="cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, y), 8))
    print("steps", trainer.global_step)
    torch.save(module.state_dict(), sys.argv[1] + "/model.pt")
"""


def test_a_round_is_every_so_many_steps(start: Start, tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    workload = start(SCRIPT, str(tmp_path))
    x, updates = play(workload, workload.initial(1), 0, 4)
    assert [(u.steps, u.holds) for u in updates] == [(3, 48)] * 4
    assert [u.lr for u in updates] == pytest.approx([0.1, 0.05, 0.025, 0.0125])  # before the scheduler's step
    assert updates[-1].loss < updates[0].loss
    found = workload.evaluate(x)
    assert found is not None and set(found.scores) == {"mae"}
    workload.over(np.zeros_like(x))
    import torch

    assert all(not v.any() for v in torch.load(tmp_path / "model.pt", weights_only=True).values())
    assert "steps 12" in capfd.readouterr().out


def test_a_stream_trains_though_its_steps_are_not_known(start: Start, tmp_path) -> None:
    stream = """
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return zip(x, y)

"""
    text = SCRIPT.replace("    module = Line()", stream.lstrip("\n") + "    module = Line()")
    text = text.replace("TensorDataset(x, y)", "Stream()").replace("max_steps=run.total_rounds * 3", "max_epochs=9")
    workload = start(text, str(tmp_path))
    x, updates = play(workload, workload.initial(1), 0, 4)
    assert [u.steps for u in updates] == [3] * 4
    workload.over(x)


def test_the_loss_is_that_of_the_batches(start: Start, tmp_path) -> None:
    """Lightning divides it by the batches of a step; the run's log has it whole."""
    frozen = SCRIPT.replace("lr=0.1", "lr=0.0")
    workload = start(frozen, str(tmp_path))
    x0 = workload.initial(1)
    _, updates = play(workload, x0, 0, 2)  # three steps of two batches: each example once
    import torch

    torch.manual_seed(1)
    x = torch.randn(48, 3).numpy()
    y = x @ np.array([[1.0], [-2.0], [3.0]])
    weight, bias = x0[:3], x0[3]
    assert [u.loss for u in updates] == pytest.approx([np.mean((x @ weight[:, None] + bias - y) ** 2)] * 2, rel=1e-4)


def test_a_board_that_is_started_again_has_its_optimiser_and_schedule(start: Start, tmp_path) -> None:
    """In this script batches come in order and a round is an epoch, so it goes on bit for bit."""
    whole = start(SCRIPT, str(tmp_path))
    x, _ = play(whole, whole.initial(1), 0, 4)
    first = start(SCRIPT, str(tmp_path))
    y, _ = play(first, first.initial(1), 0, 2)
    kept = first.snapshot()
    second = start(SCRIPT, str(tmp_path))
    second.restore(kept)
    assert np.array_equal(play(second, y, 2, 4)[0], x)


def test_a_run_that_is_over_trains_no_further(start: Start, tmp_path) -> None:
    workload = start(SCRIPT, str(tmp_path))
    workload.over(np.full_like(workload.initial(1), 0.25))
    import torch

    assert all((v == 0.25).all() for v in torch.load(tmp_path / "model.pt", weights_only=True).values())


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("total_rounds * 3", "total_rounds * 2", "would end after 8 steps, before the run: set max_steps=12"),
        ("every=3", "every=0", "every is 0"),
        (
            "trainer.fit(module",
            "trainer.fit(Line()",
            "Line, which the Trainer fits, shares no parameter with the Line that",
        ),
        ("return ((self.layer(x) - y) ** 2).mean()", "return None", "training_step returned no loss"),
    ],
)
def test_a_wrong_use_is_named(start: Start, tmp_path, old: str, new: str, sentence: str) -> None:
    workload = start(SCRIPT.replace(old, new), str(tmp_path))
    with pytest.raises(UsageError, match=sentence):
        workload.local_update(workload.initial(1), 0)


def test_a_trainer_that_goes_on_after_the_run_is_named(start: Start, tmp_path) -> None:
    workload = start(SCRIPT.replace("max_steps=run.total_rounds * 3", "max_steps=99, min_steps=50"), str(tmp_path))
    x, _ = play(workload, workload.initial(1), 0, 4)
    with pytest.raises(UsageError, match="the run is over and the Trainer goes on"):
        workload.over(x)
