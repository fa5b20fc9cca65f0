"""Clock, network, presence, disk, workload, names."""

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.codecs.base import Ctx
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import ConfigError
from lab.sim import naming
from lab.sim.byzantine import MOST_HUGE, Byzantine
from lab.sim.disk import Disk, Saved
from lab.sim.naming import Named
from lab.sim.network import JITTER_S, KEPT, LATENCY_S, UNFIT, Clock, Decoded, FailureDetector, Network
from lab.sim.schedule import CODECS, layout_of


def test_events_of_one_instant_keep_their_order() -> None:
    clock, seen = Clock(), []
    for k in range(3):
        clock.at(1.0, seen.append, k)
    clock.at(0.5, seen.append, "first")
    clock.at(0.2, clock.at, 0.1, seen.append, "past is now")
    assert clock.run(10.0) and seen == ["past is now", "first", 0, 1, 2] and clock.now == 1.0
    clock.after(1.0, seen.append, "never")
    assert not clock.run(1.5) and len(clock) == 1
    clock.stop()
    assert len(clock) == 0


def network(seen: Counter[str] | None = None) -> tuple[Clock, Network, list[tuple[int, bytes]]]:
    clock, got = Clock(), []
    return clock, Network(clock, Random(1), 3, lambda *m: got.append(m), Counter() if seen is None else seen), got


def numbered(count: int) -> list[bytes]:
    return [bytes([k]) for k in range(count)]


@pytest.mark.parametrize("kind", ["delay", "loss", "duplication", "reorder"])
def test_message_faults(kind: str) -> None:
    seen: Counter[str] = Counter()
    clock, net, got = network(seen)
    setattr(net, kind, 0.5)
    for data in numbered(100):
        net.send(0, 1, data)
    clock.run(LATENCY_S[1] + JITTER_S)
    soon = {d for _, d in got}
    clock.run(100.0)
    arrived = [d for _, d in got]
    assert seen[kind] > 10 and set(seen) == {kind}
    assert (len(soon) < len(set(arrived))) == (kind in ("delay", "reorder"))
    assert (len(arrived) < 100) == (kind == "loss") and (len(arrived) > 100) == (kind == "duplication")
    first = list(dict.fromkeys(arrived))
    assert (first != sorted(first)) == (kind == "reorder")


def test_cuts_count_for_one_direction_and_add_up() -> None:
    clock, net, got = network(seen := Counter())
    net.cut(0, 1, "split")
    net.cut(0, 1, "flapping")
    net.mend(0, 1, "split")
    net.mend(0, 1, "split")
    assert net.is_cut(1, 0) and not net.is_cut(0, 2)
    net.send(0, 1, b"lost")
    net.send(1, 0, b"there")
    net.mend(0, 1, "flapping")
    net.send(0, 1, b"again")
    clock.run(1.0)
    assert [d for _, d in sorted(got)] == [b"there", b"again"] and seen == {"flapping": 1}


def test_a_slow_link_takes_one_message_after_the_other() -> None:
    clock, net, got = network()
    net.slow(0, 1, 1.0)
    for data in numbered(3):
        net.send(0, 1, data)
    clock.run(2.5)
    assert len(got) == 2
    assert net.through_s == 0.0
    net.slow(0, 1, 0.0)
    assert 3.0 < net.through_s < 3.1  # of what has queued
    net.send(0, 1, b"behind them")
    clock.run(net.through_s)
    assert [d for _, d in got] == [*numbered(3), b"behind them"]
    net.slow(0, 1, 0.0)  # it is not slow, so nothing more has queued
    assert net.through_s < 3.1


@pytest.mark.parametrize("kind", ["delay", "duplication", "reorder", "replay", ""])
def test_when_the_last_message_of_a_node_arrives(kind: str) -> None:
    clock, net, got = network()
    if kind:
        setattr(net, kind, 1.0)
    for k, data in enumerate(numbered(20)):
        net.send(0, 1 + k % 2, data)
    last = net.arrives_s(0)
    assert last[0] == 0.0 and net.arrives_s(1) == [0.0] * 3
    for receiver in sorted((1, 2), key=last.__getitem__):
        clock.run(last[receiver] - 1e-9)
        before = sum(to == receiver for to, _ in got)
        clock.run(last[receiver])
        assert sum(to == receiver for to, _ in got) > before
    clock.run(100.0)
    assert clock.now <= max(last)


def told_presence(up: set[int]) -> tuple[Clock, FailureDetector, list[tuple[bool, int, int, bool]]]:
    """Of two nodes, and what they are told: whether some time after it happened, who, of whom, and
    whether it is up."""
    clock, told = Clock(), list[tuple[bool, int, int, bool]]()

    def tell(node: int, peer: int, is_up: bool, reason: str) -> None:
        assert is_up == (not reason)
        told.append((clock.now > 0.01, node, peer, is_up))

    return (
        clock,
        FailureDetector(clock, Random(0), [(1,), (0,)], lambda a, b: {a, b} <= up, lambda a, b: True, tell),
        told,
    )


def test_two_that_do_not_train_the_same_hear_it_once_a_process_and_never_that_the_other_is_up() -> None:
    clock, told, unfit = Clock(), list[tuple[int, int, bool, str]](), {1}

    def fit(a: int, b: int) -> bool:
        return (a in unfit) == (b in unfit)

    def tell(node: int, peer: int, is_up: bool, reason: str) -> None:
        told.append((node, peer, is_up, reason))

    presence = FailureDetector(clock, Random(0), [(1,), (0,)], lambda a, b: True, fit, tell)
    presence.booted(0)
    presence.booted(1)
    clock.run(10.0)
    assert sorted(told) == [(0, 1, False, UNFIT), (1, 0, False, UNFIT)]
    assert presence.fits_nobody(0) and presence.unfit(1, 0) and not presence.met(0, 1)
    told.clear()
    unfit.clear()
    presence.booted(1)
    assert not presence.unfit(0, 1)
    clock.run(20.0)
    assert sorted(told) == [(0, 1, True, ""), (1, 0, True, "")] and presence.connected(0, 1)


def test_presence_notices_late_and_a_restart_always() -> None:
    up = {0, 1}
    clock, presence, told = told_presence(up)
    for node in (0, 1):
        presence.booted(node)
    clock.run(5.0)
    assert sorted(told) == [(True, 0, 1, True), (True, 1, 0, True)] and not presence.pending
    del told[:]
    up.remove(1)
    presence.node_changed(1)
    assert presence.pending == 2 and not presence.knows_down(0, 1)
    clock.run(10.0)
    assert told == [(True, 0, 1, False), (True, 1, 0, False)] and not presence.pending and presence.knows_down(0, 1)
    up.add(1)
    presence.booted(1)
    clock.run(20.0)
    assert not presence.pending and sorted(told[2:]) == [(True, 0, 1, True), (True, 1, 0, True)]
    presence.booted(1)  # so quickly that nobody missed it
    clock.run(30.0)
    assert [t[1:] for t in told[4:] if t[1] == 0] == [(0, 1, False), (0, 1, True)]
    presence.close(0, 1)
    assert presence.knows_down(0, 1) and not presence.connected(1, 0)
    clock.run(40.0)
    assert told[-1] == (True, 1, 0, False)
    presence.booted(0)  # another process of it has nothing against 1
    assert presence.connected(0, 1)


def test_whoever_died_before_the_others_began_is_known_to_be_gone_at_once() -> None:
    clock, presence, told = told_presence({0})
    presence.lost.add(1)
    presence.booted(0)
    assert told == [(False, 0, 1, True), (False, 0, 1, False)] and presence.knows_down(0, 1)
    presence.booted(1)
    assert not presence.lost
    clock.run(5.0)
    assert told[2:] == [(True, 1, 0, False)]  # 0 is not reached


def test_disk_gives_the_newest_that_can_be_read() -> None:
    disk = Disk()
    assert disk.read() is None and not disk.crash("torn-write", 1) and not disk.crash("lost-write", 2)
    for k in range(12):
        disk.write(Saved(k, k))
    assert len(disk.files) == Disk.KEEP
    assert disk.crash("crash", 1) and disk.read() == Saved(11, 11)
    assert disk.crash("torn-write", 1) and disk.read() == Saved(10, 10)
    assert disk.crash("lost-write", 3) and disk.read() == Saved(8, 8)
    assert disk.crash("old-checkpoint", 99) and disk.read() == Saved(4, 4)
    assert disk.crash("lost-write", 99) and disk.read() is None
    disk.write(Saved(1, 1))
    assert disk.crash("empty-disk", 1) and disk.read() is None


@pytest.mark.parametrize(
    "text", ["fp32", "topk:ratio=0.25", "random-regular:degree=3,seed=1", "own:flag=true,name=abc"]
)
def test_names_and_their_words(text: str) -> None:
    named = naming.parse("--x", text)
    assert str(named) == text and naming.parse("--x", str(named)) == named


def test_names_with_lists_and_quotes() -> None:
    named = Named.of("mlp", {"hidden": [1, 2], "word": "3", "odd": "a,b"})
    assert naming.parse("--x", str(named)) == named and named.values["hidden"] == [1, 2]
    with pytest.raises(ConfigError, match="--x topk:ratio: write it as"):
        naming.parse("--x", "topk:ratio")


def test_parameters_are_found_inside_of_what_is_around_an_algorithm() -> None:
    algorithm = naming.algorithm_of(Named.of("sgp+heavy-ball", {"momentum_factor": 0.5}))
    assert naming.param_of(algorithm, "eta", 0.0) == 1.0 and naming.param_of(algorithm, "factor", 0.0) == 0.5
    assert naming.param_of(algorithm, "nothing", 7.0) == 7.0


def test_every_lie_is_a_frame_and_another_one() -> None:
    layout, codec = layout_of(16), codecs.get("fp32")
    limits = wire.Limits.of(layout)
    byzantine = Byzantine(Random(0), codec, layout, limits)
    body = np.ones(16, np.float32).tobytes()
    frame = Frame(
        Kind.MODEL,
        codec.wire_id,
        b"",
        layout.hash,
        b"r" * 16,
        3,
        1,
        5,
        body,
        {Aux.SHARE: 0.5, Aux.PUSH_SUM_WEIGHT: 0.5},
    )
    for kind in ("byzantine-nan", "byzantine-weight", "byzantine-run", "byzantine-huge"):
        data = byzantine.tamper(kind, frame)
        assert data is not None and wire.parse(data, limits) != frame
    assert wire.parse(byzantine.tamper("byzantine-weight", frame), limits).aux[Aux.PUSH_SUM_WEIGHT] <= 0.0
    huge = [byzantine.tamper("byzantine-huge", frame) for _ in range(MOST_HUGE)]
    assert huge[-1] is None
    assert len({byzantine.tamper("byzantine-mutation", frame) for _ in range(200)}) > 50
    hello = Frame(Kind.HELLO, codec.wire_id, b"", layout.hash, b"r" * 16, 3, 1, 5, b"")
    assert byzantine.tamper("byzantine-nan", hello) is None and byzantine.tamper("byzantine-huge", hello) is None
    assert all(byzantine.tamper("byzantine-mutation", hello) for _ in range(50))
    assert byzantine.tamper("byzantine-state", hello) is None and byzantine.tamper("byzantine-state", frame) is None
    streamed = replace(frame, sequence=4, aux={**frame.aux, Aux.SESSION: 7})
    gaps = [wire.parse(data, limits) for _ in range(50) if (data := byzantine.tamper("byzantine-state", streamed))]
    assert 5 < len(gaps) < 45 and {g.sequence for g in gaps} == {5}
    state = replace(streamed, kind=Kind.STATE)
    assert wire.parse(byzantine.tamper("byzantine-state", state), limits).aux[Aux.PUSH_SUM_WEIGHT] > 1e5


@pytest.mark.parametrize("codec", sorted({str(c) for c in CODECS}))
def test_a_codec_that_remembers_decodes_as_the_codec_does(codec: str) -> None:
    """Bit by bit, whichever way it is asked and however often; nobody can change what it
    remembers."""
    plain, layout = naming.codec_of(naming.parse("--codec", codec)), layout_of(16)
    decoded, rng = Decoded(plain), np.random.default_rng(1)
    assert decoded == plain and hash(decoded) == hash(plain) and decoded.wire_params() == plain.wire_params()
    for k in range(KEPT + 3):
        body, _ = decoded.encode(rng.normal(size=16).astype(np.float32), plain.init(layout), Ctx(k, 0, 1.0, 0.1))
        for weight in (None, 1.0, 0.3):
            for out in (None, rng.normal(size=16).astype(np.float32)) if weight is None else (np.ones(16, np.float32),):
                wanted = plain.decode(body, layout, None if out is None else out.copy(), weight)
                found = decoded.decode(body, layout, out, weight)
                assert found.tobytes() == wanted.tobytes() and (out is None or found is out)
                found[:] = 7.0
