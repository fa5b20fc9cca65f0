"""`edgegossip report` and `top` as they are typed."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

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


def test_several_runs_get_one_page_and_exports(command, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command(
        "report", *map(str, runs), "--no-plots", "--trace", "t.json", "--csv", "c", "--tensorboard", "tb"
    )
    assert code == 0 and "page report.html" in out
    assert (tmp_path / "report.html").read_text().count('class="run-data"') == 2
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "t.json", "c", "tb"}


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
    code, out, _ = command("top", str(runs[1]), "--json")
    assert code == 0 and json.loads(out)["nodes"] == 3
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
