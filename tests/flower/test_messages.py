from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.engine.server_frames import Channel, frame_key
from edgegossip.flower import messages
from edgegossip.flower.messages import STYPE, frame_array, frame_bytes, frame_content
from edgegossip.frame import Aux, Kind
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, Metrics, PeerError, UsageError

LAYOUT = Layout.of([TensorSpec("w", (4, 5)), TensorSpec("b", (4,))])
RUN = b"0123456789abcdef"
CHANNEL = Channel.of(LAYOUT, RUN, codecs.get("fp32"))
X = np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)


def _data(channel: Channel = CHANNEL) -> bytes:
    state = channel.codec.init(channel.layout)
    frame, _ = channel.frame(Kind.UPDATE, X, state, Ctx(1, 3), 1, {Aux.EXAMPLES: 10.0})
    return frame_array(frame, channel.layout).data


def test_round_trip() -> None:
    frame = CHANNEL.check(_data(), Kind.UPDATE, 3)
    np.testing.assert_array_equal(CHANNEL.codec.decode(frame.body, LAYOUT), X)
    assert frame.aux[Aux.EXAMPLES] == 10.0


def test_array_is_opaque_to_flower() -> None:
    array = frame_array(CHANNEL.frame(Kind.MODEL, X, CHANNEL.codec.init(LAYOUT), Ctx(1, 0), 1)[0], LAYOUT)
    assert (array.dtype, tuple(array.shape), array.stype) == ("float32", (24,), STYPE)
    with pytest.raises(TypeError):
        array.numpy()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run_id": b"fedcba9876543210"}, "another run"),
        ({"layout": Layout.of([TensorSpec("w", (24,))])}, "another model"),
        ({"codec": codecs.get("fp16")}, "codec"),
    ],
)
def test_frame_for_somebody_else_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(PeerError, match=reason):
        CHANNEL.check(_data(replace(CHANNEL, **change)), Kind.UPDATE, 3)  # type: ignore[arg-type]


def test_not_finite_is_our_own_mistake_when_sent() -> None:
    bad = X.copy()
    bad[7] = np.inf
    with pytest.raises(UsageError):
        CHANNEL.frame(Kind.UPDATE, bad, CHANNEL.codec.init(LAYOUT), Ctx(1, 0), 1)


def test_message_content_holds_exactly_one_frame() -> None:
    array = Array(dtype="float32", shape=(1,), stype=STYPE, data=b"abc")
    assert frame_bytes(frame_content(array)) == b"abc"
    with pytest.raises(DecodeError):
        frame_bytes(RecordDict())
    with pytest.raises(DecodeError, match="has no 'ask' record"):
        messages.ask_of(RecordDict())
    with pytest.raises(DecodeError):
        frame_bytes(RecordDict({"arrays": ArrayRecord({"a": array, "b": array})}))


def test_keys_differ_between_senders_and_rounds() -> None:
    keys = {frame_key(RUN, who, round) for who in ("board-0", "board-1") for round in range(50)}
    assert len(keys) == 100
    assert all(0 <= key < 2**64 for key in keys)
    assert frame_key(RUN, "board-0", 1) == frame_key(RUN, "board-0", 1)


def test_a_profile_has_the_numbers_of_known_metrics_only() -> None:
    values = {"time/compute_s": 1.0, "time/spans": "c1", "sys/power_w": math.inf, "made/up": 3.0, "train/examples": 7}
    made = messages.profile(3, values)
    assert dict(made) == {"round": 3, "time/compute_s": 1.0, "train/examples": 7}
    made["made/up"] = 1.0
    found = messages.read_profile(RecordDict({messages.PROFILE: made}))
    assert found == (3, {"time/compute_s": 1.0, "train/examples": 7})
    assert messages.read_profile(RecordDict({})) is None


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"time/compute_s": 1.0}, "of which round"),
        ({"round": 0.5}, "of which round"),
        ({"round": 0, "time/compute_s": math.nan}, "time/compute_s"),
        ({"round": 0, "time/compute_s": [1.0]}, "time/compute_s"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        messages.read_profile(RecordDict({messages.PROFILE: MetricRecord(record)}))


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": -1e300},
        {"loss": math.nan},
        {"examples": 2**60},
        {"examples": -1},
        {"accuracy": 1.5},
        {"f1": math.inf},
        {"f1": [0.5]},
        {"Not A Name": 0.5},
        {"a" * 33: 0.5},
        {f"score-{k}": 0.5 for k in range(17)},
    ],
)
def test_an_evaluation_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    metrics = Metrics(0.5, 100, {"f1": 0.5, "accuracy": 0.25})
    good = messages.evaluation(metrics)
    found = messages.read_evaluation(RecordDict({messages.EVALUATION: good}))
    assert found == metrics and found.headline == ("f1", 0.5)
    with pytest.raises(DecodeError, match="makes no sense"):
        messages.read_evaluation(RecordDict({messages.EVALUATION: MetricRecord({**good, **changed})}))
