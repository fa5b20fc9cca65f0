"""docs/gossip.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from edgegossip import codecs, gossip
from edgegossip.gossip.averaging import default_eta
from edgegossip.gossip.topologies.summary import gap_table, summarise

TEXT = (Path(__file__).parents[2] / "docs" / "gossip.md").read_text()


def test_the_table_of_spectral_gaps_is_fresh() -> None:
    """Where this fails: paste what `edgegossip topology` prints."""
    names = [name for name in gossip.topologies.names() if name != "file"]
    wanted = gap_table([summarise(gossip.topologies.get(name, n)) for name in names for n in range(2, 19)])
    assert "\n".join(wanted) in TEXT


def test_every_topology_is_described() -> None:
    missing = [name for name in gossip.topologies.names() if f"| `{name}` |" not in TEXT]
    assert not missing


def test_every_algorithm_is_described() -> None:
    table = TEXT.split("## Algorithms")[1]
    assert not [name for name in gossip.names() if f"\n| `{name}` |" not in table]


def test_the_default_averaging_rates_are_those_of_the_code() -> None:
    rates = {"4-bit-elastiquant": ({}, "0.83"), "topk": ({"ratio": 0.1}, "0.19"), "fp16": ({}, "1")}
    for name, (params, said) in rates.items():
        assert f"{default_eta(codecs.get(name, **params)):.2g}" == said and said in TEXT
    assert f"{default_eta(codecs.get('topk', ratio=0.01)):.1g}" == "0.007" and "0.007 at 1 %" in TEXT
