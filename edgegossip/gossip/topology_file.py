"""Reads the format of a topology file.

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
from typing import Any

import numpy as np

from edgegossip.choices import choose, unknown
from edgegossip.gossip import weights as mixing
from edgegossip.gossip.weights import Edge, Links, Matrix, links_of
from edgegossip.types import DataError, NodeId

MAX_ROUNDS, MAX_CELLS = 1000, 2**18  # of a period; of its matrices together: a short file can name very many rounds
_ROUND_KEYS = ("directed", "edges", "weights")
_FILE_KEYS = ("directed", "weights", "rounds", "name", "members", "period", "spectral_gap")


@dataclass(frozen=True, slots=True, eq=False)
class GraphOfRound:
    """Holds one round of the period, as the file has it."""

    links: Links
    matrix: Matrix
    directed: bool
    scheme: str  # of the weights; "given" where the file has W itself


def parse(text: str, members: Sequence[NodeId], weights: str | None, source: str) -> list[GraphOfRound]:
    """Read the rounds of a period from what is in a topology file.

    `weights` stands in where the file names no scheme, `source` names the file in messages. Raises
    DataError that names it and the line or edge when it cannot be understood, ConfigError when the
    weights do not fit the graph."""
    is_json = text.lstrip().startswith(("{", "["))
    rounds = _parse_json(text, source) if is_json else [_parse_lines(text, source, members)]
    most = max(1, min(MAX_ROUNDS, MAX_CELLS // len(members) ** 2))
    if len(rounds) > most:
        raise DataError(f"topology file {source}: {len(rounds)} rounds of {len(members)} nodes; at most {most}")
    places = [source if len(rounds) == 1 else f"{source}, round {k}" for k in range(len(rounds))]
    return [_parse_round(entry, members, weights, where) for entry, where in zip(rounds, places, strict=True)]


def _parse_round(entry: Mapping[str, Any], members: Sequence[NodeId], default: str | None, where: str) -> GraphOfRound:
    directed = entry.get("directed", False)
    if not isinstance(directed, bool):
        raise DataError(f"topology file {where}: directed must be true or false, not {_short(directed)}")
    links = links_of(len(members), _edges(entry.get("edges"), members, where), directed)
    scheme = entry.get("weights")
    if scheme is None:
        scheme = default if default is not None else ("column" if directed else "metropolis")
    return GraphOfRound(links, _matrix(scheme, links, where), directed, scheme if isinstance(scheme, str) else "given")


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
