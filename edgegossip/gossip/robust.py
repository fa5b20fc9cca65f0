"""Bounds what neighbours that lie can do, around a scheme whose receivers weigh.

Of the distances to the neighbours heard of in the round, the `malicious` largest are left out, and
the radius tau_i is the largest of the others. However far liars say that they are, that is no more
than the distance of the farthest honest neighbour: of the distances that are larger than that, all
are of liars, and there are no more of them than are left out. Two rules use it:

- `nearest`: who lies beyond tau_i has no weight in this round. (Nearest-neighbour averaging:
  Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan, "Robust collaborative learning with linear
  gradient overhead", 2023, algorithm 1 with the weights of the topology in place of equal ones;
  what the left out had is the board's own.)
- `clip`: who lies beyond tau_i pulls as far as tau_i. (ClippedGossip: He, Karimireddy, Jaggi,
  "Byzantine-robust decentralized learning via ClippedGossip", 2022, algorithm 1, with the radius
  that adapts as in the authors' experiments.)

    x_i <- x_i + sum_j W_ij RULE(x_j - x_i),    CLIP(z) = min(1, tau_i / ||z||) z

So each liar pulls as far as an honest neighbour may, and no further. `clip` leaves no honest board
out, whose data may be what differs. Everything is from the board's own place: what it trained
itself is not bounded.

What is bounded is a scheme's p_j - p_i, what the two made public: models, or the replicas that
compressed differences move on. So it holds for `dpsgd`, `deep-squeeze`, `choco-sgd` and `bagua-lp`
with any codec. It cannot hold where mass is handed over (what is left out would be lost to
everybody), where gradients are summed (each once, for good), where averages go in pairs (of one
distance there is no largest but it), and for `d2`, which adds up what mixing did in all rounds and
would add up each round's lie. These are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from edgegossip.choices import choose, either
from edgegossip.gossip.base import GossipAlgorithm
from edgegossip.gossip.registry import having
from edgegossip.gossip.traits import Traits
from edgegossip.types import ConfigError, NodeId

Rule = Callable[[float, float], float]  # distance and radius -> factor of the neighbour's weight

RULES: dict[str, Rule] = {
    "nearest": lambda distance, tau: 1.0 if distance <= tau else 0.0,
    "clip": lambda distance, tau: 1.0 if distance <= tau else tau / distance,
}


def with_robust_mixing(
    algorithm: GossipAlgorithm[Any], malicious_nodes: int, rule: str = "nearest"
) -> GossipAlgorithm[Any]:
    """Return `algorithm` with mixing that bears so many neighbours that lie; itself for 0. `rule`
    is one of RULES. Raises ConfigError for another, and where it cannot hold; `init` does for a
    topology on which it cannot.

    Example:
        algorithm = with_robust_mixing(gossip.get("choco-sgd"), malicious_nodes=2)
    """
    choose("gossip.malicious_rule", rule, RULES)
    if not malicious_nodes:
        return algorithm
    if why := algorithm.traits.unbounded:
        raise ConfigError(
            f"gossip.malicious_nodes = {malicious_nodes} cannot hold for {algorithm.name}: {why}; use {_with_guard()}"
        )
    rounds = cast("Any", algorithm)  # where it holds, `rounds.Synchronous` around a `Symmetric`
    scheme = replace(rounds.scheme, keeps=True, malicious=malicious_nodes, malicious_rule=rule)
    robust: GossipAlgorithm[Any] = replace(rounds, scheme=scheme)
    return robust


def guard_of(traits: Traits) -> str:
    """Return the settings that bound what a liar can do, for the beginning of a cure."""
    return f"{_with_guard()} with gossip.malicious_nodes" if traits.unbounded else "gossip.malicious_nodes"


def _with_guard() -> str:
    return f"gossip.algorithm = {either(having(lambda of: not of.traits.unbounded))}"


def bounded(row: Mapping[int, float], distances: Mapping[int, float], malicious: int, rule: str) -> dict[int, float]:
    """Return the weights of neighbours, W_ij times the rule's factor, so that a weight times p_j -
    p_i is what the rule leaves of it."""
    tau, factor = radius(list(distances.values()), malicious), RULES[rule]
    return {j: weight * factor(distances[j], tau) for j, weight in row.items()}


FAR_TIMES, FAR_AMONG = 2.0, 3
# A direction that is turned round is 2.6 times as long as the median on a ring, and more elsewhere;
# of honest boards the longest was below that in most rounds, at alpha = 0.05 of a Dirichlet split.
LONG_TIMES = 2.5
OUT_OF_LINE = 10  # rounds: a board may have hard examples for a few


def far_beyond(distances: Mapping[NodeId, float], limit: float = FAR_TIMES) -> dict[NodeId, float]:
    """Return who lies `limit` times the median distance away or further, and how many times; nobody
    of fewer than FAR_AMONG. What reports name outliers by; the rules go by order alone."""
    middle = sorted(distances.values())[(len(distances) - 1) // 2] if len(distances) >= FAR_AMONG else 0.0
    return {node: far / middle for node, far in distances.items() if far >= limit * middle > 0.0}


def radius(distances: list[float], malicious: int) -> float:
    """Return the largest distance but for the `malicious` largest; 0 where none is left."""
    return sorted(distances)[-malicious - 1] if len(distances) > malicious else 0.0
