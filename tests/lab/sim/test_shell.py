"""Whole boards in virtual time: they bear faults without blaming anybody falsely, the same seed
gives the same run, and a mistake in mesh, membership, writer or node is found by its rule."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from edgegossip.checkpoint.writer import Writer
from edgegossip.cli.sim import sim
from edgegossip.lab.sim import Named, Options, run, schedule_of
from edgegossip.lab.sim.run import Outcome
from edgegossip.mesh.base import PeerUp
from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.protocol import Changed
from edgegossip.mesh.outbound import Edge, FrameQueue, Status
from edgegossip.node.gossip_node import GossipNode

PAUSE, SPLIT, CRASH = "pause@2.5-9:1", "split@3-15:1", "crash@5-7:1"


def play(faults: str) -> Outcome:
    parts = {"algorithms": (Named("dpsgd"),), "topology": Named("ring"), "codec": Named("fp32")}
    return run(schedule_of(1, Options(**parts, nodes=3, rounds=4, deadline_s=2.0, mode="shell", faults=faults)))  # type: ignore[arg-type]


@pytest.mark.parametrize("faults", ["pause@2.5-5:1,pause@8-14:0", SPLIT, f"full-disk@3-5:1,{CRASH}"])
def test_boards_bear_it_blame_nobody_falsely_and_come_to_the_end(faults: str) -> None:
    outcome = play(faults)
    assert not outcome.violations
    assert outcome.rounds > 100


def test_a_drawn_schedule_is_replayed_to_the_bit_by_its_command() -> None:
    drawn = schedule_of(2, Options(mode="shell", nodes=3, rounds=4))
    words = [*shlex.split(drawn.command())[2:], "--json"]
    result = CliRunner().invoke(sim, words, standalone_mode=False, catch_exceptions=False)
    assert json.loads(result.output)["hash"] == run(drawn).digest


def at_once(real: Any) -> Callable[..., None]:
    """Tells deaths that others found before their members can say anything."""

    def set_row(self: Detector, member: int, after: Any, now_s: float) -> None:
        real(self, member, after, now_s)
        self._out += [Changed(k, told, self.table[k]) for k, (_, told) in self._hearsay.items()]
        self._hearsay.clear()

    return set_row


def once_only(real: Any) -> Callable[..., None]:
    """Tells the node that a peer is there the first time, and never that it is back."""

    def came_up(self: Edge) -> None:
        if self.status is Status.NEW:
            self._post(PeerUp(self.peer))
        self._cancel_down_timer()
        self.status = Status.UP

    return came_up


MISTAKES = {
    "a deadline goes before frames that wait": (
        "blame",
        PAUSE,
        [
            (GossipNode, "_took_waiting", lambda real: lambda self: False),
            (GossipNode, "_stood_still", lambda real: print),
        ],
    ),
    "deaths by hearsay are told at once": ("blame", SPLIT, [(Detector, "_set", at_once)]),
    "the writer writes nothing": ("kept", CRASH, [(Writer, "offer", lambda real: lambda self, *args, **meta: None)]),
    "a connection that is back goes on without what was under way": (
        "blame",
        "split@3-11:1",
        [(FrameQueue, "restart", lambda real: lambda self, *args: self._sent.clear() or [])],
    ),
    "a peer never comes back": ("shut-out", SPLIT, [(Edge, "_came_up", once_only)]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_by_its_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, faults, changes = MISTAKES[name]
    for where, what, change in changes:
        monkeypatch.setattr(where, what, change(where.__dict__[what]))
    assert [v.rule for v in play(faults).violations] == [rule]
