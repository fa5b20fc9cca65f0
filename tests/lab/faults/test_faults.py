"""What can be planted in a file, and what becomes of one that is: a test sees it or does not, and
the file is as before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgegossip.types import ConfigError
from lab.faults.places import faults_of
from lab.faults.plant import drawn, found, groups

SOURCE = """
class Box:
    def __init__(self):
        self.held = 0

    def put(self, n, most=9):
        if n < 0 and n != -5:
            raise ValueError(f"{n + 1}")
        self.held = min(self.held + n, most)
        return dict(held=self.held, last={"a": n, "b": n - 1})
"""


def planted(source: str) -> dict[str, str]:
    """Kind -> the line that it changes, for those that change what the file says."""
    before, found = source.splitlines(), {}
    for fault in faults_of(source):
        if fault.changes(source):
            after = fault.planted(source).splitlines()
            found[fault.kind, fault.text] = next(line for line in after if line not in before).strip()
    return found


def test_each_kind_of_mistake_is_found_where_it_can_be_made() -> None:
    assert set(planted(SOURCE).values()) == {
        "pass",
        "if False:",
        "if True:",
        "if ((n < 0)):",
        "if ((n != -5)):",
        "if n <= 0 and n != -5:",
        "self.held = ((self.held + n))",
        "self.held = ((most))",
        "return dict(last={'a': n, 'b': n - 1})",
        "return dict(held=self.held)",
        'return dict(held=self.held, last={"a": n, "b": (n)})',
        "return dict(held=self.held, last={'a': n})",
        "return dict(held=self.held, last={'b': n - 1})",
    }


COUNTING = """
def count(n):
    seen = {}
    seen["n"] = n
    seen["never"] = 0
    return seen["n"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    run = f"runpy.run_path('{tmp_path}/edgegossip/room/counting.py')['count'](3) == 3"
    for path, text in {
        "edgegossip/room/counting.py": COUNTING,
        "tests/room/test_counting.py": f"import runpy\ndef test_it():\n    assert {run}\n",
        "tests/room/test_other.py": "",
        "edgegossip/commands/count.py": "def run():\n    from edgegossip.room.counting import count\n",
        "tests/commands/test_count.py": "",
        "tests/commands/test_others.py": "",
        "tests/far/test_far.py": "from edgegossip.room import counting\n",
        "tests/e2e/test_all.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_the_nearest_tests_go_first(project: Path) -> None:
    names = [[test.name for test in group] for group in groups(project, project / "edgegossip/room/counting.py")]
    assert names == [["test_counting.py"], ["test_far.py"], ["test_count.py", "test_other.py"], ["test_all.py"]]


# In a process of its own, as the command has it: this one may have threads, and must not fork.
EACH = """
import json, sys
from pathlib import Path
from lab.faults.plant import drawn, plant
root = Path(sys.argv[1])
print(json.dumps({fault.start[0]: plant(root, path, fault).by for path, fault in drawn(root, ["room"], 1, 2)}))
"""


def test_what_a_test_sees_is_told_with_its_name_and_the_file_stays(project: Path) -> None:
    file = project / "edgegossip/room/counting.py"
    (project / "tests/far/test_far.py").write_text("")
    before = file.read_text()
    out = subprocess.run([sys.executable, "-c", EACH, str(project)], check=True, stdout=subprocess.PIPE).stdout
    told = json.loads(out)
    assert told["4"].endswith("test_counting.py::test_it") and told["5"] == ""
    assert file.read_text() == before


def test_what_would_be_planted_is_told_beside_what_stands_there(project: Path) -> None:
    one = min((found(project, path, fault) for path, fault in drawn(project, ["room"], 1, 2)), key=str)
    assert str(one) == "room/counting.py:4, count: a statement is missing"
    place = {"file": "edgegossip/room/counting.py", "line": 4, "where": "count", "kind": "missing"}
    assert one.document() == {**place, "before": 'seen["n"] = n', "text": "pass"}


@pytest.mark.parametrize(
    ("room", "says"),
    [
        ("rooom", "no such folder or file; did you mean room?"),
        ("nosuch", "no such folder or file; there are commands, room"),
        ("room/nothing.py", "--room room/nothing.py: there is nothing in it to plant a mistake in"),
    ],
)
def test_a_room_without_anything_is_told_in_one_sentence(project: Path, room: str, says: str) -> None:
    (project / "edgegossip/room/nothing.py").write_text("ONE = 1\n")
    with pytest.raises(ConfigError) as told:
        drawn(project, [room], 1, 2)
    assert str(told.value).endswith(says)
