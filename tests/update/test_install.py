"""A release comes onto a board whole or not at all, whatever happens meanwhile, and the guard keeps
it or goes back."""

from __future__ import annotations

import contextlib
import hashlib
import json
from random import Random

import pytest

from edgegossip.types import DecodeError, HostError
from edgegossip.update.install import RELEASE, install, installed, running_from
from tests.deploy.board import FakeOs, PowerCut, cut_at, program, put
from tests.update.support import HOME, FakeTree, release

disk_module, guard_module = program("disk"), program("guard")
OLD = {
    "edgegossip/__init__.py": b"old",
    "torch/lib.so": b"large" * 300,
    "gone.py": b"x",
    "packages.lock": b"torch==2\n",
}
NEW = {"edgegossip/__init__.py": b"new", "torch/lib.so": b"large" * 300, "edgegossip/update.py": b"fresh" * 999}
MADE, BLOBS = release(NEW)
PACKAGES = hashlib.sha256(OLD["packages.lock"]).hexdigest()
OURS = {name: content for name, content in NEW.items() if name.startswith("edgegossip/")}
SMALL = release(OURS, packages=PACKAGES)[0]
DIGEST = "d" * 64


def card() -> FakeTree:
    tree = FakeTree()
    tree.make_folder(f"{HOME}/releases")
    for name, content in OLD.items():
        put(tree, f"{HOME}/releases/1/site/{name}", content)
    return tree


def fetch(piece):
    return BLOBS[piece.at : piece.at + piece.stored_bytes]


def fetch_ours(piece):
    return release(OURS)[1][piece.at : piece.at + piece.stored_bytes]


def test_only_what_differs_is_fetched():
    tree, fetched = card(), []
    name = install(tree, HOME, "1", DIGEST, MADE, lambda p: fetched.append(p) or fetch(p))
    files = tree.files_of(name)
    about = json.loads(files.pop(RELEASE))
    assert files == {f"site/{n}": c for n, c in NEW.items()} and about["sequence"] == 2 and len(fetched) == 2
    assert tree.files_of("1") == {f"site/{n}": c for n, c in OLD.items()}, "the running release is not touched"
    assert install(tree, HOME, "1", DIGEST, MADE, lambda p: pytest.fail("it is there already")) == name


def test_the_release_before_the_running_one_gives_way():
    tree = card()
    put(tree, f"{HOME}/releases/0/site/a", b"x")
    put(tree, f"{HOME}/releases/0/{RELEASE}", b"{}")
    install(tree, HOME, "1", DIGEST, MADE, fetch)
    assert tree.files_of("0") == {} and tree.files_of("1")


def test_a_release_of_our_package_keeps_the_packages_of_the_running_one():
    tree, fetched = card(), []
    put(tree, f"{HOME}/releases/1/site/edgegossip-1.dist-info/METADATA", b"of the old one")
    name = install(tree, HOME, "1", DIGEST, SMALL, lambda p: fetched.append(p) or fetch_ours(p))
    files = tree.files_of(name)
    files.pop(RELEASE)
    kept = {n: c for n, c in OLD.items() if not n.startswith("edgegossip")}
    assert files == {f"site/{n}": c for n, c in (OURS | kept).items()} and len(fetched) == len(OURS)
    tree.remove(f"{HOME}/releases/1/site/packages.lock")
    with pytest.raises(HostError, match="needs other Python packages than this board has"):
        install(tree, HOME, "1", "e" * 64, SMALL, fetch_ours)


def test_a_full_card_is_said_before_anything_is_written():
    tree = card()
    tree.free_bytes = lambda path: 60 << 20
    with pytest.raises(HostError, match="64 MiB, and 60 are free"):
        install(tree, HOME, "1", DIGEST, MADE, fetch)
    assert tree.names(f"{HOME}/releases") == ["1"]


def test_a_bad_piece_leaves_no_release():
    tree = card()
    with pytest.raises(DecodeError):
        install(tree, HOME, "1", DIGEST, MADE, lambda piece: b"rubbish")
    (name,) = set(tree.names(f"{HOME}/releases")) - {"1"}
    assert not installed(tree, f"{HOME}/releases/{name}")
    assert installed(tree, f"{HOME}/releases/{install(tree, HOME, '1', DIGEST, MADE, fetch)}") == DIGEST


def test_a_rest_that_is_a_link_to_the_running_release_is_not_written_into():
    tree = card()
    name = install(tree, HOME, "1", DIGEST, MADE, fetch)
    tree.remove(f"{HOME}/releases/{name}/{RELEASE}")
    damaged = f"{HOME}/releases/{name}/site/edgegossip/__init__.py"
    tree.remove(damaged)
    tree.link(f"{HOME}/releases/1/site/edgegossip/__init__.py", damaged)
    install(tree, HOME, "1", DIGEST, MADE, fetch)
    assert tree.files_of("1")["site/edgegossip/__init__.py"] == b"old"


def test_a_program_knows_which_release_it_is_of():
    assert running_from("/opt/edgegossip/releases/2-2-dddddddd/site/edgegossip/__init__.py") == "2-2-dddddddd"
    assert running_from("/usr/lib/python3/edgegossip/__init__.py") == ""


# -- the guard


class Board:
    """The image's guard on this disk, with a clock and boots of its own."""

    def __init__(self, tree: FakeTree, monkeypatch) -> None:
        self.tree, self._monkeypatch = tree, monkeypatch
        self.boot, self.uptime_s, self.said = 1, 100.0, []
        if disk_module.Disk().path("/x") and f"{HOME}/current" not in tree._now:
            self.os.symlink("releases/1", f"{HOME}/current")
            tree.sync_folder(HOME)

    @property
    def os(self) -> FakeOs:
        fake = FakeOs(self.tree)
        self._monkeypatch.setattr(disk_module, "os", fake)
        return fake

    def look(self) -> bool:
        _ = self.os
        return guard_module.guard(disk_module.Disk(), f"boot {self.boot}", self.uptime_s, self.said.append)

    @property
    def current(self) -> str:
        return self.os.readlink(f"{HOME}/current").removeprefix("releases/")

    def want(self, name: str) -> None:
        put(self.tree, f"{HOME}/wanted", json.dumps({"name": name, "sequence": 2}).encode())

    def checks_in(self) -> None:
        put(self.tree, f"{HOME}/checked-in", self.current.encode())


def updated(monkeypatch) -> tuple[Board, str]:
    board = Board(card(), monkeypatch)
    board.checks_in()  # as every board does with its present release
    name = install(board.tree, HOME, "1", DIGEST, MADE, fetch)
    board.want(name)
    return board, name


def test_a_release_that_checks_in_stays(monkeypatch):
    board, name = updated(monkeypatch)
    assert board.look() and board.current == name
    assert not board.look(), "it waits"
    board.checks_in()
    assert not board.look() and board.current == name and f"{HOME}/trial" not in board.tree._now
    board.uptime_s += 1e6
    assert not board.look() and board.current == name


def test_a_release_that_does_not_check_in_is_undone_and_not_tried_again(monkeypatch):
    board, name = updated(monkeypatch)
    board.look()
    board.uptime_s += guard_module.TRIAL_S
    assert board.look() and board.current == "1" and "did not check in within 15 min" in board.said[-1]
    board.want(name)
    assert not board.look() and board.current == "1"


def test_a_release_with_which_the_board_keeps_starting_is_undone(monkeypatch):
    board, _ = updated(monkeypatch)
    board.look()
    for _ in range(guard_module.BOOTS):
        board.boot, board.uptime_s = board.boot + 1, 20.0
        board.look()
    assert board.current == "1" and "started 3 times" in board.said[-1]


@pytest.mark.parametrize("name", ["nothing", "../../etc", "1", ""])
def test_what_is_not_whole_is_never_tried(monkeypatch, name):
    board = Board(card(), monkeypatch)
    board.want(name)
    assert not board.look() and board.current == "1" and f"{HOME}/trial" not in board.tree._now


def whole(board: Board, new: dict[str, bytes]) -> bool:
    files = {k.removeprefix("site/"): v for k, v in board.tree.files_of(board.current).items() if k != RELEASE}
    return files == (OLD if board.current == "1" else new)


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("packages", [True, False], ids=["with packages", "our package alone"])
def test_the_power_may_go_at_any_moment(monkeypatch, works, packages):
    """Between any two operations of fetching, switching and going back: what runs is the old
    release or the new one, whole; and in the end the new one if it works, the old one if not."""

    made, give, new = (MADE, fetch, NEW) if packages else (SMALL, fetch_ours, {**OLD, **OURS})

    def live(board: Board) -> None:
        """What a board does, from wherever it is."""
        for _ in range(3):
            if (
                not board.tree.read(f"{HOME}/failed")
                and board.current == "1"
                and f"{HOME}/trial" not in board.tree._now
            ):
                board.want_if_whole = install(board.tree, HOME, "1", DIGEST, made, give)
                fake_want(board, board.want_if_whole)
            board.look()
            assert whole(board, new)
            if works and board.current != "1":
                board.checks_in()
            board.uptime_s += guard_module.TRIAL_S
            board.look()
            assert whole(board, new)

    def fake_want(board: Board, name: str) -> None:
        _ = board.os
        disk_module.Disk().replace(f"{HOME}/wanted", json.dumps({"name": name, "sequence": 2}).encode())

    count = [0]
    board = Board(card(), monkeypatch)
    board.tree.before = lambda operation, path: count.__setitem__(0, count[0] + 1)
    live(board)
    assert board.current == ("1" if not works else install(board.tree, HOME, board.current, DIGEST, made, give))
    end, total = board.current, count[0]
    assert total > 30
    for number in range(total):
        for seed in range(2):
            board = Board(card(), monkeypatch)
            board.tree.before = cut_at(number)
            with contextlib.suppress(PowerCut):
                live(board)
            board.tree.before = lambda operation, path: None
            again = Board(board.tree.after_power_cut(Random(1000 * seed + number)), monkeypatch)
            again.boot, again.uptime_s = 2, 20.0
            assert whole(again, new), f"cut {number}"
            live(again)
            assert again.current == end, f"cut {number}"
