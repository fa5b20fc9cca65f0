"""The drop-in among clients that answer badly, fail, or have models and strategies of other
kinds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Result, Strategy

from edgegossip.flower.combine import BoardGrid
from edgegossip.flower.messages import FRAME, STYPE
from edgegossip.types import UsageError
from tests.flower.fleet import CONFIG, Fleet

LIAR = 2


def _arrays(dtype: Any = np.float32) -> ArrayRecord:
    rng = np.random.default_rng(1)
    return ArrayRecord(
        {
            "w": Array(rng.normal(size=(6, 3)).astype(dtype)),
            "n": Array(np.asarray(7, np.int64)),
            "b": Array(rng.normal(size=(4,)).astype(np.float32)),
        }
    )


def _app(message: Message, context: Context) -> Message:
    """Adds noise to floats; every client has the same metrics."""
    del context
    k = message.metadata.dst_node_id
    rng, new = np.random.default_rng(k), {}
    for name, array in message.content["arrays"].items():
        value = array.numpy()
        new[name] = Array(value if name == "n" else (value + 0.1 * rng.normal(size=value.shape)).astype(value.dtype))
    metrics = MetricRecord({"num-examples": 10 * k, "loss": 1.0 / k, "each": [1.0, 2.0]})
    return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)


class Run(Fleet):
    """Clients 1 to 5 of `app` around a strategy; `spoil` changes the liar's replies."""

    def __init__(self, make: Any, app: Any = _app, arrays: ArrayRecord | None = None, boards: int = 5) -> None:
        super().__init__(make(**CONFIG), "fp32", app, nodes=range(1, boards + 1))
        self.arrays, self.metrics = arrays or _arrays(), MetricRecord()

    def play(self, number: int, spoil: Callable[[RecordDict], None] = lambda content: None) -> None:
        replies = self.answer(self.ask("train", number, self.arrays))
        for reply in replies:
            if reply.metadata.src_node_id == LIAR and reply.has_content():
                spoil(reply.content)
        arrays, metrics = self.strategy.aggregate_train(number, replies)
        assert arrays is not None and metrics is not None
        self.arrays, self.metrics = arrays, metrics


def _beside(array: Array) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord({**content["arrays"], "n": array})

    return spoil


def _raw(data: bytes) -> Array:
    return Array(dtype="int64", shape=(), stype="numpy.ndarray", data=data)


def _renamed(old: str, new: str) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        content[new] = content.pop(old)

    return spoil


def _torn(content: RecordDict) -> None:
    frame = content["arrays"][FRAME]
    frame.data = frame.data[:-1] + bytes([frame.data[-1] ^ 1])


def _metrics(**changed: Any) -> Callable[[RecordDict], None]:
    return lambda content: content["metrics"].update(changed)


_HONEST = Array(np.asarray(7, np.int64)).data
_VAST = Array(np.zeros((), np.int64)).data.replace(b"'shape': ()", b"'shape': (1000000000000,)")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_torn, "CRC"),
        (_beside(Array(np.zeros(3, np.int64))), "int64 of shape (3,)"),
        (_beside(Array(np.asarray(np.nan))), "holds NaN"),
        (_beside(Array(dtype="int64", shape=(), stype=STYPE, data=b"x")), "as edgegossip.frame.v1"),
        (_beside(_raw(b"junk")), "cannot be read"),
        (_beside(_raw(_HONEST[:-1])), "cannot be read"),
        (_beside(_raw(_HONEST + bytes(8))), "it holds 2 values"),
        (_beside(_raw(_VAST)), "it holds int64 of shape (1000000000000,)"),
        (lambda content: content["metrics"].pop("loss"), "it lacks 'loss'"),
        (_metrics(more=1.0), "it has 'more' besides"),
        (_metrics(loss=[1.0, 2.0]), "'loss (2 values)'"),
        (_metrics(each=[1.0]), "'each (1 values)'"),
        (_renamed("metrics", "other"), "it lacks 'metrics'"),
        (_renamed("arrays", "models"), "it lacks 'arrays'"),
        (lambda content: content.pop("metrics"), "it lacks 'each (2 values)', 'loss', 'metrics', 'num-examples'"),
        (_metrics(**{"num-examples": [1.0]}), "it has 'num-examples (1 values)' besides"),
        (_metrics(**{"num-examples": 1e300}), "claims 'num-examples' = 1e+300"),
        (_metrics(**{"num-examples": 10**11}), "1e+11 examples, 2.5e+09 times as many as the typical one"),
        (_metrics(**{"num-examples": -1}), "no metric 'num-examples' of 0 or more"),
    ],
)
def test_a_reply_that_does_not_go_with_the_others_is_refused(spoil: Any, reason: str, in_run: int) -> None:
    run = Run(FedMedian)
    run.play(1)
    run.play(2, spoil)
    ((who, why),) = run.refused
    assert who == LIAR and reason in why
    assert int(run.arrays["n"].numpy()) == 7 and np.isfinite(run.arrays["w"].numpy()).all()
    assert set(run.metrics) == {"loss", "each"}
    run.play(3)
    assert len(run.refused) == 1


@pytest.mark.parametrize("liar", [1, 2])
def test_of_two_the_one_is_right_that_looks_as_before(liar: int, in_run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LIAR", liar)
    run = Run(FedAvg, boards=2)
    run.play(1)
    run.play(2, _metrics(more=1.0))
    run.play(3)
    assert [who for who, _ in run.refused] == [liar]


def test_bad_answers_to_an_evaluation_are_refused_too(in_run: int) -> None:
    run = Run(FedAvg)
    run.play(1)
    replies = []
    for k in range(1, 6):
        question = Message(RecordDict(), dst_node_id=k, message_type="evaluate")
        question.metadata.__dict__["_message_id"] = str(k)
        metrics = MetricRecord({"num-examples": 5, "loss": 1.0})
        replies.append(Message(RecordDict({"metrics": metrics}), reply_to=question))
    replies[3].content["metrics"]["extra"] = 1.0
    replies[1].content["metrics"]["num-examples"] = float("nan")
    found = run.strategy.aggregate_evaluate(1, replies)
    assert found == MetricRecord({"loss": 1.0}) and [who for who, _ in run.refused] == [LIAR, 4]


@pytest.mark.parametrize("make", [FedAvg, FedMedian])
@pytest.mark.parametrize("working", [0, 3])
def test_failures_are_counted_and_told_as_flower_does(
    make: Any, working: int, in_run: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def app(message: Message, context: Context) -> Message:
        if message.metadata.dst_node_id > working:
            raise RuntimeError("CUDA out of memory")
        return _app(message, context)

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    run = Run(make, app)
    with caplog.at_level(logging.INFO, "flwr"):
        if working:
            run.play(1)
        else:
            with pytest.raises(AssertionError):  # no model
                run.play(1)
    assert f"Received {working} results and {5 - working} failures" in caplog.text
    assert (
        caplog.text.count("CUDA out of memory") == 5 - working
        and "node 5: <class 'RuntimeError'>:<'CUDA" in caplog.text
    )


class LocalGrid(BoardGrid):
    """Clients in this process."""

    def __init__(self, run: Run) -> None:
        super().__init__([1, 2, 3])
        self._run = run

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._run.answer(sorted(messages, key=lambda m: m.metadata.dst_node_id))


class Saving(FedAvg):
    """As in Flower's advanced example: plays the rounds itself."""

    kept: str = ""

    def keep_at(self, path: str) -> None:
        self.kept = path

    def start(self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3, **kwargs: Any) -> Result:  # type: ignore[override]
        result = Result()
        for number in range(1, num_rounds + 1):
            replies = grid.send_and_receive(
                self.configure_train(number, initial_arrays, ConfigRecord({"lr": 0.1}), grid)
            )
            arrays, _ = self.aggregate_train(number, replies)
            assert arrays is not None
            result.arrays = initial_arrays = arrays
        self.kept += f" after {num_rounds}"
        return result


class Announcing(FedAdam):
    """Does a little more than Flower's own rounds."""

    began = 0

    def start(self, *args: Any, **kwargs: Any) -> Result:
        self.began += 1
        return super().start(*args, **kwargs)


def test_a_strategy_that_plays_the_rounds_itself_does_so(in_run: int) -> None:
    run, plain = Run(Saving), Run(FedAvg)
    run.strategy.keep_at("model.pt")
    saved, usual = (r.strategy.start(LocalGrid(r), _arrays(), num_rounds=3).arrays for r in (run, plain))
    assert saved is not None and usual is not None and not run.refused
    np.testing.assert_array_equal(saved["w"].numpy(), usual["w"].numpy())
    assert run.strategy.kept == "model.pt after 3"
    assert run.strategy.traffic.up_bytes > 0
    assert not vars(run.strategy.inner).keys() & {"configure_train", "aggregate_train"}


def test_a_strategy_that_adds_to_start_is_called(in_run: int) -> None:
    run = Run(Announcing)
    result = run.strategy.start(LocalGrid(run), _arrays(), num_rounds=2)
    assert run.strategy.began == 1 and result.arrays is not None and run.strategy.traffic.up_bytes > 0


def test_what_is_the_wrapped_strategys_is_read_and_set_there(in_run: int) -> None:
    strategy = Run(FedAdam).strategy
    strategy.eta = 0.5
    assert strategy.inner.eta == 0.5 == strategy.eta and "eta" not in vars(strategy)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        strategy.nothing_of_the_kind  # noqa: B018
    assert isinstance(strategy, Strategy)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("make", [FedAvg, FedMedian])
def test_floats_of_other_widths_travel_and_come_back_as_they_were(dtype: Any, make: Any, in_run: int) -> None:
    seen: set[str] = set()

    def app(message: Message, context: Context) -> Message:
        seen.add(message.content["arrays"]["w"].dtype)
        return _app(message, context)

    run, same = Run(make, app, _arrays(dtype)), Run(make, arrays=_arrays(np.float32))
    for number in (1, 2):
        run.play(number)
        same.play(number)
    assert seen == {np.dtype(dtype).name} == {run.arrays["w"].dtype} and run.arrays["b"].dtype == "float32"
    np.testing.assert_allclose(
        run.arrays["w"].numpy(), same.arrays["w"].numpy(), atol=1e-6 if dtype == np.float64 else 5e-3
    )


def test_a_model_without_floats_is_declined_in_one_sentence(in_run: int) -> None:
    strategy = Run(FedAvg).strategy
    with pytest.raises(UsageError, match="nothing in the model can be compressed"):
        strategy.configure_train(1, ArrayRecord({"0": Array(np.zeros(3, np.uint8))}), ConfigRecord(), BoardGrid([1]))
