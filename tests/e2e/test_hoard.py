"""A board of the fleet that was taken over sends nothing but valid messages, of rounds that are far
away: what a board keeps of them is not in its memory. Every other attack is slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from lab.soak.attack import EVIL, HOARD, OWN_ROUNDS, PATIENCE_S, ROWS, Stolen, Watch, hoard, layout_of, play
from lab.soak.boards import fleet

SETTINGS = (
    *("model.name=lab.soak.slow_mlp:slow_mlp", "model.params.hidden=[5000]", "model.params.pause_s=0.2"),
    *("training.local_steps=1", "run.rounds=1000000", "gossip.topology=complete", "gossip.params.staleness=30"),
)


def until(what: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_what_a_member_has_boards_keep_is_not_in_their_memory() -> None:
    with fleet(("a", "b", "c", EVIL), SETTINGS) as boards:
        boards.kill(EVIL)
        stolen, layout = Stolen(boards), layout_of(SETTINGS)
        del boards.processes[EVIL]

        def step() -> int:
            return int(boards.last("a")["step"])

        with Watch({"a": boards.processes["a"].pid}) as watch:
            alone = step() + OWN_ROUNDS
            until(lambda: step() >= alone)
            idle_bytes = watch.peak_bytes("a")
            taken = asyncio.run(hoard(stolen, "a", layout))
            after = step() + 3
            until(lambda: step() >= after)
        [files] = [p for p in boards.sample().values() if p["round"] >= after][:1]
        assert taken == HOARD and not [e for e in boards.events("a") if e["event"] == "refused"]
    grew = watch.peak_bytes("a") - idle_bytes
    assert grew < 3 * 4 * layout.size + (64 << 20), f"{idle_bytes >> 20} MiB alone, {grew >> 20} more then"
    assert files["descriptors"] > HOARD // 2  # they are kept, for all that


@pytest.mark.slow  # real processes, whose rounds a second are judged
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "row"), [(mode, row) for mode, rows in ROWS.items() for row in rows])
def test_one_member_costs_two_deadlines_and_some_memory(mode: str, row: str) -> None:
    found = play(row, 4, mode)
    assert not found["wrong"], found
