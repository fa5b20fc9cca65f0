"""`edgegossip report` and `top` as they are typed."""

import base64
import csv
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgegossip.report.web.page import write_page
from edgegossip.telemetry.records import PARTS
from edgegossip.telemetry.run_folder import read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.untrusted import printable
from tests.drawn import drawn_texts
from tests.report.web.synthetic import write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder, boards=n, rounds=8, seed=n, lost=False) for n in (2, 3)]


def test_one_run_gets_its_table_and_its_page(command, runs):
    code, out, _ = command("report", str(runs[0]), "--no-plots")
    assert code == 0 and "pi-01" in out
    page = runs[0] / "report.html"
    assert f"page {page}" in out and page.stat().st_size > 50_000


def test_runs_are_listed_the_newest_first_with_how_they_ended(command, tmp_path):
    older, newer = (write_run(tmp_path / name, boards=3, rounds=4, lost=lost) for name, lost in (("1", 0), ("2", 1)))
    for name, folder in (("20260101-a", older), ("20260102-b", newer)):
        folder = folder.rename(tmp_path / name)
        summary = summarise(read_run(folder))
        found = summary["verdict"] if name.endswith("b") else []
        (folder / "summary.json").write_text(json.dumps({**summary, "verdict": found}))
    code, out, _ = command("runs", "--runs", str(tmp_path))
    head, first, second = out.splitlines()
    assert code == 0 and head.split()[0] == "run" and first.startswith("20260102-b") and second.startswith("20260101-a")
    assert "the fleet split" in first
    assert second.endswith("finished") and "4/4" in second and max(map(len, out.splitlines())) <= 80
    shutil.copytree(folder, damaged := tmp_path / "20260103-c")
    (damaged / "summary.json").write_text('{"nodes": 3}')
    code, out, err = command("runs", "--runs", str(tmp_path), "--json")
    assert "20260103-c/summary.json does not hold what a run writes there" in err
    assert [run["run"] for run in json.loads(out)] == ["20260102-b", "20260101-a"]
    assert "no run is in" in command("runs", "--runs", str(tmp_path / "none"))[1]


@pytest.mark.parametrize("name", ["env.json", "partition.json", "topology.json", "summary.json", "run.json"])
def test_a_damaged_folder_among_them_is_named_and_hides_no_other_run(command, tmp_path, name):
    good = write_run(tmp_path / "1", boards=2, rounds=3, lost=0).rename(tmp_path / "good")
    for k, content in enumerate((b"[", b"[]", b"[" * (1 << 20), b"\xff\xfe{")):
        bad = tmp_path / f"bad-{k}"
        shutil.copytree(good, bad)
        if name == "partition.json" and k == 2:
            with open(bad / name, "wb") as file:
                file.truncate(33 << 20)
        else:
            (bad / name).write_bytes(content)
    code, out, err = command("runs", "--runs", str(tmp_path), "--json")
    assert code == 0 and len(json.loads(out)) == 1
    assert all(f"bad-{k}/{name}" in err for k in range(4)) and ("MiB" in err) == (name == "partition.json")


def test_a_dry_run_says_what_would_run_and_leaves_nothing(command, tmp_path):
    code, out, _ = command("run", "quickstart-gossip", "--boards", "3", "--dry-run", "--runs", str(tmp_path / "r"))
    assert code == 0 and "3 boards (gossip), 250 rounds, mlp of 9,610 values" in out and not list(tmp_path.iterdir())
    code, _, err = command("run", "quickstart-gossip", "--dry-run", "--set", "codec.name=topkk")
    assert code == 2 and "did you mean topk" in err
    assert json.loads(command("run", "quickstart-gossip", "--dry-run", "--json")[1])["values"] == 9610
    assert "nothing is wrong with it; " in out
    out = command("run", "quickstart-gossip", "--dry-run", "--set", "codec.name=topk")[1]
    assert "!! codec topk" in out and "it can be run; " in out and "nothing is wrong" not in out


def test_several_runs_get_one_page_and_exports(command, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("report", *map(str, runs), "--no-plots", "--csv", "c", "--tensorboard", "tb")
    assert code == 0 and "page report.html" in out
    assert (tmp_path / "report.html").read_text().count('class="run-data"') == 2
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "c", "tb"}


def test_json_is_one_document_and_writes_no_page_unasked(command, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, out, _ = command("report", str(runs[0]), "--json")
    assert json.loads(out)["nodes"] == 2 and not list(tmp_path.iterdir())
    _, out, err = command("report", *map(str, runs), "--json", "--html", "x.html")
    assert [run["nodes"] for run in json.loads(out)["runs"]] == [2, 3]
    assert "page x.html" in err and (tmp_path / "x.html").is_file()


def test_what_cannot_be_written_is_one_sentence(command, runs, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = command("report", str(runs[0]), "--no-plots", "--html", str(tmp_path / "file" / "x.html"))
    assert code == 4 and re.fullmatch(r"edgegossip: cannot write .*\n", err)
    code, _, err = command(
        "report", str(runs[0]), "--no-plots", "--html", str(tmp_path / "y"), "--csv", str(tmp_path / "file" / "c")
    )
    assert code == 4 and "cannot write" in err
    code, _, err = command("report", str(tmp_path))
    assert code == 3 and "not a run folder" in err


def test_top_shows_the_newest_run_as_it_is(command, runs):
    code, out, _ = command("top", "--once", "--runs", str(runs[0].parent))
    assert code == 0 and "round 8/8" in out and "finished" in out
    code, _, err = command("top", *map(str, runs))
    assert code == 2 and "--web shows several" in err
    code, _, err = command("top", str(runs[0]), "--once", "--web")
    assert code == 2 and "leave one out" in err


def test_the_page_is_served_until_ctrl_c(runs):
    command = [sys.executable, "-m", "edgegossip", "top", str(runs[0]), "--web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        url = re.search(r"http://127\.0\.0\.1:\d+/", top.stdout.readline()).group()
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"edgegossip" in answer.read()
        top.send_signal(signal.SIGINT)
        assert top.wait(20) == 0


# Names that mean something to a reader of ours: mathtext, legends, HTML, CSV, formats, terminals.
WORST = [
    "$x$", "two$$", "$\\frac", "\\$", "_hidden", "100 %s", "{0}", "it's \"quoted\"", "<b>&amp;</b>",
    "</script><script>alert(1)</script>", "<!--", "]]>", "=1+1", "@a", "-1", ",;|", "\\", "\\n", "`*_[]#",
    "e\u0301\u0301", "\u05e2\u05d1\u05e8\u05d9\u05ea", "\u0645\u0627", "\u4e2d\u6587", "\U0001f469\u200d\U0001f467",
    "\u202etxt.exe", "\x1b[31m", "a\r\nb", "\x00", "\ud800", " ", "W" * 5000, "a" + "\u0301" * 5000,
]  # fmt: skip
TEXTS = st.one_of(st.sampled_from(WORST), st.text(st.characters(), min_size=1, max_size=40))
NAMES = st.lists(TEXTS, min_size=7, max_size=7, unique_by=lambda text: said(text))


def said(text: str) -> str:
    """A text as it is read from a run folder: half a character is a "?"."""
    return json.loads(json.dumps(text)).encode("utf-8", "replace").decode()


def write_named(parent: Path, names: list[str]) -> Path:
    """A run folder as anybody can write one, in which all names are of somebody else."""
    run, one, two, first, second, score, text = names
    folder = parent / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text(tomli_w.dumps({"run": {"name": said(run), "mode": "gossip", "rounds": 2}}))
    metrics, events = [], []
    for step in range(2):
        for node in (one, two):
            values = {"train/loss": 1.0, "net/sent_bytes": 100, "eval/loss": 0.5, f"eval/{score}": 0.5}
            values |= {f"time/{part}_s": 0.01 for part in PARTS}
            metrics.append({"node": node, "step": step, "t_s": 0.1 * (step + 1), **values})
    for node, end in ((one, "finished"), (two, "lost")):
        events.append({"node": node, "t_s": 0.3, "event": end, "text": text})
    for name, records in (("metrics", metrics), ("events", events)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    partition = {"nodes": [one, two], "classes": [first, second], "counts": [[5, 10], [12, 3]]}
    (folder / "partition.json").write_text(json.dumps(partition))
    return folder


class Page(HTMLParser):
    """What a browser makes of a page: its elements, the text of each kind, and its data."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.texts: dict[str, str] = {}
        self._kind = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        about = dict(attrs)
        self._kind = about.get("id") or about.get("class") or tag
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts[self._kind] = self.texts.get(self._kind, "") + data

    def document(self) -> dict:
        packed = zlib.decompress(base64.b64decode(self.texts["run-data"].split()[0]))
        return json.loads(packed[4 : 4 + struct.unpack("<I", packed[:4])[0]])


@pytest.fixture(scope="module")
def plain_tags(tmp_path_factory):
    """The elements of a page of names that mean nothing."""
    folder = write_named(tmp_path_factory.mktemp("plain"), list("abcdefg"))
    return Page(write_page([folder], folder / "report.html").read_text()).tags


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES)
@example(WORST[:7])
@example(WORST[7:14])
@example(WORST[14:21])
@example(WORST[21:28])
@example(WORST[-7:])
def test_any_text_may_be_a_name_and_stays_what_it_is(command, plain_tags, names):
    run, one, two, first, second, score, text = (said(name) for name in names)
    with tempfile.TemporaryDirectory() as at:
        folder = write_named(Path(at), names)
        code, out, err = command("report", str(folder), "--no-plots", "--csv", f"{at}/csv")
        assert (code, err) == (0, "")
        assert all(c.isprintable() for line in out.split("\n") for c in line)
        assert printable(one, 64) in out and printable(two, 64) in out
        assert max(map(len, out.split("\n"))) < 1000

        summary = json.loads(command("report", str(folder), "--json")[1])
        assert [row["node"] for row in summary["boards"]] in ([one, two], [two, one])
        assert score in summary["scores"]

        plain = {
            name: list(csv.reader((Path(at) / "csv" / f"{name}.csv").open(newline="")))
            for name in ("metrics", "events")
        }
        assert {row[1].removeprefix("'") for row in plain["metrics"][1:]} == {n.removeprefix("'") for n in (one, two)}
        assert {row[4].removeprefix("'") for row in plain["events"][1:]} == {text.removeprefix("'")}
        assert not any(cell.startswith(("=", "+", "@")) for rows in plain.values() for row in rows for cell in row)

        page = Page((folder / "report.html").read_text())
        assert page.tags == plain_tags
        assert json.loads(page.texts["page-made"])["runs"] == ["run"]
        shown = page.document()
        assert set(shown["nodes"]) == {one, two} and shown["partition"]["classes"] == [first, second]
        assert shown["title"].startswith(f"{run}: gossip")


@pytest.mark.parametrize("names", [["r", *WORST[:5], "t"], WORST[-8:-1]])
def test_any_text_is_drawn_as_it_is(command, recwarn, names):
    """Not as mathematics, nor left out of a legend."""
    _, one, two, first, second, score, _ = (said(name) for name in names)
    with drawn_texts() as drawn, tempfile.TemporaryDirectory() as at:
        code, out, err = command("report", str(write_named(Path(at), names)))
        assert (code, err) == (0, "") and out.count("plot ") == 3
    assert not any(drawn.values()) and not recwarn.list
    assert {printable(one, 40), printable(two, 40), printable(first, 20), printable(second, 20)} <= set(drawn)
    assert f"test {printable(score, 32)}" in drawn


def test_columns_stand_below_one_another_whatever_a_name_is_made_of(command, tmp_path):
    out = command(
        "report", str(write_named(tmp_path, ["r", "\u4e2d\u6587", "e\u0301", "a", "b", "f1", "t"])), "--no-plots"
    )[1]
    wide, narrow = (next(line for line in out.split("\n") if line.startswith(name)) for name in ("\u4e2d", "e\u0301"))
    assert len(wide) + 2 == len(narrow) - 1
