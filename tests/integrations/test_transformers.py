"""GossipCallback of transformers, with the real Trainer."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from edgegossip.types import UsageError
from tests.integrations.conftest import Start, play

# It is not imported here: that takes seconds, in every worker that collects tests.
pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")

SCRIPT = """
    import sys
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    import edgegossip
    from edgegossip.integrations.transformers import GossipCallback

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, num_labels=2,
    )
    model = BertForSequenceClassification(config)
    words = torch.randint(50, (24, 8))
    data = [{"input_ids": w, "labels": (w[0] > 25).long()} for w in words]
    run = edgegossip.join(model)
    arguments = TrainingArguments(
        sys.argv[1], max_steps=run.total_rounds * 3, per_device_train_batch_size=4, learning_rate=1e-3,
        lr_scheduler_type="linear", logging_steps=2, save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    trainer.add_callback(GossipCallback(run, every=3, evaluate=trainer.evaluate))
    trainer.train()
    print("steps", trainer.state.global_step)
    torch.save(model.state_dict(), sys.argv[1] + "/model.pt")
"""


def test_a_round_is_every_so_many_steps(start: Start, tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    workload = start(SCRIPT, str(tmp_path))
    x, updates = play(workload, workload.initial(1), 0, 4)
    assert [(u.steps, u.holds) for u in updates] == [(3, 24)] * 4
    assert all(0.0 < u.loss < 2.0 for u in updates)
    # linear, over the 12 steps of the run; a round's rate is the mean of its three
    assert [u.lr for u in updates] == pytest.approx([1e-3 * (12 - step) / 12 for step in (1, 4, 7, 10)])
    found = workload.evaluate(x)
    assert found is not None and 0.0 < found.loss < 2.0 and not found.scores
    workload.over(np.zeros_like(x))
    import torch

    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(not saved[name].any() for name in saved if saved[name].is_floating_point())
    assert "steps 12" in capfd.readouterr().out


def test_the_loss_is_that_of_all_steps_and_scores_are_named_in_small_letters(start: Start, tmp_path) -> None:
    """The Trainer logs within a round, too. Two rounds here see each example once."""
    rouge = "arguments, compute_metrics=lambda _: {'rougeL': 0.5}, train_dataset"
    still = "num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0"
    text = SCRIPT.replace("arguments, train_dataset", rouge).replace("num_labels=2", still)
    workload = start(text.replace("learning_rate=1e-3", "learning_rate=0.0"), str(tmp_path))
    x, updates = play(workload, workload.initial(1), 0, 2)
    found = workload.evaluate(x)
    assert found is not None and found.scores == {"rougel": 0.5}
    assert np.mean([u.loss for u in updates]) == pytest.approx(found.loss, rel=1e-3)


def test_an_evaluation_in_between_changes_nothing(start: Start, tmp_path) -> None:
    whole = start(SCRIPT, str(tmp_path))
    x, _ = play(whole, whole.initial(1), 0, 2)
    other = start(SCRIPT, str(tmp_path))
    y = other.initial(1)
    for round in range(2):
        other.evaluate(np.zeros_like(y))
        y = y + other.local_update(y, round).delta
    assert np.array_equal(x, y)


def test_a_board_that_is_started_again_has_its_optimiser_and_schedule(start: Start, tmp_path) -> None:
    """The Trainer draws its batches anew; rate and momentum go on."""
    first = start(SCRIPT, str(tmp_path))
    x, _ = play(first, first.initial(1), 0, 2)
    kept = first.snapshot()
    second = start(SCRIPT, str(tmp_path))
    second.restore(kept)
    x, updates = play(second, x, 2, 4)
    assert [u.lr for u in updates] == pytest.approx([1e-3 * (12 - step) / 12 for step in (7, 10)])
    second.over(x)


def test_a_run_that_is_over_trains_no_further(start: Start, tmp_path) -> None:
    workload = start(SCRIPT, str(tmp_path))
    workload.over(np.full_like(workload.initial(1), 0.25))
    import torch

    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all((v == 0.25).all() for v in saved.values() if v.is_floating_point())


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("total_rounds * 3", "total_rounds * 2", "would end after 8 steps, before the run: set max_steps=12"),
        ("every=3", "every=0", "every is 0"),
        (
            "trainer = Trainer(model, ",
            "trainer = Trainer(model_init=lambda: BertForSequenceClassification(config), args=",
            r"BertForSequenceClassification, which the Trainer trains \(model_init\?\), shares no parameter with the Bert",
        ),
    ],
)
def test_a_wrong_use_is_named(start: Start, tmp_path, old: str, new: str, sentence: str) -> None:
    workload = start(SCRIPT.replace(old, new), str(tmp_path))
    with pytest.raises(UsageError, match=sentence):
        workload.local_update(workload.initial(1), 0)


def test_another_callback_that_stops_the_trainer_is_named(start: Start, tmp_path) -> None:
    stop = """
    from transformers import TrainerCallback

    class Early(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 4

    trainer.add_callback(Early())
"""
    workload = start(SCRIPT.replace("    trainer.train()\n", stop + "    trainer.train()\n"), str(tmp_path))
    with pytest.raises(UsageError, match="ended at step 4, in round 1 of 4"):
        play(workload, workload.initial(1), 0, 2)
