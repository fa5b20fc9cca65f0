"""`bench mesh`: its rows, its targets, and that the peers it measures do what is said of them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from edgegossip.types import HostError
from lab.bench import mesh, mesh_cases, mesh_peers
from lab.bench.__main__ import bench
from lab.bench.mesh_cases import Fleet

STABLE = {
    "case", "nodes", "frame_bytes", "mesh_mb_s", "grpc_mb_s", "tcp_mb_s", "ratio_to_grpc", "latency_ms", "grpc_latency_ms",
    "round_ms", "grpc_round_ms",
}  # fmt: skip


def verdicts(*rows):
    return {v.text.split(",")[0]: v for v in mesh.verdicts_on(rows)}


def test_rows_have_the_fields_that_scripts_rely_on():
    row = mesh_cases.row("ring", 8, 1_000_000, round_ms=3.0)
    assert set(row) >= STABLE
    assert row["round_ms"] == 3.0
    assert row["latency_ms"] is None
    assert mesh.line(row).split()[:3] == ["ring", "8", "1000000"]


def test_help_says_how_long_it_takes_and_what_is_checked():
    text = CliRunner().invoke(bench, ["mesh", "--help"]).output
    assert "minutes" in text
    for target in mesh.TARGETS:
        assert f": {target.text}\n" in text
    assert "at least 0.95: 8 MB frames, rate to tuned gRPC's" in text
    assert "at most 1.6: ring of 16, frames of 1 MB, round to tuned gRPC's" in text


def test_targets_are_judged_against_tuned_grpc():
    assert all(v.holds is None for v in verdicts().values())
    good = [
        mesh_cases.row("throughput", 2, 8_000_000, ratio_to_grpc=0.5, ratio_to_tuned_grpc=0.96),
        mesh_cases.row("latency", 2, 65_536, ratio_to_grpc=1.4, ratio_to_tuned_grpc=2.4),
        mesh_cases.row("ring", 8, 1_000_000, ratio_to_grpc=1.7, ratio_to_tuned_grpc=1.6),
        mesh_cases.row("ring", 16, 1_000_000, ratio_to_grpc=1.9, ratio_to_tuned_grpc=1.5),
        mesh_cases.row("idle", 18, 0, cpu_percent=2.0),
        mesh_cases.row("memory", 4, 1_000_000, rounds=1000, rss_growth_bytes=0),
    ]
    assert all(v.holds for v in verdicts(*good).values())
    bad = verdicts(
        *good,
        mesh_cases.row("throughput", 2, 8_000_000, ratio_to_grpc=1.2, ratio_to_tuned_grpc=0.94),
        mesh_cases.row("ring", 16, 1, ratio_to_grpc=1.2, ratio_to_tuned_grpc=1.7),
    )
    assert [name for name, v in bad.items() if not v.holds] == ["8 MB frames", "ring of 16"]
    assert bad["8 MB frames"].figure == 0.94
    assert (
        verdicts(mesh_cases.row("memory", 4, 1, rounds=10, rss_growth_bytes=0))["growth of a node over 1"].holds is None
    )


@pytest.mark.parametrize(
    "kind", ["member-2", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("grpc", "tuned-2")), "tcp"]
)
def test_two_processes_exchange_what_they_are_told_to(kind):
    with Fleet(kind, 2) as fleet:
        assert fleet.pair("send_frames", "take_frames", frames=3, size=2_500_000) > 0
        assert len(fleet.pair("ping", "pong", times=4, size=65_536)) == 4
        if kind != "tcp":
            ends = fleet.ring(3, 100_000)
            assert [sorted(e) == e and len(e) == 3 for e in ends] == [True, True]
        if kind == "member-2":  # the mesh, and the members of a run on it
            fleet.all("idle", seconds=0.2)  # which fails unless both are here
            fleet.workers[0].order("send_frames", to="p01", frames=1, size=0)
            with pytest.raises(HostError, match="failed: UsageError"):
                fleet.workers[0].answer()


def test_who_is_idle_waits_for_as_long_as_a_node_does(monkeypatch):
    """The clock goes on only where it waits; each time it wakes costs a quarter of a second."""
    waits = []

    class Silent:
        address = ""

        def incoming(self, timeout_s):
            waits.append(timeout_s)
            assert len(waits) <= 5, waits

    clock = SimpleNamespace(monotonic=lambda: sum(waits), process_time=lambda: len(waits) / 4)
    monkeypatch.setattr(mesh_peers, "time", clock)
    assert mesh_peers.MeshPeer("p00", Silent()).idle(12.0) == 0.75
    assert waits == [5.0, 5.0, 2.0]


@pytest.mark.slow  # each kind of fleet that it measures is played above
def test_the_command(tmp_path):
    words = ["mesh", "--case", "ring", "--case", "memory", "--boards", "3", "--repeat", "1", "--rounds", "5", "--json"]
    done = CliRunner().invoke(bench, [*words, "--check", "--save", str(tmp_path)], standalone_mode=False)
    document = json.loads(done.stdout)
    assert [(row["case"], row["nodes"], row["rounds"]) for row in document["rows"]] == [
        ("ring", 3, 24),
        ("memory", 4, 5),
        ("memory", 4, 20),
    ]
    ring = document["rows"][0]
    assert ring["round_ms"] > 0
    assert ring["ratio_to_tuned_grpc"] == pytest.approx(ring["round_ms"] / ring["tuned_grpc_round_ms"])
    assert done.return_value == 6  # no row that a target speaks of
    assert json.loads((tmp_path / "mesh.json").read_text()) == document
    assert "| ring | 3 |" in (tmp_path / "mesh.md").read_text()
