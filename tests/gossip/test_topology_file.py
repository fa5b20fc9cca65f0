"""Topologies given as a file: both formats, weights, rounds, and one clear sentence for each
mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip import files
from edgegossip.files import text_of
from edgegossip.gossip import topologies
from edgegossip.gossip.weights import is_column_stochastic, metropolis_hastings
from edgegossip.types import ConfigError, DataError, UsageError

MEMBERS = ("a", "b", "c")
PATH = [["a", "b"], ["b", "c"]]
CYCLE = [["a", "b"], ["b", "c"], ["c", "a"]]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., topologies.GraphTopology]:
    def read(content: Any, members: tuple[str, ...] = MEMBERS, **params: Any) -> topologies.GraphTopology:
        path = tmp_path / "topology.json"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        text, source = text_of(str(path), "topology file")
        return topologies.from_text(text, members, source=source, **params)

    return read


def test_json_by_name_and_by_index(read: Any) -> None:
    by_name = read({"edges": PATH})
    by_index = read({"directed": False, "edges": [[0, 1], ["1", 2]]})
    assert by_name.edges(0) == by_index.edges(0) == ((0, 1), (1, 0), (1, 2), (2, 1))
    links = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    assert by_name.name == "file" and by_name.weights == "metropolis" and not by_name.directed
    assert np.array_equal(by_name.matrix(0), metropolis_hastings(links))


def test_directed_json_gets_column_stochastic_weights(read: Any) -> None:
    topology = read({"directed": True, "edges": [*CYCLE, ["a", "c"]]})
    assert topology.directed and topology.weights == "column" and is_column_stochastic(topology.matrix(0))
    assert topology.neighbours(0, 0).out == (1, 2) and topology.neighbours(0, 0).in_ == (2,)


def test_plain_edge_list(read: Any) -> None:
    text = "# three boards in a row\n\na b   # first\n1 c\n"
    assert read(text).edges(0) == read({"edges": PATH}).edges(0)
    directed = read("directed\na b\nb c\nc a\n")
    assert directed.directed and directed.edges(0) == ((0, 1), (1, 2), (2, 0))
    assert not read("undirected\na b\nb c\n").directed


@pytest.mark.parametrize("wrap", [lambda rounds: rounds, lambda rounds: {"directed": True, "rounds": rounds}])
def test_rounds_make_it_time_varying(read: Any, wrap: Any) -> None:
    topology = read(wrap([{"directed": True, "edges": PATH}, {"directed": True, "edges": [["c", "a"]]}]))
    assert topology.period == 2 and topology.edges(0) == ((0, 1), (1, 2)) and topology.edges(3) == ((2, 0),)


def test_weights_by_scheme_by_matrix_and_by_parameter(read: Any) -> None:
    assert read({"edges": CYCLE, "weights": "uniform"}).weights == "uniform"
    assert read({"edges": CYCLE}, weights="column").weights == "column"
    assert read({"edges": CYCLE, "weights": "uniform"}, weights="column").weights == "uniform"
    w = [[0.7, 0.3, 0.0], [0.3, 0.3, 0.4], [0.0, 0.4, 0.6]]
    given = read({"edges": PATH, "weights": w})
    assert given.weights == "given" and given.matrix(0).tolist() == w
    assert given.neighbours(1, 0).weights == {0: 0.3, 1: 0.3, 2: 0.4}


@pytest.mark.parametrize("name", ["ring", "star", "exponential", "one-peer-exponential"])
def test_the_topology_of_a_run_folder_can_be_read_back(read: Any, name: str) -> None:
    topology = topologies.get(name, 5)
    members = tuple(f"pi-{i}" for i in range(5))
    again = read(topology.to_json(members), members)
    assert (again.period, again.directed) == (topology.period, topology.directed)
    for r in range(topology.period):
        assert np.array_equal(again.matrix(r), topology.matrix(r)) and again.edges(r) == topology.edges(r)


def test_by_registry() -> None:
    text = "0 1\n1 2\n"
    by_index = topologies.get("file", 3, text=text)
    assert by_index.edges(0) == topologies.get("file", 3, text=text, members=MEMBERS).edges(0)
    with pytest.raises(UsageError, match="for 3 nodes was given 2 member names"):
        topologies.get("file", 3, text=text, members=("a", "b"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a b\nb d\n", r"line 2: unknown node 'd'; valid: a, b, c \(or an index from 0 to 2\)"),
        ("a b c\n", "line 1: expected two nodes"),
        ("a b\n" + "x" * 100, r"line 2: .*xxx\.\.\.$"),
        ("a b\nb b\n", "line 2: node 'b' is joined to itself"),
        ('{"edges":\n [["a" "b"]]}', "line 2: not valid JSON"),
        ({"rounds": 3}, "at least one round"),
        ([3], "round 0: expected an object with edges, not 3"),
        ({"edge": PATH}, "unknown key 'edge'; did you mean edges"),
        ({"rounds": [{"edges": PATH}], "weight": "row"}, "unknown key 'weight'; did you mean weights"),
        ({"directed": "yes", "edges": PATH}, "directed must be true or false, not 'yes'"),
        ({"edges": [["a", "b"], ["b"]]}, "edge 2: expected a pair of nodes"),
        ({"edges": PATH, "weights": [[0.5, 0.5], [0.5, 0.5]]}, "3 rows of 3 numbers"),
        ('{"edges": [["a","b"],["b","c"]], "weights": [[NaN,1,0],[0,1,0],[0,0,1]]}', "finite and not negative"),
        ({"edges": PATH, "weights": [[0.5, 0.25, 0.25], [0.5, 0.5, 0], [0, 0, 1]]}, r"\[0\]\[2\] = 0.25 does not go"),
        ({"edges": PATH, "weights": [[0.5, 0.1, 0], [0.5, 0.5, 0.1], [0, 0.1, 1]]}, "neither the rows nor the columns"),
        (b"a b\nb \xff\n", "line 2: not text in UTF-8"),
    ],
)
def test_ill_formed_files_are_named_with_the_place(read: Any, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(content)
    assert "topology.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_strongly_connected_names_the_nodes(read: Any) -> None:
    where = "topology.json' is not strongly connected: no path leads from node "
    with pytest.raises(ConfigError, match=where + "'b' to node 'a'"):
        read({"directed": True, "edges": PATH})
    with pytest.raises(ConfigError, match=where + "'a' to node 'c'"):
        read("a b\n")


def test_unknown_scheme_in_a_file(read: Any) -> None:
    with pytest.raises(ConfigError, match="unknown weights 'colum'; did you mean column"):
        read({"edges": PATH, "weights": "colum"})


def test_missing_and_oversized_files(read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"missing\.json cannot be read: No such file"):
        text_of(str(tmp_path / "missing.json"), "topology file")
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 8)
    with pytest.raises(DataError, match="larger than"):
        read("a b\nb c # x\n")


def test_what_is_in_a_file_may_stand_in_its_place() -> None:
    members = ("pi-01", "pi-02", "pi-03")
    text = json.dumps(topologies.get("ring", 3).to_json(members))
    content, source = text_of(text, "topology file")
    assert topologies.from_text(content, members).to_json(members)["rounds"] == json.loads(text)["rounds"]
    with pytest.raises(DataError, match="topology file in the recipe"):
        topologies.from_text('{"edges": 7}', members, source=source)


def test_a_short_file_does_not_make_a_huge_topology(read: Any) -> None:
    """It comes with the manifest of a run, from who may mean no good."""
    members = tuple(f"b{k}" for k in range(64))
    ring = [[k, (k + 1) % 64] for k in range(64)]
    assert read([{"edges": ring}] * 64, members).period == 64
    with pytest.raises(DataError, match="3001 rounds of 64 nodes; at most 64"):
        read([{"edges": ring}] + [{"edges": []}] * 3000, members)
    with pytest.raises(DataError, match="at most 1000"):
        read([{"edges": PATH}] * 1001)
