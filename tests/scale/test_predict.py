"""The model of a round: closed forms where there are any, and sums that hold everywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.scale.devices import LinkProfile, load_device
from edgegossip.scale.predict import (
    BoardWork,
    Network,
    PredictedMessage,
    gossip_round,
    gossip_rounds,
    round_seconds,
    server_round,
    work_of,
)
from edgegossip.types import UsageError

SWITCH = LinkProfile(latency_s=0.0)


def ring(n, size):
    return lambda _: [PredictedMessage(k, (k + d) % n, size) for k in range(n) for d in (1, -1)]


def test_flows_share_fairly_and_what_one_cannot_use_goes_to_the_others():
    network = Network([8e6, 8e6, 1.6e6], LinkProfile())  # 1, 1 and 0.2 MB/s
    network.add("slow", 0, 2, 100_000)
    network.add("fast", 0, 1, 1_000_000)
    assert network.next_s() == pytest.approx(0.5)  # slow: 0.2 MB/s, which leaves 0.8
    assert network.advance(0.5) == ["slow"]
    assert network.next_s() == pytest.approx(0.6)
    assert network.advance(0.6) == ["fast"] and network.next_s() is None


def test_by_radio_a_message_takes_the_channel_twice():
    for crossings, seconds in ((1, 1.0), (2, 2.0)):
        network = Network([1e9] * 4, LinkProfile(shared_bits_per_s=8e6, crossings=crossings))
        for k in range(4):
            network.add(k, k, (k + 1) % 4, 250_000)
        assert network.next_s() == pytest.approx(seconds)
        assert network.advance(network.next_s()) == [0, 1, 2, 3]


def test_equal_boards_on_a_shared_link_take_bytes_over_rate():
    works = [BoardWork(0.5, 0.1, 0.01, 1e9)] * 6
    link = LinkProfile(shared_bits_per_s=8e6, latency_s=0.0)
    parts = gossip_round(works, ring(6, 50_000), link)
    for board in parts:  # 12 messages of 50 kB at 1 MB/s, then the last two are decoded
        assert board.round_s == pytest.approx(0.6 + 0.6 + 0.02, rel=1e-6)
        assert board.transmit_s + board.wait_s == pytest.approx(0.6, rel=1e-6) and board.decode_s == pytest.approx(0.02)


def test_a_round_is_the_mean_of_whole_periods():
    works = [BoardWork(1.0, 0.0, 0.0, 8e6)] * 2  # 1 MB/s each way
    parts = gossip_round(
        works, lambda r: [PredictedMessage(k, 1 - k, (1 + r % 3) * 100_000) for k in (0, 1)], SWITCH, period=3
    )
    assert round_seconds(parts) == pytest.approx(1.2, rel=1e-6)


def test_everybody_waits_for_the_slowest_in_the_end():
    works = [BoardWork(1.0 if k == 0 else 0.1, 0.0, 0.0, 1e9) for k in range(4)]
    parts = gossip_round(works, ring(4, 1000), SWITCH)
    assert round_seconds(parts) == pytest.approx(1.0, rel=1e-3)
    assert parts[1].wait_s == pytest.approx(0.9, rel=1e-2) and parts[0].wait_s == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("boards", [2, 7, 18])
def test_boards_that_do_not_always_take_equally_long_wait_for_the_slowest(boards):
    """Of everybody sending everybody nobody begins before the slowest has computed: the mean
    greatest of n normal values."""
    everybody = [PredictedMessage(a, b, 10) for a in range(boards) for b in range(boards) if a != b]
    works = [BoardWork(1.0, 0.0, 0.0, 1e9, spread=0.05)] * boards
    parts = gossip_round(works, lambda _: everybody, SWITCH)
    greatest = {2: 0.564, 7: 1.352, 18: 1.820}[boards]
    waited = sum(p.wait_s + p.transmit_s for p in parts) / boards
    assert waited == pytest.approx(0.05 * greatest, rel=0.2)
    assert sum(p.compute_s for p in parts) / boards == pytest.approx(1.0, rel=0.02)
    assert parts == gossip_round(works, lambda _: everybody, SWITCH)
    *served, _ = server_round(works, BoardWork(0, 0, 0, 1e9), 10, 10, SWITCH)
    assert served[0].round_s == pytest.approx(1 + 0.05 * greatest, rel=0.02)


def test_a_server_round_is_down_and_up_through_one_interface():
    works = [BoardWork(0.5, 0.1, 0.05, 1e9)] * 4
    coordinator = BoardWork(0.0, 0.2, 0.01, 8e6)
    *boards, middle = server_round(works, coordinator, 250_000, 100_000, SWITCH)
    assert middle.round_s == pytest.approx(0.2 + 1.0 + 0.65 + 0.4 + 0.04, rel=1e-6)
    assert boards[0].transmit_s == pytest.approx(1.4, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_parts_add_up_to_the_round_on_every_board(data):
    seconds = st.floats(0, 2)
    n = data.draw(st.integers(2, 5))
    works = [
        BoardWork(*(data.draw(seconds) for _ in range(3)), data.draw(st.floats(1e5, 1e7)), data.draw(seconds))
        for _ in range(n)
    ]
    shared = data.draw(st.none() | st.floats(1e5, 1e7))
    link = LinkProfile(shared, data.draw(st.integers(1, 2)), data.draw(st.floats(0, 0.1)))
    size = data.draw(st.integers(1, 200_000))
    played = [p for r in gossip_rounds(works, ring(n, size), link, 3) for p in r]
    for p in (*played, *server_round(works, works[0], size, size, link)):
        parts = (p.compute_s, p.encode_s, p.transmit_s, p.decode_s, p.wait_s, p.other_s)
        assert min(parts) >= -1e-9 and sum(parts) == pytest.approx(p.round_s, rel=1e-6, abs=1e-9)


def test_work_comes_from_the_profile():
    pi = load_device("raspberry-pi-4")
    work = work_of(pi, flops=pi.fp32_flops, values=1_000_000, codec="co3", threads=2)
    assert work.compute_s == pytest.approx(2.0)
    assert work.encode_s == pytest.approx(4e6 / pi.encode_bytes_per_s["co3"])


def test_a_message_to_nobody_is_refused():
    with pytest.raises(UsageError, match="not between two of 2 boards"):
        gossip_rounds([BoardWork(0, 0, 0, 1e6)] * 2, lambda _: [PredictedMessage(0, 2, 1)], SWITCH, 1)
