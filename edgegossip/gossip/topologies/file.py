"""A topology given as a file.

JSON: {"directed": false, "edges": [["a", "b"], ["b", 2]], "weights": "metropolis"}, nodes by name or by index in the
member list. "weights" is optional: a scheme, or W itself as n rows in member order (W[i][j] the weight at i of what j
sends). A list of such objects, or {"directed": ..., "rounds": [...]}, is a time-varying topology; the topology.json of
a run folder is of that form. Anything that does not begin with { or [ is a plain edge list, one "a b" a line; a line
"directed" makes it directed, # starts a comment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip.gossip import weights as mixing
from edgegossip.gossip.params import choose, unknown
from edgegossip.gossip.topologies.graph import Edge, GraphTopology, build_weighted, check_connected, links_of
from edgegossip.gossip.weights import Links, Matrix
from edgegossip.types import DataError, LocalError, NodeId

MAX_FILE_BYTES = 16 * 2**20
_ROUND_KEYS = ("directed", "edges", "weights")
_FILE_KEYS = (*_ROUND_KEYS, "rounds", "name", "members", "period", "spectral_gap")


def from_file_of(
    n: int, path: str | Path, members: Sequence[NodeId] | None = None, weights: str | None = None
) -> GraphTopology:
    """`from_file` for n nodes; without `members` they go by their index."""
    names = tuple(members) if members is not None else tuple(str(i) for i in range(n))
    if len(names) != n:
        raise LocalError(f"topology 'file' for {n} nodes was given {len(names)} member names")
    return from_file(path, names, weights)


def from_file(path: str | Path, members: Sequence[NodeId], weights: str | None = None) -> GraphTopology:
    """Read a topology. `weights` stands in where the file names no scheme.

    Raises DataError that names the file and the line or edge when it cannot be read or understood, ConfigError when the
    graph (the union over its rounds) is not strongly connected or the weights do not fit it.
    """
    text = _read(Path(path))
    if text.lstrip().startswith(("{", "[")):
        rounds = _parse_json(text, str(path))
    else:
        rounds = [_parse_lines(text, str(path), members)]
    links, matrices, schemes = [], [], []
    directed = False
    for k, entry in enumerate(rounds):
        where = str(path) if len(rounds) == 1 else f"{path}, round {k}"
        one_way = _flag(entry.get("directed", False), where)
        graph = links_of(len(members), _edges(entry.get("edges"), members, where), one_way)
        given = entry.get("weights")
        scheme = (
            given if given is not None else weights if weights is not None else ("column" if one_way else "metropolis")
        )
        links.append(graph)
        matrices.append(_matrix(scheme, graph, where))
        schemes.append(scheme if isinstance(scheme, str) else "given")
        directed |= one_way
    check_connected(str(path), np.logical_or.reduce(links), members)
    return build_weighted(
        "file", matrices, directed=directed, weights=schemes[0] if len(set(schemes)) == 1 else "given"
    )


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
    except UnicodeDecodeError:
        line = data.count(b"\n") + 1
        raise DataError(f"topology file {path} is not text in UTF-8 ({line} lines read)") from None


def _parse_json(text: str, where: str) -> list[Mapping[str, Any]]:
    """One mapping a round."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"topology file {where}, line {error.lineno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise DataError(f"topology file {where}: nested too deeply") from None
    shared: Mapping[str, Any] = {}
    if isinstance(document, dict):
        _check_keys(document, _FILE_KEYS, where)
        if "rounds" not in document:
            return [document]
        shared = {"directed": document.get("directed", False)}
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
            edges.append([members[_node(word, members, here)] for word in words])
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
        a, b = (_node(word, members, here) for word in pair)
        if a == b:
            raise DataError(
                f"topology file {here}: node {members[a]!r} is joined to itself, which every node is anyway"
            )
        found.append((a, b))
    return found


def _node(word: Any, members: Sequence[NodeId], where: str) -> int:
    """By name, else by index."""
    if isinstance(word, str) and word in members:
        return members.index(word)
    index = int(word) if isinstance(word, str) and word.isascii() and word.isdigit() else word
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(members):
        return index
    raise DataError(
        f"topology file {where}: {unknown('node', word, members)} (or an index from 0 to {len(members) - 1})"
    )


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"topology file {where}: directed must be true or false, not {_short(value)}")
    return value


def _matrix(scheme: Any, links: Links, where: str) -> Matrix:
    if isinstance(scheme, str):
        return choose("weights", scheme, mixing.SCHEMES)(links)
    n = len(links)
    try:
        w = np.array(scheme, dtype=np.float64)
    except (TypeError, ValueError):
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
