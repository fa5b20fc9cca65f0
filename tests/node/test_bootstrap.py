"""Founding a run, and what a board that joins believes."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import time
import tomllib
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgegossip import recipe as recipes
from edgegossip.mesh.base import Unreachable
from edgegossip.mesh.membership import manifest as manifests
from edgegossip.mesh.membership.client import JoinAnswer, RefusedToJoin
from edgegossip.mesh.membership.protocol import MemberEntry as Row
from edgegossip.mesh.membership.protocol import Status
from edgegossip.node import bootstrap
from edgegossip.node.spec import make_topology
from edgegossip.types import ConfigError, PeerError, UsageError

NAMES = ("pi-01", "pi-02", "pi-03", "pi-04")
RECIPE = recipes.load("quickstart-gossip")


def founded(**settings: object) -> bootstrap.JoinedRun:
    return bootstrap.found(recipes.with_settings(RECIPE, settings), "pi-01", NAMES, None)


def joined(monkeypatch: pytest.MonkeyPatch, manifest: manifests.Manifest, *settings: str) -> bootstrap.JoinedRun:
    from edgegossip.mesh.membership import client

    monkeypatch.setattr(client, "request_join", lambda *_args, **_more: JoinAnswer(manifest, (), "pi-01", "10.0.0.9"))
    return bootstrap.join(["10.0.0.1:7700"], "pi-02", None, settings, lambda text: None)


def test_a_founder_that_starts_again_makes_the_same_run() -> None:
    assert founded().manifest.content == founded().manifest.content
    assert founded(**{"training.lr": 0.5}).manifest.run_id != founded().manifest.run_id
    assert founded(**{"data.dir": "/elsewhere"}).manifest.content == founded().manifest.content


def test_what_is_the_founders_own_matter_may_change_when_it_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = founded(), founded(**{"checkpoint.every": 5, "evaluation.examples": 50, "run.threads": 2})
    assert again.manifest.hash == first.manifest.hash
    assert joined(monkeypatch, again.manifest).recipe.evaluation.examples == 50  # passed on as a suggestion
    assert founded(**{"training.lr": 0.5}).manifest.hash != first.manifest.hash


def test_a_recipe_that_is_not_the_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = founded(**{"training.lr": 0.5}).manifest.recipe
    with pytest.raises(PeerError, match="not that of its run"):
        joined(monkeypatch, changed(recipe=other))


def test_a_board_that_joins_gets_recipe_members_and_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    first = founded(**{"gossip.topology": "random-regular", "training.lr": 0.03})
    second = joined(monkeypatch, first.manifest, "run.threads=3")
    assert second.recipe.training.lr == 0.03 and second.recipe.run.threads == 3 and second.recipe.run.nodes == 4
    assert second.manifest.members == NAMES and second.seen_as == "10.0.0.9"
    assert "not signed" in second.describe()


def test_a_topology_file_travels_with_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = tmp_path / "graph.txt"
    file.write_text("pi-01 pi-02\npi-02 pi-03\npi-03 pi-04\n")
    first = founded(**{"gossip.topology": "file", "gossip.topology_file": str(file)})
    file.unlink()
    second = joined(monkeypatch, first.manifest)
    again = joined(monkeypatch, first.manifest)  # later, in another process: its checkpoint must be of this recipe
    assert recipes.run_id(first.recipe) == recipes.run_id(second.recipe) == recipes.run_id(again.recipe)
    assert recipes.from_dict(tomllib.loads(recipes.to_toml(again.recipe))) == again.recipe
    assert not list(tmp_path.glob("edgegossip-*"))
    assert make_topology(second.recipe, NAMES).neighbours(0, 0).out == (1,)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (("pi-01",), "2 to 64"),
        (("pi-01", "pi-01"), "twice"),
        (("pi-02", "pi-03"), "not one of"),
        (("pi-01", "a b"), "cannot be a name"),
        (("pi-01", "../../up"), "cannot be a name"),
        (("pi-01", "ca"), "cannot be a name"),
    ],
)
def test_members_that_cannot_be_are_refused(members: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        bootstrap.found(RECIPE, "pi-01", members, None)


def test_the_run_decides_what_is_not_a_boards_own_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the run decides"):
        joined(monkeypatch, founded().manifest, "training.lr=0.5")


@pytest.mark.parametrize("key", ["data.name", "model.name", "training.task", "training.optimizer"])
def test_what_a_run_would_execute_here_must_be_said_here_too(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    theirs = recipes.with_settings(RECIPE, {"run.nodes": 4, key: "os:system", "data.dir": "touch /tmp/owned"})
    manifest = changed(recipe=recipes.to_toml(theirs), run_id=bootstrap._run_id(theirs, NAMES).hex())
    with pytest.raises(ConfigError, match=f"{key} is os:system, a function that would be called on this board"):
        joined(monkeypatch, manifest)
    with pytest.raises(ConfigError, match="the run decides"):
        joined(monkeypatch, manifest, f"{key}=posix:system")
    entry = joined(monkeypatch, manifest, f"{key}=os:system")
    assert entry.recipe.data.dir == ""
    assert joined(monkeypatch, manifest, f"{key}=os:system", "data.dir=/data").recipe.data.dir == "/data"


def theirs(**settings: object) -> manifests.Manifest:
    """Of a founder that passes on whatever it likes."""
    recipe = recipes.with_settings(RECIPE, {"run.nodes": 4, **settings})
    return changed(recipe=recipes.to_toml(recipe), run_id=bootstrap._run_id(recipe, NAMES).hex())


def test_a_run_does_not_say_what_a_boards_script_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = theirs(**{"run.script": "train.py", "run.script_args": ["--resume", "/home/user/evil.pt"]})
    with pytest.raises(ConfigError, match=r"name this board's own, as in edgegossip node train\.py"):
        joined(monkeypatch, manifest)
    assert joined(monkeypatch, manifest, "run.script=train.py").recipe.run.script_args == []
    own = ("run.script=train.py", 'run.script_args=["--data", "here"]')
    assert joined(monkeypatch, manifest, *own).recipe.run.script_args == ["--data", "here"]


def test_a_run_does_not_say_which_weights_a_board_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "model.params.weights"
    manifest = theirs(**{"model.name": "distilbert", key: "/home/user/private"})
    with pytest.raises(ConfigError, match=f"{key} is /home/user/private, a folder of this board"):
        joined(monkeypatch, manifest)
    assert joined(monkeypatch, manifest, f"{key}=/home/user/private").recipe.model.name == "distilbert"


def changed(**changes: object) -> manifests.Manifest:
    document = {**json.loads(founded().manifest.content), **changes}
    return manifests.parse(json.dumps(document).encode(), b"")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"topology": "00" * 32}, "another topology"),
        ({"recipe": "[run]\nnodes = 9\n"}, "do not fit"),
        ({"recipe": "[run]\nwings = 2\n"}, "wings"),
        ({"recipe": "]["}, "cannot be used"),
        ({"members": ["x", "y", "z", "w"]}, "no member"),
    ],
)
def test_a_run_that_does_not_add_up_is_not_joined(monkeypatch: pytest.MonkeyPatch, changes: dict, says: str) -> None:
    with pytest.raises(PeerError, match=says):
        joined(monkeypatch, changed(**changes))


def test_a_manifest_does_not_name_a_file_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "ring.txt").write_text("pi-01 pi-02\npi-02 pi-03\npi-03 pi-04\n")
    recipe = '[run]\nnodes = 4\n[gossip]\ntopology = "file"\n'
    with pytest.raises(PeerError, match="not in its manifest"):
        joined(monkeypatch, changed(recipe=recipe, topology_file=str(tmp_path / "ring.txt")))


def test_seeds_are_asked_in_turn_until_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgegossip.mesh.membership import client

    asked, said = [], []

    def ask(seed, *_args, **_more):
        asked.append(str(seed))
        if len(asked) < 4:
            raise Unreachable(f"{seed}: no answer to {len(asked)}")
        return JoinAnswer(founded().manifest, (), "pi-01", "")

    monkeypatch.setattr(client, "request_join", ask)
    monkeypatch.setattr(bootstrap, "_PAUSE_S", 0.001)
    monkeypatch.setattr(bootstrap.Watch, "due", lambda watch: len(asked) == 3)
    entry = bootstrap.join(["10.0.0.1:1", "10.0.0.2:2"], "pi-02", None, (), said.append)
    assert asked == ["10.0.0.1:1", "10.0.0.2:2"] * 2 and entry.manifest.members == NAMES
    assert said == [
        "waiting for a member that answers: 10.0.0.1:1: no answer to 1; 10.0.0.2:2: no answer to 2",
        "waiting for a member that answers: 10.0.0.1:1: no answer to 3",
    ]


def test_a_refusal_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgegossip.mesh.membership import client

    def ask(*_args, **_more):
        raise RefusedToJoin("10.0.0.1:1 refuses us: pi-02 is not a member of this run")

    monkeypatch.setattr(client, "request_join", ask)
    with pytest.raises(PeerError, match="not a member"):
        bootstrap.join(["10.0.0.1:1"], "pi-02", None, (), print)


def test_a_board_that_has_loaded_asks_for_the_news(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgegossip.mesh.membership import client

    manifest = founded().manifest
    before = ((0, Row(Status.ALIVE, 1, 5, "10.0.0.1:1")), (1, Row(Status.DEAD, 1, 6, "10.0.0.2:2")))
    after = ((0, Row(Status.LEFT, 1, 5, "10.0.0.1:1")), (2, Row(Status.ALIVE, 1, 7, "10.0.0.3:3")))
    entry = bootstrap.JoinedRun(RECIPE, manifest, before, "10.0.0.9", seeds=("10.0.0.8:8",))
    asked = []

    def ask(place, *_args, **_more):
        asked.append(str(place))
        if str(place) == "10.0.0.8:8":
            raise Unreachable("10.0.0.8:8: connection refused")
        return JoinAnswer(manifest, after, "pi-01", "")

    monkeypatch.setattr(client, "request_join", ask)
    again = bootstrap.refresh(entry, "pi-02", None)
    assert asked == ["10.0.0.8:8", "10.0.0.1:1"] and again.known == after and again.seen_as == "10.0.0.9"
    monkeypatch.setattr(client, "request_join", lambda *_a, **_m: JoinAnswer(changed(version=9), after, "pi-01", ""))
    assert bootstrap.refresh(entry, "pi-02", None).known == before  # of another run, or nobody


@pytest.mark.parametrize("text", ["a = " + "[" * 20_000, "a = " + "9" * 20_000], ids=["nested", "huge"])
def test_a_recipe_that_nobody_can_read_is_the_peers_fault(text: str) -> None:
    with pytest.raises(PeerError, match="the run's recipe cannot be used"):
        bootstrap._recipe_of(changed(recipe=text))


def test_a_seed_that_refuses_is_not_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgegossip.mesh.membership import client

    def ask(seed, *_args, **_more):
        if seed.port == 1:
            raise RefusedToJoin(f"{seed} refuses us: it is in quarantine")
        return JoinAnswer(founded().manifest, (), "pi-01", "")

    monkeypatch.setattr(client, "request_join", ask)
    assert bootstrap.join(["10.0.0.1:1", "10.0.0.2:2"], "pi-02", None, (), print).manifest.members == NAMES


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_PAUSE_S", 0.001)
    with pytest.raises(UsageError, match="start one first"):
        bootstrap.join(["127.0.0.1:9"], "pi-02", None, (), lambda text: None, patience_s=0.0)


@pytest.mark.parametrize(
    ("listening", "advertise", "seen_as", "address"),
    [
        ("10.0.0.5:7700", None, "10.0.0.9", "10.0.0.5:7700"),
        ("0.0.0.0:7700", None, "10.0.0.9", "10.0.0.9:7700"),
        ("[::]:7700", None, "fe80::7", "[fe80::7]:7700"),
        ("0.0.0.0:7700", None, "", ""),
        ("0.0.0.0:7700", "pi-05.local", "10.0.0.9", "pi-05.local:7700"),
        ("[::]:7700", "[::1]", "", "[::1]:7700"),
        ("[::]:7700", "::1", "", "[::1]:7700"),
        ("0.0.0.0:7700", "pi-05.local:80", "10.0.0.9", "pi-05.local:80"),
    ],
)
def test_the_address_that_others_are_told(listening: str, advertise: str | None, seen_as: str, address: str) -> None:
    assert bootstrap.advertised(listening, advertise, seen_as) == address


def test_signed_runs_need_a_signature() -> None:
    class Security:
        identity = None

    with pytest.raises(PeerError, match="not signed"):
        bootstrap._check_signature(founded().manifest, Security())
    assert bootstrap._check_signature(replace(founded().manifest, signature=b"x"), None) == ""


def test_a_list_of_members_that_is_no_text_or_too_short_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "members").write_bytes("pi-01\npi-ü\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="line 2: not text in UTF-8; .* write one name a line"):
        bootstrap.read_members(str(tmp_path / "members"))
    (tmp_path / "members").write_text("pi-01  # the first\n\npi-02\n")
    assert bootstrap.read_members(str(tmp_path / "members")) == ("pi-01", "pi-02")
    with pytest.raises(ConfigError, match="--members: 1 board; a run has 2 to"):
        bootstrap.found(recipes.load("quickstart-gossip"), "a", ("a",), None)


def _follow(answer: list[bytes]) -> None:
    """Follow somebody who gives that answer, piece after piece until we leave."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    s, _ = server.accept()
                    with s, suppress(OSError):
                        s.recv(4096)
                        for piece in answer:
                            s.sendall(piece)
                            time.sleep(0.05 if len(answer) < 1000 else 0.0)

        threading.Thread(target=serve, daemon=True).start()
        try:
            bootstrap.follow(f"127.0.0.1:{server.getsockname()[1]}", "a", None, (), lambda text: None, 0.2)
        finally:
            server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("head", "pieces", "words"),
    [
        ("200 OK\r\ncontent-length: 9000000000", [bytes(65_536)] * 2000, "more than 1048576 bytes"),
        ("200 OK\r\ncontent-length: 9000", [b"{"], "no coordinator at .*does not answer"),
        ("200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3", [b"abc"], "does not answer as a coordinator"),
        *(
            (f"200 OK\r\ncontent-length: {len(said)}", [said.encode()], "does not answer as a coordinator")
            for said in (
                '{"recipe": 1, "boards": []}',
                '{"recipe": "", "boards": "a"}',
                '{"recipe": "", "boards": [1]}',
                "[]",
            )
        ),
        ("403 No\r\ncontent-length: 100000", [b"[" * 100_000], "refuses this board: Forbidden"),
        ("403 No\r\ncontent-length: 23", [b'{"detail": "\\u001b[2J"}'], r"refuses this board:  \[2J"),
    ],
    ids=["endless", "half", "no gzip", "a number", "a name", "numbers", "a list", "deep", "terminal"],
)
def test_whoever_answers_for_a_coordinator_is_worth_a_sentence(head: str, pieces: list[bytes], words: str) -> None:
    pytest.importorskip("httpx")
    with pytest.raises((PeerError, UsageError), match=words):
        _follow([f"HTTP/1.1 {head}\r\n\r\n".encode(), *pieces])


def test_a_coordinators_answer_that_drips_is_worth_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our clock is ten seconds later each time that we look at it."""
    pytest.importorskip("httpx")
    clock = SimpleNamespace(monotonic=count(0.0, 10.0).__next__)
    monkeypatch.setattr("edgegossip.flower.connection.time", clock)
    with pytest.raises((PeerError, UsageError), match="takes more than 30 s"):
        _follow([b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n", *[b" "] * 900])


def test_a_recipe_of_dots_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerError, match="more than 1000 dots"):
        joined(monkeypatch, changed(recipe=".".join("a" * 20_000) + "=1"))
