"""Trains without a server: algorithms as state machines without I/O, topologies and mixing weights.
Pure."""

from edgegossip.gossip import topologies
from edgegossip.gossip.registry import get, maker, names

__all__ = ["get", "maker", "names", "topologies"]
