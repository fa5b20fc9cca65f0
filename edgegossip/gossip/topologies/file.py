"""A topology given as a file.

JSON: {"directed": false, "edges": [["a", "b"], ["b", 2]], "weights": "metropolis"}, nodes by name
or by index in the member list. "weights" is optional: a scheme, or W itself as n rows in member
order (W[i][j] the weight at i of what j sends). A list of such objects, or {"directed": ...,
"rounds": [...]}, is a time-varying topology; the topology.json of a run folder is of that form.
Anything that does not begin with { or [ is a plain edge list, one "a b" a line; a line "directed"
makes it directed, # starts a comment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip.gossip import weights as mixing
from edgegossip.gossip.params import choose, unknown
from edgegossip.gossip.topologies.graph import Edge, GraphTopology, build_weighted, check_connected, links_of
from edgegossip.gossip.weights import Links, Matrix
from edgegossip.types import DataError, NodeId, UsageError

MAX_FILE_BYTES = 16 * 2**20
MAX_ROUNDS, MAX_CELLS = 1000, 2**18  # of a period; of its matrices together: a short file can name very many rounds
_ROUND_KEYS = ("directed", "edges", "weights")
_FILE_KEYS = ("directed", "weights", "rounds", "name", "members", "period", "spectral_gap")


def from_file_of(
    n: int, path: str | Path, members: Sequence[NodeId] | None = None, weights: str | None = None
) -> GraphTopology:
    """`from_file` for n nodes; without `members` they go by their index."""
    names = tuple(members) if members is not None else tuple(str(i) for i in range(n))
    if len(names) != n:
        raise UsageError(f"topology 'file' for {n} nodes was given {len(names)} member names")
    return from_file(path, names, weights)


def from_file(path: str | Path, members: Sequence[NodeId], weights: str | None = None) -> GraphTopology:
    """Read a topology. `weights` stands in where the file names no scheme. A `path` that begins
    with a brace is what is in the file: so it travels in a recipe.

    Raises DataError that names the file and the line or edge when it cannot be read or understood,
    ConfigError when the graph (the union over its rounds) is not strongly connected or the weights
    do not fit it."""
    inside = str(path).startswith("{")
    text, path = (str(path), "in the recipe") if inside else (_read(Path(path)), path)
    rounds = (
        _parse_json(text, str(path))
        if text.lstrip().startswith(("{", "["))
        else [_parse_lines(text, str(path), members)]
    )
    most = max(1, min(MAX_ROUNDS, MAX_CELLS // len(members) ** 2))
    if len(rounds) > most:
        raise DataError(f"topology file {path}: {len(rounds)} rounds of {len(members)} nodes; at most {most}")
    read = []
    for k, entry in enumerate(rounds):
        where = str(path) if len(rounds) == 1 else f"{path}, round {k}"
        read.append(_read_round(entry, members, weights, where))
    check_connected(str(path), np.logical_or.reduce([r.links for r in read]), members)
    schemes = {r.scheme for r in read}
    return build_weighted(
        "file",
        [r.matrix for r in read],
        directed=any(r.directed for r in read),
        weights=schemes.pop() if len(schemes) == 1 else "given",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    links: Links
    matrix: Matrix
    directed: bool
    scheme: str


def _read_round(entry: Mapping[str, Any], members: Sequence[NodeId], default: str | None, where: str) -> _Round:
    directed = entry.get("directed", False)
    if not isinstance(directed, bool):
        raise DataError(f"topology file {where}: directed must be true or false, not {_short(directed)}")
    links = links_of(len(members), _edges(entry.get("edges"), members, where), directed)
    scheme = entry.get("weights")
    if scheme is None:
        scheme = default if default is not None else ("column" if directed else "metropolis")
    return _Round(links, _matrix(scheme, links, where), directed, scheme if isinstance(scheme, str) else "given")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DataError(f"topology file {path} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise DataError(f"topology file {path} is larger than {MAX_FILE_BYTES // 2**20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"topology file {path}, line {line}: not text in UTF-8") from None


def _parse_json(text: str, where: str) -> list[Mapping[str, Any]]:
    """Read one mapping a round."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"topology file {where}, line {error.lineno}: not valid JSON ({error.msg})") from None
    except ValueError as error:  # an integer of thousands of digits
        raise DataError(f"topology file {where}: {error}") from None
    except RecursionError:
        raise DataError(f"topology file {where}: nested too deeply") from None
    shared: Mapping[str, Any] = {}
    if isinstance(document, dict):
        if "rounds" not in document:
            _check_keys(document, _ROUND_KEYS, where)
            return [document]
        _check_keys(document, _FILE_KEYS, where)
        shared = {key: document[key] for key in ("directed", "weights") if key in document}
        document = document["rounds"]
    if not isinstance(document, list) or not document:
        raise DataError(f"topology file {where}: a time-varying topology needs a list of at least one round")
    for k, entry in enumerate(document):
        if not isinstance(entry, dict):
            raise DataError(f"topology file {where}, round {k}: expected an object with edges, not {_short(entry)}")
        _check_keys(entry, _ROUND_KEYS, f"{where}, round {k}")
    return [{**shared, **entry} for entry in document]


def _check_keys(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            raise DataError(f"topology file {where}: {unknown('key', key, keys)}")


def _parse_lines(text: str, where: str, members: Sequence[NodeId]) -> Mapping[str, Any]:
    directed, edges = False, []
    for number, raw in enumerate(text.splitlines(), start=1):
        words = raw.partition("#")[0].split()
        here = f"{where}, line {number}"
        if words in (["directed"], ["undirected"]):
            directed = words == ["directed"]
        elif len(words) == 2:
            edges.append(list(_pair(words, members, here)))
        elif words:
            raise DataError(f'topology file {here}: expected two nodes, as in "a b", not {_short(raw.strip())}')
    return {"directed": directed, "edges": edges}


def _edges(edges: Any, members: Sequence[NodeId], where: str) -> list[Edge]:
    if not isinstance(edges, list):
        raise DataError(f"topology file {where}: expected edges, a list of pairs of nodes")
    found = []
    for k, pair in enumerate(edges):
        here = f"{where}, edge {k + 1}"
        if not isinstance(pair, list) or len(pair) != 2:
            raise DataError(f"topology file {here}: expected a pair of nodes, not {_short(pair)}")
        found.append(_pair(pair, members, here))
    return found


def _pair(words: Sequence[Any], members: Sequence[NodeId], where: str) -> Edge:
    a, b = (_node(word, members, where) for word in words)
    if a == b:
        raise DataError(f"topology file {where}: node {members[a]!r} is joined to itself, which every node is anyway")
    return a, b


def _node(word: Any, members: Sequence[NodeId], where: str) -> int:
    """Return a node by its name, else by its index."""
    if isinstance(word, str) and word in members:
        return members.index(word)
    index = int(word) if isinstance(word, str) and word.isascii() and word.isdigit() and len(word) < 10 else word
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(members):
        return index
    raise DataError(
        f"topology file {where}: {unknown('node', word, members)} (or an index from 0 to {len(members) - 1})"
    )


def _matrix(scheme: Any, links: Links, where: str) -> Matrix:
    if isinstance(scheme, str):
        return choose("weights", scheme, mixing.SCHEMES)(links)
    n = len(links)
    try:
        w = np.array(scheme, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        w = np.empty(0)
    if w.shape != (n, n):
        raise DataError(f"topology file {where}: weights must be a scheme or {n} rows of {n} numbers")
    if not np.isfinite(w).all() or (w < 0).any() or (np.diag(w) <= 0).any():
        raise DataError(f"topology file {where}: weights must be finite and not negative, and a node's own above 0")
    wrong = np.argwhere((w > 0) != (links | np.eye(n, dtype=np.bool_)))
    if wrong.size:
        i, j = wrong[0].tolist()
        raise DataError(f"topology file {where}: weight [{i}][{j}] = {w[i, j]:g} does not go with the edges")
    if not (mixing.is_row_stochastic(w) or mixing.is_column_stochastic(w)):
        raise DataError(f"topology file {where}: neither the rows nor the columns of the weights sum to 1")
    return w


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
