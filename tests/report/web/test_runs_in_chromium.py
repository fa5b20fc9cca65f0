"""The page in a real browser: several runs, runs that go on, and boards of any name."""

import threading
from contextlib import contextmanager

import pytest

from edgegossip.report.web.page import write_page
from edgegossip.report.web.serve import LiveRuns, PageServer
from edgegossip.telemetry.records import EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder
from tests.report.web.chromium import missing, quiet, show

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@contextmanager
def serving(desktop, *folders):
    """The live page of these run folders, in the browser."""
    with PageServer(LiveRuns([folder.path for folder in folders]), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            show(desktop, server.url)
            yield server
        finally:
            desktop.open("about:blank")
            server.shutdown()
            thread.join()
            for folder in folders:
                folder.close()


def begun(parent, name, codec="fp32"):
    recipe = f'[run]\nname = "{name}"\nmode = "gossip"\nrounds = 9\n[gossip]\nalgorithm = "dpsgd"\n[codec]\nname = "{codec}"\n'
    return RunFolder.create(parent, name, recipe, {})


def play(folder, step, *nodes, round_s=1.0):
    for node in nodes:
        values = {
            "train/loss": 1 / (step + 1),
            "train/examples": 32,
            "time/compute_s": round_s,
            "time/round_s": round_s,
        }
        folder.write(MetricsRecord(node, step, round_s * (step + 1), values))


def test_the_live_page_grows_with_its_run(desktop, tmp_path):
    folder = begun(tmp_path, "live")
    folder.write(EventRecord("a", 0.1, "started", "a trains"))
    play(folder, 0, "a"), play(folder, 1, "a")
    with serving(desktop, folder) as server:
        assert desktop.run("return edgegossip.run.length") == 2
        play(folder, 2, "a")
        play(folder, 0, "b")  # one that comes late
        desktop.until("return edgegossip.run.length === 3 && edgegossip.run.nodes.join() === 'a,b'")
        desktop.until("return document.querySelectorAll('#time .bar').length === 2")
        desktop.until("return document.getElementById('eta').textContent === 'round 1 of 9, about 6.00 s left'")
        for node in "ab":
            folder.write(EventRecord(node, 4.0, "finished", f"{node} finished"))
        desktop.until("return document.getElementById('live-text').textContent === 'the run is over'")
        assert desktop.console() == []
        assert all(url.startswith(server.url) for url in desktop.requests())


def test_a_board_that_comes_late_is_shown_though_its_name_is_in_anothers(desktop, tmp_path):
    folder = begun(tmp_path, "late")
    play(folder, 0, "board-10", "board-2", "x")
    with serving(desktop, folder):
        desktop.run("document.querySelector('.chip[data-node=x]').click()")
        play(folder, 0, "board-1", "board-3", "loss")
        desktop.until("return edgegossip.run.nodes.length === 6")
        desktop.until("return document.querySelectorAll('#time .bar').length === 5")
        chosen = desktop.run("return [...edgegossip.state.chosen].sort().join()")
        assert chosen == "board-1,board-10,board-2,board-3,loss"  # and x stays as it was left
        assert desktop.console() == []


def test_all_runs_of_a_live_page_go_on(desktop, tmp_path):
    one, other = begun(tmp_path, "one"), begun(tmp_path, "other")
    play(one, 0, "a"), play(other, 0, "a")
    lengths = "return edgegossip.runs.map(r => r.length).join()"
    rounds = "return [...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[3].textContent).join()"
    with serving(desktop, one, other):
        assert desktop.run(lengths) == desktop.run(rounds) == "1,1"
        play(other, 1, "a")
        desktop.until(f"{rounds} === '1,2'")
        play(one, 1, "a"), play(other, 2, "a"), play(one, 2, "a")
        desktop.until(f"{rounds} === '3,3'")
        assert desktop.run(lengths) == "3,3" and desktop.run("return edgegossip.state.to") == 2
        for folder in (one, other):
            folder.write(EventRecord("a", 4.0, "finished", "a finished"))
            text = "live" if folder is one else "the runs are over"
            desktop.until(f"return document.getElementById('live-text').textContent === '{text}'")
        assert desktop.console() == []


def test_a_run_that_cannot_be_followed_is_named_and_the_others_go_on(desktop, tmp_path):
    one, other = begun(tmp_path, "one"), begun(tmp_path, "other")
    play(one, 0, "a"), play(other, 0, "a")
    with serving(desktop, one, other) as server:
        for name in ("metrics.jsonl", "recipe.toml"):
            (other.path / name).rename(tmp_path / name)
        server.runs._refreshed_s[:] = -1e9, -1e9
        play(one, 1, "a")
        desktop.until("return edgegossip.runs[0].length === 2")
        desktop.until("return document.getElementById('live-text').textContent.startsWith('run 2 is not followed: ')")


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString", "hasOwnProperty"])
def test_boards_and_metrics_may_be_called_anything(desktop, tmp_path, name):
    folder = begun(tmp_path, "odd")
    play(folder, 0, name, "ok"), play(folder, 1, name, "ok")
    folder.write(MetricsRecord(name, 2, 3.0, {name: 1.0, "time/round_s": 1.0, "time/spans": "c1000000"}))
    folder.write(EventRecord(name, 3.0, "finished", f"{name} finished", {"unix_s": 1.8e9}))
    page = write_page([folder.path], tmp_path / "odd.html")
    with serving(desktop, folder):
        play(folder, 3, name)
        desktop.until("return edgegossip.run.length === 4")
        assert desktop.run("return edgegossip.run.nodes").count(name) == 1
        assert desktop.console() == []
    show(desktop, page)
    assert desktop.run("return document.querySelectorAll('#time .bar').length") == 2
    assert name in desktop.run("return [...document.querySelectorAll('#any option')].map(o => o.value)")
    choose = (
        "const s = document.querySelector('#any select'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))"
    )
    desktop.run(choose, name)
    states = desktop.run("return [...document.querySelectorAll('#boards tbody tr')].map(r => r.cells[1].textContent)")
    assert sorted(states) == ["finished", "unfinished"]
    quiet(desktop, page)


def test_speed_up_is_against_the_smallest_count_of_all_runs(desktop, tmp_path):
    """One ideal line is right for all of them; a scheme without that count has nothing to be
    compared with."""
    runs = []
    for codec, boards, round_s in (
        ("fp32", 2, 1.0),
        ("fp32", 2, 3.0),
        ("fp32", 4, 1.5),
        ("topk", 4, 1.0),
        ("topk", 8, 1.0),
    ):
        runs.append(begun(tmp_path, f"{codec}-{boards}-{round_s}", codec))
        for step in range(3):
            play(runs[-1], step, *(f"b{k}" for k in range(boards)), round_s=round_s)
        runs[-1].close()
    page = write_page([run.path for run in runs], tmp_path / "speed.html")
    show(desktop, page)
    assert desktop.run("return [...document.querySelectorAll('#speed .legend span')].map(e => e.textContent)") == [
        "dpsgd, fp32", "ideal",
    ]  # fmt: skip
    note = desktop.run("return document.querySelector('#speed .note').textContent")
    assert "on 2 boards, the fewest" in note and note.endswith("with no run on so few: dpsgd, topk")
    found = desktop.run("return speedUps(edgegossip.runs.map(r => ({scheme: r.doc.scheme, ...workOf(r)})))")
    (line,) = found["lines"]
    assert found["counts"] == [2, 4, 8] and line["y"][:2] == pytest.approx([1.0, 2.0]) and line["y"][2] is None
    quiet(desktop, page)
