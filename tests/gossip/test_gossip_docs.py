"""docs/gossip.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.gossip.averaging import default_eta, memory_eta
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.topologies import gap_table, summarise
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError

TEXT = (Path(__file__).parents[2] / "docs" / "gossip.md").read_text()
LAYOUT = Layout.of([TensorSpec("w", (4, 4))])


def test_the_table_of_spectral_gaps_is_fresh() -> None:
    """Where this fails: paste what `edgegossip topology` prints."""
    names = [name for name in gossip.topologies.names() if name != "file"]
    wanted = gap_table([summarise(gossip.topologies.get(name, n)) for name in names for n in (4, 8, 12, 18)])
    assert "\n".join(wanted) in TEXT


def test_every_topology_is_described() -> None:
    missing = [name for name in gossip.topologies.names() if f"| `{name}` |" not in TEXT]
    assert not missing


def test_every_algorithm_is_described() -> None:
    table = TEXT.split("## Algorithms")[1]
    assert not [name for name in gossip.names() if f"\n| `{name}` |" not in table]


def test_the_table_of_suitable_topologies_is_what_the_algorithms_say() -> None:
    names = {name for name in gossip.topologies.names() if name not in ("file", "none")}
    table = TEXT.split("### Which topology suits which algorithm")[1].split("\n##")[0]
    said = {}
    for cells in re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE):
        algorithms, topologies = (set(re.findall(r"`([\w-]+)`", cell)) for cell in cells)
        said |= dict.fromkeys(algorithms, names - topologies if cells[1].startswith("all") else topologies)
    assert said == {name: {one for one in names if _suits(name, one)} for name in gossip.names()}


def _suits(algorithm: str, topology: str) -> bool:
    view = NodeView(
        node="0",
        members=tuple("01234567"),
        topology=gossip.topologies.get(topology, 8),
        layout=LAYOUT,
        codec=codecs.get("fp32"),
        run_id=bytes(16),
        seed=1,
        deadline_s=1.0,
        boot=1,
    )
    try:
        gossip.get(algorithm).init(np.zeros(LAYOUT.size, np.float32), view)
    except ConfigError:
        return False
    return True


def test_the_default_averaging_rates_are_those_of_the_code() -> None:
    rates = {"4-bit-elastiquant": ({}, "0.83"), "topk": ({"ratio": 0.1}, "0.15"), "fp16": ({}, "1")}
    for name, (params, said) in rates.items():
        assert f"{default_eta(codecs.get(name, **params)):.2g}" == said and said in TEXT
    assert f"{default_eta(codecs.get('topk', ratio=0.01)):.2g}" == "0.028" and "| topk 1 % | 0.028 |" in TEXT
    for rate, said in ((default_eta, "0.56, 0.13"), (memory_eta, "0.11, 0.061")):
        assert ", ".join(f"{rate(codecs.get('deadzone', error=e)):.2g}" for e in (0.5, 0.8)) == said and said in TEXT
    with_memory = {"4-bit-elastiquant": ({}, "0.19"), "topk": ({"ratio": 0.1}, "0.053"), "signsgd": ({}, "0.051")}
    for name, (params, said) in with_memory.items():
        assert f"{memory_eta(codecs.get(name, **params)):.2g}" == said and said in TEXT
