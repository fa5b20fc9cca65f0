"""`edgegossip topology`: spectral gaps and messages, as tables and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from edgegossip.gossip import topologies
from tests.cli.conftest import Command


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_all_side_by_side(command: Command) -> None:
    code, out, _ = command("topology")
    lines = out.splitlines()
    names = cells(lines[0])[1:]
    assert code == 0 and names == [name for name in topologies.names() if name != "file"]
    assert [cells(line)[0] for line in lines[2:]] == [str(n) for n in range(2, 19)]
    row = dict(zip(names, cells(lines[2 + 16 - 2])[1:], strict=True))
    ring = 1 - (1 + 2 * math.cos(2 * math.pi / 16)) / 3
    assert row["ring"] == f"{ring:.3f}" and row["exponential"] == "0.400"  # 2 / (1 + log2 16), for even n
    assert row["complete"] == row["one-peer-exponential"] == "1.000"
    assert len({len(line) for line in lines}) == 1


def test_one_topology(command: Command) -> None:
    code, out, _ = command("topology", "torus", "--boards", "9", "--boards", "7")
    assert code == 0 and [cells(line) for line in out.splitlines()[2:]] == [
        ["torus", "9", "both ways", "metropolis", "4", "1", "0.600"],
        ["torus", "7", "both ways", "metropolis", "2", "1", "0.251"],
    ]


def test_parameters_and_json(command: Command, tmp_path: Path) -> None:
    _, out, _ = command("topology", "star", "--boards", "4", "--params", "weights=column", "--json")
    (row,) = json.loads(out)["topologies"]
    assert (row["fewest_messages"], row["most_messages"]) == (1, 3)
    assert row["weights"] == "column" and not row["doubly_stochastic"] and not row["directed"]
    _, out, _ = command("topology", "star", "--boards", "4", "--params", "weights=column")
    assert cells(out.splitlines()[2])[3:5] == ["column, not doubly stochastic", "1 to 3"]
    _, out, _ = command("topology", "one-peer-exponential", "--boards", "16", "--json")
    (row,) = json.loads(out)["topologies"]
    assert row["period"] == 4 and row["directed"] and row["most_messages"] == 1 and row["spectral_gap"] == 1.0
    path = tmp_path / "my.topology"
    path.write_text("directed\n0 1\n1 board-2  # by index or by name\nboard-2 0\n")
    code, out, _ = command("topology", "file", "--boards", "3", "--params", f"path={path}", "--json")
    assert code == 0 and json.loads(out)["topologies"][0]["spectral_gap"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rign"], "did you mean ring"),
        (["ring", "--params", "rows=2"], "unknown parameter"),
        (["ring", "--params", "rows"], "write it as key=value"),
        (["--params", "weights=column"], "--params belong to one topology"),
        (["ring", "--boards", "1"], "2<=x<=1024"),
        (["file"], "needs the parameter 'path'"),
    ],
)
def test_mistakes(command: Command, arguments: list[str], said: str) -> None:
    code, out, err = command("topology", *arguments)
    assert code == 2 and said in err and not out
