"""Steps are done once for the same inputs, again when something changes, and whole or not at
all."""

import pytest

from edgegossip.fleet.image import steps
from edgegossip.fleet.image.steps import Step, carry_out, tree_hash
from edgegossip.types import HostError


def chain(log, first="a", second="b", fails=False):
    """Two steps, the second of which needs the first; `log` gets a name for each that is done."""

    def make(folder, folders):
        log.append("one")
        (folder / "out").write_text(first)

    def then(folder, folders):
        log.append("two")
        (folder / "half").write_text("x")
        if fails:
            raise HostError("the mirror is away")
        (folder / "out").write_text((folders["one"] / "out").read_text() + second)

    return (Step("one", "first", {"x": first}, make), Step("two", "second", {"x": second}, then, ("one",)))


def quiet(text):
    pass


def test_each_is_done_once(tmp_path):
    log = []
    done = carry_out(chain(log), tmp_path, quiet)
    again = carry_out(chain(log), tmp_path, quiet)
    assert log == ["one", "two"]
    assert [d.cached for d in done.values()] == [False, False] and [d.cached for d in again.values()] == [True, True]
    assert (again["two"].folder / "out").read_text() == "ab" and again["two"].seconds == round(done["two"].seconds, 3)


def test_what_depends_on_a_change_is_done_again(tmp_path):
    log = []
    carry_out(chain(log), tmp_path, quiet)
    assert (carry_out(chain(log, second="c"), tmp_path, quiet)["two"].folder / "out").read_text() == "ac"
    assert log == ["one", "two", "two"]
    assert (carry_out(chain(log, first="z"), tmp_path, quiet)["two"].folder / "out").read_text() == "zb"
    assert log == ["one", "two", "two", "one", "two"]


def test_a_step_that_fails_leaves_nothing_and_the_next_time_goes_on_there(tmp_path):
    log = []
    with pytest.raises(HostError, match="the mirror is away"):
        carry_out(chain(log, fails=True), tmp_path, quiet)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("two")]
    done = carry_out(chain(log), tmp_path, quiet)
    assert log == ["one", "two", "two"] and sorted(p.name for p in done["two"].folder.iterdir()) == ["half", "out"]


def test_outputs_of_long_ago_go(tmp_path):
    for second in "bcdef":
        carry_out(chain([], second=second), tmp_path, quiet)
    assert len([path for path in tmp_path.glob("two-*") if path.is_dir()]) == steps._KEEP
    assert len([path for path in tmp_path.glob("one-*") if path.is_dir()]) == 1


def test_everybody_hears_what_is_being_done(tmp_path):
    said = []
    carry_out(chain([])[:1], tmp_path, said.append)
    assert said[0] == "[1/1] first ..." and said[-1].startswith("[1/1] first: ")


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(HostError, match="file"):
        carry_out(chain([]), tmp_path / "file", quiet)


def test_the_hash_of_a_tree(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/one").write_text("1")
    first = tree_hash(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/x.pyc").write_text("x")
    assert tree_hash(tmp_path) == first
    (tmp_path / "b/one").chmod(0o755)
    assert tree_hash(tmp_path) != first
    (tmp_path / "b/one").chmod(0o644)
    (tmp_path / "link").symlink_to("b/one")
    assert tree_hash(tmp_path) != first
