"""Says who talks to whom: topologies by name, by rule and from a file, and what each costs.

A new topology is one function and one line in `BUILDERS`; of another package, an entry point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, cast

import numpy as np
from typing_extensions import override

from edgegossip import plugins
from edgegossip.choices import Range, check_keywords, choose
from edgegossip.gossip import topology_file
from edgegossip.gossip import weights as mixing
from edgegossip.gossip.base import Neighbours, Topology
from edgegossip.gossip.weights import Edge, Links, Matrix, links_of
from edgegossip.types import ConfigError, NodeId, Round, UsageError

__all__ = [
    "NOBODY",
    "GraphTopology",
    "TopologySummary",
    "build",
    "builder",
    "from_text",
    "gap_table",
    "get",
    "names",
    "nobody",
    "summarise",
    "table",
]

Seed: TypeAlias = Annotated[int, Range(0, 2**64 - 1, "of the edges")]

NOBODY = "none"  # what `nobody` is called in recipes; no mesh, so `get` and `names` do not know it
_DRAWS = 100  # of graphs that are to join all nodes
SWAPS_PER_EDGE = 10  # attempted double edge swaps; the usual choice for the chain to forget where it began


@dataclass(frozen=True, slots=True, eq=False)
class GraphTopology(Topology):
    """A period of directed graphs with their mixing matrices and neighbour lists, computed once.
    Made by `get`, `from_text`, `build` or `build_weighted`."""

    name: str
    n: int
    directed: bool  # False: every edge goes both ways in every round
    weights: str  # "metropolis", "column", "uniform" or "given"
    matrices: tuple[Matrix, ...]  # one a round of the period; read-only
    table: tuple[tuple[Neighbours, ...], ...]  # [round of the period][node]
    period: int = field(init=False)  # asked for several times a message

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", len(self.matrices))

    @override
    def neighbours(self, node: int, round: Round) -> Neighbours:
        return self.table[round % len(self.table)][node]

    @override
    def matrix(self, round: Round) -> Matrix:
        """Return W, float64[n, n], read-only; W[i, j] is the weight at i of what j sends."""
        return self.matrices[round % len(self.matrices)]

    def edges(self, round: Round) -> tuple[Edge, ...]:
        """Return (sender, receiver) pairs, sorted; an undirected edge is there twice."""
        row = self.table[round % len(self.table)]
        return tuple((j, i) for j, neighbours in enumerate(row) for i in neighbours.out)

    @override
    def spectral_gap(self) -> float:
        return mixing.spectral_gap(self.matrices)

    @override
    def to_json(self, members: Sequence[NodeId]) -> dict[str, Any]:
        """Return what a run folder's topology.json holds: members, per round of the period its
        edges (sender, receiver) and W (in member order, W[i][j] the weight at i of what j sends),
        and the spectral gap. `from_text` reads it back."""
        if len(members) != self.n:
            raise UsageError(f"topology {self.name!r} has {self.n} nodes, but {len(members)} names were given")
        return {
            "name": self.name,
            "members": list(members),
            "directed": self.directed,
            "weights": self.weights,
            "period": self.period,
            "spectral_gap": self.spectral_gap(),
            "rounds": [
                {"edges": [[members[a], members[b]] for a, b in self.edges(r)], "weights": self.matrix(r).tolist()}
                for r in range(self.period)
            ],
        }


def build(name: str, n: int, rounds: Sequence[Iterable[Edge]], *, directed: bool, weights: str | None) -> GraphTopology:
    """Make a topology of edges (sender, receiver), a list a round of the period; undirected edges
    may be given one way only.

    `weights` names a scheme of `weights.SCHEMES`; None: Metropolis-Hastings if undirected, else
    column-stochastic. Raises ConfigError on an unknown or unfit scheme and when the union of the
    rounds is not strongly connected."""
    links = [links_of(n, edges, directed) for edges in rounds]
    scheme = weights if weights is not None else ("column" if directed else "metropolis")
    make = choose("weights", scheme, mixing.SCHEMES)
    return build_weighted(name, [make(a) for a in links], directed=directed, weights=scheme)


def build_weighted(name: str, matrices: Sequence[Matrix], *, directed: bool, weights: str) -> GraphTopology:
    """Make a topology of mixing matrices. Raises ConfigError when the union of the rounds is not
    strongly connected."""
    check_connected(name, np.logical_or.reduce([w > 0 for w in matrices]), [str(i) for i in range(len(matrices[0]))])
    for w in matrices:
        w.flags.writeable = False
    table = tuple(tuple(_neighbours(w, i) for i in range(len(w))) for w in matrices)
    return GraphTopology(name, len(matrices[0]), directed, weights, tuple(matrices), table)


def check_connected(name: str, links: Links, members: Sequence[NodeId]) -> None:
    """Raise ConfigError that names a node which cannot be reached, and from where, unless the graph
    is strongly connected."""
    for graph, flip in ((links, False), (links.T, True)):  # all reachable from node 0, and node 0 from all
        missing = np.flatnonzero(~_reached(graph, 0))
        if missing.size:
            start, end = (missing[0], 0) if flip else (0, missing[0])
            raise ConfigError(
                f"topology {name!r} is not strongly connected: no path leads from node {members[start]!r} "
                f"to node {members[end]!r}; add edges until every node can reach every other one"
            )


def _reached(links: Links, start: int) -> Links:
    """Return bool[n]: nodes that messages from `start` can get to."""
    reached = np.zeros(len(links), np.bool_)
    reached[start] = True
    for _ in range(len(links)):
        reached = reached | links[:, reached].any(axis=1)
    return reached


def _neighbours(w: Matrix, i: int) -> Neighbours:
    in_ = tuple(j for j in np.flatnonzero(w[i]).tolist() if j != i)
    out = tuple(j for j in np.flatnonzero(w[:, i]).tolist() if j != i)
    return Neighbours(in_, out, MappingProxyType({j: float(w[i, j]) for j in (i, *in_)}))


# -- By rule: rings, torus, complete, star; at random: regular, pairs, out-peers


def ring(n: int, weights: str | None = None) -> GraphTopology:
    """Return an undirected cycle. Metropolis-Hastings weights 1/3 (1/2 for n = 2)."""
    return build("ring", n, [_cycle(n)], directed=False, weights=weights)


def directed_ring(n: int, weights: str | None = None) -> GraphTopology:
    """Return the cycle in which node i sends to i + 1 only. Weights 1/2."""
    return build("directed-ring", n, [_cycle(n)], directed=True, weights=weights)


def torus(n: int, rows: int | None = None, cols: int | None = None, weights: str | None = None) -> GraphTopology:
    """Return an undirected rows x cols grid that wraps round; the squarest factorisation unless
    rows or cols is given. One row (as for a prime n) makes it a ring, and two rows have one edge
    between them a column."""
    rows, cols = _shape(n, rows, cols)
    edges = [
        (r * cols + c, other)
        for r in range(rows)
        for c in range(cols)
        for other in (r * cols + (c + 1) % cols, (r + 1) % rows * cols + c)
    ]
    return build("torus", n, [edges], directed=False, weights=weights)


def complete(n: int, weights: str | None = None) -> GraphTopology:
    """Return the graph in which everybody talks to everybody. Weights 1/n."""
    return build("complete", n, [[(i, j) for i in range(n) for j in range(i)]], directed=False, weights=weights)


def star(n: int, weights: str | None = None) -> GraphTopology:
    """Return the graph in which node 0 is the hub of all others."""
    return build("star", n, [[(0, i) for i in range(1, n)]], directed=False, weights=weights)


def random_regular(n: int, degree: int | None = None, seed: Seed = 0, weights: str | None = None) -> GraphTopology:
    """Draw an undirected, connected graph in which every node has `degree` neighbours (n * degree
    even; default 3, or 4 when n is odd, as far as n allows), by double edge swaps from a circulant
    graph.

    Randomness is PCG64's raw stream, which is the same in every numpy version, so boards agree."""
    low = 1 if n == 2 else 2
    if degree is None:
        degree = min(3 + n % 2, n - 1)
    Range(low, n - 1).check(f"degree of random-regular on {n} nodes", degree, int)
    if n * degree % 2:
        raise ConfigError(f"random-regular on {n} nodes needs an even degree; {degree} is odd, use {degree - 1}")
    generator = np.random.PCG64(seed)
    if degree == 2:  # the connected graphs of degree 2 are the cycles
        order = _shuffled(n, generator)
        return build(
            "random-regular", n, [[(order[a], order[b]) for a, b in _cycle(n)]], directed=False, weights=weights
        )
    edges = _circulant(n, degree)
    _swap(edges, generator)
    while not _is_connected(n, edges):
        _swap(edges, generator)
    return build("random-regular", n, [edges], directed=False, weights=weights)


def random_pairs(n: int, rounds: int = 16, seed: Seed = 0, weights: str | None = None) -> GraphTopology:
    """Draw `rounds` matchings, which come again and again: in each round a node talks to one other
    (one of an odd number to nobody). Weights 1/2. As gossip goes in Boyd, Ghosh, Prabhakar, Shah,
    "Randomized gossip algorithms" (2006), and in NoLoCo (2025)."""
    Range(4, 1024).check(f"rounds of random-pairs on {n} nodes", rounds, int)
    generator = np.random.PCG64(seed)
    matchings: list[list[Edge]] = []
    while not _is_connected(n, [edge for pairs in matchings for edge in pairs]):
        orders = [_shuffled(n, generator) for _ in range(rounds)]
        matchings = [list(zip(order[::2], order[1::2], strict=False)) for order in orders]
    return build("random-pairs", n, matchings, directed=False, weights=weights)


def epidemic(
    n: int, peers: int | None = None, rounds: int = 8, seed: Seed = 0, weights: str | None = None
) -> GraphTopology:
    """Draw `rounds` directed graphs, which come again and again: in each round every node sends to
    `peers` others (default 2), drawn at random, and hears from as many as drew it, perhaps nobody.
    Weights 1 / (peers + 1): columns sum to 1, rows do not, so it is for push-sum.

    EL-Local of de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires, Sharma, "Epidemic learning:
    boosting decentralized learning with randomized communication" (2023). Deviations: all draw from
    one seed, so nodes know whom to wait for; and push-sum conserves what their plain averages of
    what came does not."""
    peers = min(2, n - 1) if peers is None else peers
    Range(1, n - 1).check(f"peers of epidemic on {n} nodes", peers, int)
    Range(4, 1024).check(f"rounds of epidemic on {n} nodes", rounds, int)
    generator = np.random.PCG64(seed)
    for _ in range(_DRAWS):
        drawn = [[(i, j) for i in range(n) for j in _others(n, i, peers, generator)] for _ in range(rounds)]
        links = links_of(n, [edge for edges in drawn for edge in edges], directed=True)
        if _reached(links, 0).all() and _reached(links.T, 0).all():
            return build("epidemic", n, drawn, directed=True, weights=weights)
    raise ConfigError(
        f"epidemic on {n} nodes: {rounds} rounds of {peers} peers join all of them in none of {_DRAWS} draws; raise rounds"
    )


def _others(n: int, i: int, count: int, generator: np.random.PCG64) -> list[int]:
    """Draw so many nodes other than i."""
    others: list[int] = []
    while len(others) < count:
        j = _below(generator, n - 1)
        j += j >= i
        if j not in others:
            others.append(j)
    return others


def _cycle(n: int) -> list[Edge]:
    return [(i, (i + 1) % n) for i in range(n)]


def _shape(n: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    if rows is None and cols is None:
        rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    for key, value in (("rows", rows), ("cols", cols)):
        if value is not None:
            Range(1, n).check(f"{key} of torus on {n} nodes", value, int)
            if n % value:
                near = min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - value))
                raise ConfigError(f"torus: {key} = {value} does not divide {n} nodes; the nearest that does is {near}")
    if rows is None:
        assert cols is not None
        rows = n // cols
    if cols is not None and rows * cols != n:
        raise ConfigError(f"torus: {rows} x {cols} is not {n} nodes; with rows = {rows} use cols = {n // rows}")
    return rows, n // rows


def _circulant(n: int, degree: int) -> list[Edge]:
    """Join every node with its degree // 2 nearest on both sides, and the opposite one when the
    degree is odd (n is even then)."""
    edges = [(i, (i + k) % n) for i in range(n) for k in range(1, degree // 2 + 1)]
    return edges + ([(i, i + n // 2) for i in range(n // 2)] if degree % 2 else [])


def _below(generator: np.random.PCG64, bound: int) -> int:
    """Draw uniformly from 0..bound - 1, up to a bias below 2^-50."""
    return int(generator.random_raw()) % bound


def _shuffled(n: int, generator: np.random.PCG64) -> list[int]:
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = _below(generator, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def _swap(edges: list[Edge], generator: np.random.PCG64) -> None:
    """Turn edges a-b and c-d into a-d and c-b, where that makes no loop and no double edge; in
    place."""
    present = {frozenset(e) for e in edges}
    for _ in range(SWAPS_PER_EDGE * len(edges)):
        p, q = _below(generator, len(edges)), _below(generator, len(edges))
        (a, b), (c, d) = edges[p], edges[q]
        if _below(generator, 2):
            c, d = d, c
        first, second = frozenset((a, d)), frozenset((c, b))
        if a == d or b == c or first in present or second in present or first == second:
            continue
        present -= {frozenset((a, b)), frozenset((c, d))}
        present |= {first, second}
        edges[p], edges[q] = (a, d), (c, b)


def _is_connected(n: int, edges: list[Edge]) -> bool:
    parent = list(range(n))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for a, b in edges:
        parent[root(a)] = root(b)
    return len({root(i) for i in range(n)}) == 1


# -- Exponential graphs
#
# Ying et al., "Exponential graph is provably efficient for decentralized deep training" (2021).
# Both are circulant, so column-stochastic weights are doubly stochastic on them.


def exponential(n: int, weights: str | None = None) -> GraphTopology:
    """Return the static, directed graph in which node i sends to i + 2^k (mod n) for k = 0 ..
    ceil(log2 n) - 1. The spectral gap is 2 / (1 + ceil(log2 n)) for even n (proposition 1)."""
    edges = [(i, (i + 2**k) % n) for i in range(n) for k in range(_hops(n))]
    return build("exponential", n, [edges], directed=True, weights=weights)


def one_peer_exponential(n: int, weights: str | None = None) -> GraphTopology:
    """Return the time-varying, directed graph in which node i sends to i + 2^(t mod p) (mod n)
    only in round t, p = ceil(log2 n). When n is a power of two, one period averages exactly
    (lemma 1)."""
    rounds = [[(i, (i + 2**k) % n) for i in range(n)] for k in range(_hops(n))]
    return build("one-peer-exponential", n, rounds, directed=True, weights=weights)


def _hops(n: int) -> int:
    """Return ceil(log2 n)."""
    return (n - 1).bit_length()


# -- From a file


def from_text(
    text: str, members: Sequence[NodeId], weights: str | None = None, source: str = "in the recipe"
) -> GraphTopology:
    """Build the topology that is written in `text`, as a topology file has it (`topology_file`).

    `weights` stands in where the text names no scheme; `source` names the file in messages. Raises
    DataError that names the line or edge when it cannot be understood, ConfigError when the graph
    (the union over its rounds) is not strongly connected or the weights do not fit it.

    Example:
        topologies.from_text('{"edges": [["a", "b"], ["b", "c"]]}', ("a", "b", "c"))
    """
    rounds = topology_file.parse(text, members, weights, source)
    check_connected(source, np.logical_or.reduce([r.links for r in rounds]), members)
    schemes = {r.scheme for r in rounds}
    return build_weighted(
        "file",
        [r.matrix for r in rounds],
        directed=any(r.directed for r in rounds),
        weights=schemes.pop() if len(schemes) == 1 else "given",
    )


def _from_file(
    n: int,
    text: str,
    members: Sequence[NodeId] | None = None,
    weights: str | None = None,
    source: str = "in the recipe",
) -> GraphTopology:
    """Build what `from_text` does for n nodes; without `members` they go by their index."""
    names = tuple(members) if members is not None else tuple(str(i) for i in range(n))
    if len(names) != n:
        raise UsageError(f"topology 'file' for {n} nodes was given {len(names)} member names")
    return from_text(text, names, weights, source)


def nobody(n: int) -> GraphTopology:
    """Return n nodes without an edge: each trains by itself, with its own model."""
    w = np.eye(n)
    w.flags.writeable = False
    return GraphTopology(NOBODY, n, False, "given", (w,), (tuple(_neighbours(w, i) for i in range(n)),))


# -- By name


BUILDERS: Mapping[str, Callable[..., GraphTopology]] = MappingProxyType(
    {
        "ring": ring,
        "directed-ring": directed_ring,
        "torus": torus,
        "complete": complete,
        "star": star,
        "random-regular": random_regular,
        "random-pairs": random_pairs,
        "epidemic": epidemic,
        "exponential": exponential,
        "one-peer-exponential": one_peer_exponential,
        "file": _from_file,
    }
)


def names() -> tuple[str, ...]:
    """Return the names that `get` knows, those of other packages last."""
    return (*BUILDERS, *plugins.names("topologies"))


def builder(name: str) -> Callable[..., GraphTopology]:
    """Return the function that builds the topology `name`, with its parameters as keywords beside
    n. Raises ConfigError on an unknown name."""
    if name not in BUILDERS and (found := plugins.find("topologies", name)):
        return cast("Callable[..., GraphTopology]", found.what)
    return choose("topology", name, BUILDERS)


def get(name: str, n: int, **params: Any) -> GraphTopology:
    """Return the topology `name` for n >= 2 nodes.

    Every one takes weights = "metropolis", "column" or "uniform" (default: Metropolis-Hastings if
    undirected, else column-stochastic); torus takes rows and cols, random-regular degree and seed,
    random-pairs rounds and seed, epidemic peers, rounds and seed, file text, source and members
    (see `from_text`).

    Raises ConfigError on an unknown name or parameter, a value out of range or fewer than two
    nodes; DataError on a file that cannot be understood.

    Example:
        topology = topologies.get("random-regular", 10, degree=4)
        topology.neighbours(0, round=0).out  # whom node 0 sends to
    """
    build = builder(name)
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise ConfigError(
            f"topology {name!r} needs at least 2 nodes, not {n!r}: a gossip mesh of one has nobody to talk to"
        )
    check_keywords("topology", name, build, params, own=("n",))
    return build(n, **params)


# -- In a few figures: how fast nodes agree, and what that costs them


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """Holds what `edgegossip topology` shows."""

    name: str
    nodes: int
    directed: bool
    weights: str  # the scheme: "metropolis", "column", "uniform" or "given"
    doubly_stochastic: bool  # the rows of W sum to 1 as well as its columns, in every round
    period: int  # rounds after which it repeats
    fewest_messages: int  # that a node sends in a round, over all nodes and rounds
    most_messages: int
    spectral_gap: float  # 1 - |second largest eigenvalue| of W, or of the product over a period, per round


def summarise(topology: GraphTopology) -> TopologySummary:
    """Return a topology in a few figures: how fast its nodes agree, and what that costs them."""
    rounds = range(topology.period)
    sent = [len(topology.neighbours(node, r).out) for r in rounds for node in range(topology.n)]
    return TopologySummary(
        name=topology.name,
        nodes=topology.n,
        directed=topology.directed,
        weights=topology.weights,
        doubly_stochastic=all(mixing.is_doubly_stochastic(topology.matrix(r)) for r in rounds),
        period=topology.period,
        fewest_messages=min(sent),
        most_messages=max(sent),
        spectral_gap=topology.spectral_gap(),
    )


def table(summaries: Sequence[TopologySummary]) -> list[str]:
    """Return lines of a Markdown table, a row a summary."""
    return _aligned(
        ("topology", "nodes", "edges", "weights", "messages a round", "period", "spectral gap"),
        [
            (
                s.name,
                str(s.nodes),
                "directed" if s.directed else "both ways",
                s.weights + ("" if s.doubly_stochastic else ", not doubly stochastic"),
                f"{s.fewest_messages}" + (f" to {s.most_messages}" if s.most_messages > s.fewest_messages else ""),
                str(s.period),
                f"{s.spectral_gap:.3f}",
            )
            for s in summaries
        ],
    )


def gap_table(summaries: Sequence[TopologySummary]) -> list[str]:
    """Return lines of a Markdown table of spectral gaps: a row a number of nodes, a column a
    topology. Needs one summary of every pair of these."""
    gaps = {(s.nodes, s.name): s.spectral_gap for s in summaries}
    sizes, names = sorted({n for n, _ in gaps}), list(dict.fromkeys(s.name for s in summaries))
    return _aligned(("nodes", *names), [(str(n), *(f"{gaps[n, name]:.3f}" for name in names)) for n in sizes])


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    rule = " | ".join("-" * width for width in widths)
    return [f"| {line} |" for line in (lines[0], rule, *lines[1:])]
