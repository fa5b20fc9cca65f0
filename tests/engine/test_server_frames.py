"""Differences down: both ends hold the same, and what a codec loses comes with the next one."""

from __future__ import annotations

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.codecs.base import Ctx
from edgegossip.engine.server_frames import COORDINATOR, Channel, Downlink, Replica, Uplink
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.layout import SUMS, Layout, TensorSpec
from edgegossip.types import ConfigError, LocalUpdate, PeerError, UsageError

LAYOUT = Layout.of([TensorSpec("a", (40, 10)), TensorSpec("b", (9,))])
RUN = b"r" * 16


def _ends(name: str) -> tuple[Downlink, Replica]:
    return Downlink(LAYOUT, RUN, codecs.get(name)), Replica(LAYOUT, RUN, codecs.get(name))


def _bytes(frame: Frame) -> bytes:
    return b"".join(wire.build(frame))


@pytest.mark.parametrize("name", ["fp16", "8-bit-elastiquant", "minmax8", "topk"])
def test_both_ends_hold_the_same_and_follow_the_model(name: str) -> None:
    down, board = _ends(name)
    rng = np.random.default_rng(1)
    x = rng.normal(size=LAYOUT.size).astype(np.float32)
    for round in range(200):
        sent = down.publish(x, round, {Aux.LEVELS: 7.0})
        assert (sent is None) == (round == 0)
        frame, held = board.open(_bytes(sent or down.whole(round, {Aux.LEVELS: 7.0})))
        assert down.reference is not None and frame.round == round and frame.aux[Aux.LEVELS] == 7.0
        np.testing.assert_array_equal(held, down.reference)
        if round < 30:
            x = x + (0.1 * rng.normal(size=LAYOUT.size)).astype(np.float32)
    assert np.abs(held - x).max() < 1e-4  # once the model stands still, nothing stays behind


def test_a_board_with_a_gap_refuses_a_difference_and_takes_the_whole() -> None:
    down, board = _ends("fp16")
    x = np.ones(LAYOUT.size, np.float32)
    down.publish(x, 0)
    board.open(_bytes(down.whole(0)))
    down.publish(x * 1.5, 1)
    missed = down.publish(x * 2, 2)
    assert missed is not None
    with pytest.raises(PeerError, match="round 2 needs the model before it; this board has that of round 0"):
        board.open(_bytes(missed))
    _, held = board.open(_bytes(down.whole(2)))
    np.testing.assert_array_equal(held, down.reference)
    after = down.publish(x * 3, 3)
    assert after is not None
    np.testing.assert_array_equal(board.open(_bytes(after))[1], down.reference)
    with pytest.raises(PeerError, match="this board has none"):
        Replica(LAYOUT, RUN, codecs.get("fp16")).open(_bytes(after))


def test_a_correction_is_of_the_model_that_it_came_with() -> None:
    down, board = _ends("fp16")
    x = np.ones(LAYOUT.size, np.float32)
    down.publish(x, 0)
    whole = down.whole(0)
    corrected, difference = down.with_correction(whole, "b0", x), down.publish(2 * x, 1)
    assert difference is not None
    for alone in (whole, difference):
        board.open(_bytes(corrected))
        np.testing.assert_array_equal(board.correction, x)
        board.open(_bytes(alone))
        assert board.correction is None


def test_fp32_is_always_whole_and_exact() -> None:
    down, board = _ends("fp32")
    x = np.random.default_rng(2).normal(size=LAYOUT.size).astype(np.float32)
    for round in (0, 1, 5):
        assert down.publish(x + round, round) is None
        np.testing.assert_array_equal(board.open(_bytes(down.whole(round)))[1], x + np.float32(round))


def test_a_resumed_coordinator_goes_on_with_the_same_reference() -> None:
    down, board = _ends("8-bit-elastiquant")
    x = np.random.default_rng(3).normal(size=LAYOUT.size).astype(np.float32)
    down.publish(x, 0)
    again, _ = _ends("8-bit-elastiquant")
    assert down.reference is not None
    again.resume(down.reference, 0)
    for end in (down, again):
        end.publish(x + np.float32(0.5), 1)
    np.testing.assert_array_equal(down.reference, again.reference)
    assert again.whole(1).kind is Kind.MODEL
    del board


@pytest.mark.parametrize("name", ["co3", "ef-signsgd", "dgc", "powersgd", "error-feedback"])
def test_a_codec_with_a_memory_is_refused_whatever_wraps_it(name: str) -> None:
    for codec in (codecs.get(name), codecs.get("small-tensors", codec=name)):
        with pytest.raises(ConfigError, match="server.downlink"):
            Downlink(LAYOUT, RUN, codec)


def test_a_board_goes_on_with_the_model_that_it_kept() -> None:
    down, board = _ends("fp16")
    x = np.full(LAYOUT.size, 2.0, np.float32)
    down.publish(x, 4)
    board.open(_bytes(down.whole(4)))
    model, round = board.kept
    assert model is not None and round == 4
    again = Replica(LAYOUT, RUN, codecs.get("fp16"))
    with pytest.raises(PeerError, match="the model of round 4 did not come"):
        again.held(4)
    with pytest.raises(UsageError):
        again.restore(model[1:], round)
    again.restore(model, round)
    np.testing.assert_array_equal(again.held(4), x)
    with pytest.raises(PeerError, match="the model of round 5 did not come"):
        again.held(5)
    difference = down.publish(x * 2, 5)
    assert difference is not None
    np.testing.assert_array_equal(again.open(_bytes(difference))[1], down.reference)


def test_a_difference_that_makes_the_model_infinite_leaves_a_board_without_one() -> None:
    channel, large = Channel.of(LAYOUT, RUN, codecs.get("bf16")), np.full(LAYOUT.size, 3e38, np.float32)
    frame, _ = channel.frame(Kind.DIFFERENCE, large, channel.codec.init(LAYOUT), Ctx(key=1, round=1), 1)
    board = Replica(LAYOUT, RUN, codecs.get("bf16"))
    board.restore(np.full(LAYOUT.size, np.finfo(np.float32).max, np.float32), 0)
    with np.errstate(over="ignore"), pytest.raises(PeerError, match="not finite any more"):
        board.open(_bytes(frame))
    assert board.kept == (None, None)


@pytest.mark.parametrize("name", ["bf16", "minmax8", "topk"])
def test_sums_over_boards_are_exact_in_a_difference_and_statistics_are_as_all_values(name: str) -> None:
    for buffer, exact in ((f"{SUMS}sums", True), ("norm.running_mean", False)):
        layout = Layout.of([*LAYOUT.tensors, TensorSpec(buffer, (300,), trainable=False)])
        down, board = (end(layout, RUN, codecs.get(name)) for end in (Downlink, Replica))
        x = np.zeros(layout.size, np.float32)
        assert down.publish(x, 0) is None
        board.open(_bytes(down.whole(0)))
        x = np.random.default_rng(3).normal(size=layout.size).astype(np.float32)
        difference = down.publish(x, 1)
        assert difference is not None
        held = board.open(_bytes(difference))[1]
        n = layout.trainable_size
        assert np.array_equal(held[n:], x[n:]) == exact and not np.array_equal(held[:n], x[:n])


def test_only_a_frame_of_the_kind_and_round_that_is_due_is_opened() -> None:
    channel = Channel.of(LAYOUT, RUN, codecs.get("fp32"))
    x = np.ones(LAYOUT.size, np.float32)
    frame, _ = channel.frame(Kind.UPDATE, x, channel.codec.init(LAYOUT), Ctx(key=1, round=3), 1)
    assert channel.check(_bytes(frame), Kind.UPDATE, 3).round == 3
    with pytest.raises(PeerError, match="expected a frame of kind MODEL, got UPDATE"):
        channel.check(_bytes(frame), Kind.MODEL, 3)
    with pytest.raises(PeerError, match="the frame is of round 3, this is round 4"):
        channel.check(_bytes(frame), Kind.UPDATE, 4)


def test_a_board_s_update_takes_what_its_link_is_good_for() -> None:
    update = LocalUpdate(np.zeros(LAYOUT.size, np.float32), 0.1, 1.0, 10, 1)
    fixed = Uplink(Channel.of(LAYOUT, RUN, codecs.get("fp32")), "b0")
    fixed.arrived(1000, 0.0, 0.0, 1.0)
    assert fixed.with_rate(update, 1.0) is update
    free = Uplink(Channel.of(LAYOUT, RUN, codecs.get("auto", seconds=1.0)), "b0")
    before = free.with_rate(update, 1.0).allowed[COORDINATOR]
    free.arrived(before, 0.5, 0.0, before / 1e6)  # a megabyte a second
    assert before < free.with_rate(update, 1.0).allowed[COORDINATOR] <= 2 * before
