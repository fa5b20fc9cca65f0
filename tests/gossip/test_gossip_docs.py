"""docs/gossip.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from edgegossip import gossip
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
