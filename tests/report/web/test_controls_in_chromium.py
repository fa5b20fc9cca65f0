"""The page in a real browser: each of its controls, the address that keeps what was chosen, what it
saves, and how it looks to those who see, read or print it otherwise."""

import csv
import io
import os
import re
import time
import xml.etree.ElementTree as ET
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest

from edgegossip.report.series import smooth
from edgegossip.report.style import LIGHT
from edgegossip.report.web.page import page_of, write_page
from edgegossip.report.web.view import RunView
from edgegossip.telemetry.records import PARTS, EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder
from tests.report.web.chromium import Chromium, missing, quiet, show
from tests.report.web.synthetic import write_run

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
AXE = Path(os.environ.get("AXE", Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"))


def made(
    parent, name, *, codec="fp32", lr=0.1, boards=("a", "b", "c"), rounds=60, gain=1.0, bytes_=1000, resumed_s=None
):
    """A run whose accuracy rises by `gain` per cent a round. a is killed and started again, and b
    changes its rate; all are stopped and go on at `resumed_s`."""
    recipe = f'[run]\nname = "{name}"\nmode = "gossip"\nrounds = {rounds}\n[training]\nlr = {lr}\n'
    recipe += f'[gossip]\nalgorithm = "dpsgd"\n[codec]\nname = "{codec}"\n'
    folder = RunFolder.create(parent, name, recipe, {})
    for node in boards:
        for step in range(rounds):
            values = {"train/loss": 2.0 / (1 + step) + 0.1 * (step % 2), "net/sent_bytes": bytes_, "time/round_s": 1.0}
            values |= {"time/compute_s": 0.5, "time/encode_s": 0.2, "time/transmit_s": 0.2, "time/wait_s": 0.1}
            values |= {"eval/loss": 1.0, "eval/accuracy": min(0.95, gain * (step + 1) / 100)} if step % 5 == 4 else {}
            folder.write(MetricsRecord(node, step, step + 1.0, values))
    folder.write(EventRecord("a", 20.5, "restarted", "a is started again: it was killed"))
    folder.write(EventRecord("b", 30.5, "rate", "b sends a 2 bits a value: its link carries 1 Mbit/s"))
    for node in boards if resumed_s else ():
        folder.write(EventRecord(node, resumed_s, "resumed", f"{node} goes on: the run is resumed"))
    for node in boards:
        folder.write(EventRecord(node, rounds + 1.0, "finished", f"{node} finished"))
    folder.close()
    return folder.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    parent = tmp_path_factory.mktemp("made")
    return [
        made(parent, "one"),
        made(parent, "two", codec="co3", lr=0.2, gain=2.0, bytes_=100),
        made(parent, "three", codec="fp32", boards=("a", "b"), gain=0.5),
    ]


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    resumed = made(folder, "resumed", resumed_s=40.5)
    return {
        "one": write_page(runs[:1], folder / "one.html"),
        "three": write_page(runs, folder / "three.html"),
        "resumed": write_page([resumed], folder / "resumed.html"),
    }


def at(browser, page, address):
    """Open a page with an address, as from a link."""
    browser.open("about:blank")
    show(browser, f"{page.as_uri()}#{address}")


def put(browser, selector, value):
    script = (
        "const e = document.querySelector(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))"
    )
    browser.run(script, selector, value)


def address(browser):
    return browser.run("return location.hash.slice(1)")


DRIVE = """for (const e of document.querySelectorAll(arguments[0])) {
  if (!e.isConnected) continue;
  if (e.tagName === 'SELECT')
    for (const o of [...e.options].reverse()) { e.value = o.value; e.dispatchEvent(new Event('change')); }
  else if (e.type === 'range' || e.type === 'number') {
    for (const v of [e.min || 1, 7, 1e9]) { e.value = v; e.dispatchEvent(new Event(e.type === 'range' ? 'input' : 'change')); }
  } else e.click();
  edgegossip.draw(() => true);
} return document.querySelectorAll(arguments[0]).length"""


@pytest.mark.parametrize("which", ["one", "three"])
def test_every_control_can_be_used_and_nothing_goes_wrong(desktop, pages, which):
    desktop.devtools("Browser.setDownloadBehavior", behavior="deny")
    at(desktop, pages[which], "")
    for kind, least in (("#controls button", 8), ("#controls input", 5), ("#controls select", 1), ("main select", 1)):
        assert desktop.run(DRIVE, kind) >= least, kind
    for kind, least in (("main input", 1), ("main .seg button", 8), ("main summary", 3), ("#gantt .field button", 2)):
        assert desktop.run(DRIVE, kind) >= least, kind
    assert desktop.run(DRIVE, "#theme") == 1
    quiet(desktop, pages[which])


def test_the_address_keeps_what_was_chosen(desktop, pages):
    page = pages["three"]
    at(desktop, page, "")
    assert address(desktop) == "" and desktop.run("return edgegossip.state.x") == "seconds"  # several runs
    put(desktop, "#controls select", 1)
    for pressed in ("[data-value=bytes]", "[data-log=y]", "[data-log=x]", ".chip[data-node=b]"):
        desktop.run(f"document.querySelector('{pressed}').click()")
    put(desktop, "#smooth", "5")
    desktop.run("document.querySelector('#controls input[type=checkbox]').click()")
    desktop.run("edgegossip.zoom(9, 39)")
    desktop.run("document.querySelector('#time [data-value=share]').click()")
    put(desktop, "#goal input", 40)
    put(desktop, "#runs select", 2)
    put(desktop, "#gantt input", 12)
    desktop.run("document.getElementById('theme').click()")
    said = address(desktop)
    wanted = {"run=2", "base=3", "x=bytes", "log=xy", "smooth=5", "rounds=10-40", "board=a", "board=c", "lines=1"}
    assert wanted | {"bars=share", "target=40", "one=12", "theme=dark"} == set(said.split("&"))
    state = "const s = edgegossip.state; return JSON.stringify({...s, chosen: [...s.chosen].sort()})"
    before = desktop.run(state)
    at(desktop, page, said)
    assert desktop.run(state) == before and address(desktop) == said
    assert desktop.run("return document.documentElement.dataset.theme") == "dark"
    desktop.run("location.hash = ''")  # as by hand, or with the back button
    desktop.until("return edgegossip.state.run === 0 && document.documentElement.dataset.theme === 'light'")
    quiet(desktop, page)


@pytest.mark.parametrize(
    "odd",
    ["run=9&base=x&x=inches", "rounds=50-20&smooth=3&log=z", "board=nobody&one=1e99", "metric=__proto__&target=", "%"],
)
def test_an_address_that_says_what_cannot_be_is_passed_over(desktop, pages, odd):
    at(desktop, pages["three"], odd)
    state = desktop.run(
        "const s = edgegossip.state; return [s.run, s.base, s.x, s.log, s.smooth, s.whole, s.chosen.size, s.metric, s.target]"
    )
    assert state == [0, 0, "seconds", "", "0", True, 3, "", None]
    quiet(desktop, pages["three"])


def test_lines_become_smooth_as_in_plots(desktop, pages):
    at(desktop, pages["one"], "")
    rng = np.random.default_rng(1)
    for window in (1, 4, 5, 20, 100):
        y = np.where(rng.random(50) < 0.2, np.nan, rng.normal(size=50))
        y[:3] = np.nan
        given = [None if np.isnan(v) else v for v in y]
        found = desktop.run(
            "const y = Float64Array.from(arguments[0], v => v ?? NaN);"
            "return [...edgegossip.run.smoothed('t' + arguments[1], y, arguments[1])].map(v => Number.isNaN(v) ? null : v)",
            given, window,
        )  # fmt: skip
        wanted = smooth(y, window) if window > 1 else y
        assert np.allclose([np.nan if v is None else v for v in found], wanted, equal_nan=True)


def test_from_three_boards_on_lines_are_a_mean_in_a_band(desktop, pages):
    legend = "return [...document.querySelectorAll('#m-train-loss .legend span')].map(e => e.textContent)"
    at(desktop, pages["one"], "")
    assert desktop.run(legend)[0] == "mean of 3 boards" and "least to greatest board" in desktop.run(legend)
    at(desktop, pages["one"], "smooth=5")
    assert desktop.run(legend)[0] == "mean of 3 boards, over 5 rounds"
    at(desktop, pages["one"], "lines=1")
    assert desktop.run(legend)[:3] == ["a", "b", "c"]
    at(desktop, pages["one"], "board=a&board=c")
    assert desktop.run(legend)[:2] == ["a", "c"]


def test_logarithmic_axes(desktop, pages):
    scale = """const {scales: s} = edgegossip.views.find(v => v.element.id === arguments[0]).chart.plot;
        return [s.x.distr, s.y.distr]"""
    at(desktop, pages["one"], "log=xy&x=bytes")
    assert desktop.run(scale, "m-train-loss") == [3, 3]
    assert desktop.run(scale, "m-eval-accuracy") == [3, 1]  # a share has none upwards, nor has a stack
    assert desktop.run(scale, "parts") == [3, 1]
    at(desktop, pages["one"], "")
    assert desktop.run(scale, "m-train-loss") == [1, 1]


def test_restarts_and_changes_of_rate_are_marked(desktop, pages):
    at(desktop, pages["one"], "")
    marks = desktop.run("return edgegossip.axis().marks.map(m => [m.kind, edgegossip.run.steps[m.at] + 1, m.text])")
    assert [mark[:2] for mark in marks] == [["rate", 31], ["restarted", 20]]
    assert "b sends a 2 bits a value" in marks[0][2] and "a started again after 20 rounds" in marks[1][2]
    styles = desktop.run("return edgegossip.axis().marks.concat({kind: 'lost'}).map(m => JSON.stringify(markStyle(m)))")
    assert len(set(styles)) == 3
    at(desktop, pages["one"], "board=c")
    assert desktop.run("return edgegossip.axis().marks") == []


def test_where_a_run_was_resumed_is_marked_whichever_board_is_shown(desktop, pages):
    at(desktop, pages["resumed"], "board=c")
    marks = desktop.run("return edgegossip.axis().marks.map(m => [m.kind, edgegossip.run.steps[m.at] + 1, m.text])")
    assert marks == [["resumed", 40, "the run was resumed after 40 rounds, at 40.5 s wall"]]
    kinds = "['resumed', 'restarted', 'rate', 'lost']"
    styles = desktop.run(f"return {kinds}.map(kind => JSON.stringify(markStyle({{kind}})))")
    assert len(set(styles)) == 4
    at(desktop, pages["resumed"], "")
    assert "restarted" in desktop.run("return edgegossip.axis().marks.map(m => m.kind)")
    assert desktop.run("return edgegossip.run.marks.map(m => m.event)") == ["restarted"]  # no board has a fate by it


def rows(browser, card):
    cells = "return [...document.querySelectorAll(`#${arguments[0]} table tr`)].map(r => [...r.cells].map(c => c.textContent))"
    header, *found = browser.run(cells, card)
    return header, found


def test_seconds_and_bytes_to_a_goal(desktop, pages):
    """The first evaluation, one in five rounds, at which the mean of the boards is there."""
    at(desktop, pages["three"], "target=45")
    header, found = rows(desktop, "goal")
    assert header[3:9] == ["seconds", "÷ run 1", "bytes", "÷ run 1", "rounds", "÷ run 1"]
    assert found[0][3:9] == ["45.0 s", "", "135 kB", "", "45", ""]
    assert found[1][3:9] == ["25.0 s", "0.556", "7.50 kB", "0.0556", "25", "0.556"]
    assert found[2][3:9] == ["never", *[NOTHING] * 5]
    at(desktop, pages["three"], "base=2&target=30")
    assert rows(desktop, "goal")[1][0][3:5] == ["30.0 s", "2"]  # after 15 rounds in the other
    at(desktop, pages["three"], "")
    assert desktop.run("return document.querySelector('#goal input').value") == "30"  # the best of the worst


def test_a_goal_of_runs_without_scores_is_their_loss(desktop, tmp_path):
    folders = []
    for name, speed in (("slow", 1.0), ("fast", 2.0)):
        folder = RunFolder.create(tmp_path, name, f'[run]\nname = "{name}"\nmode = "gossip"\n', {})
        for step in range(100):
            folder.write(
                MetricsRecord("a", step, step + 1.0, {"train/loss": 1 - speed * step / 200, "time/round_s": 1.0})
            )
        folder.close()
        folders.append(folder.path)
    at(desktop, write_page(folders, tmp_path / "x.html"), "target=0.6")
    slow, fast = (int(row[7]) for row in rows(desktop, "goal")[1])
    assert slow == pytest.approx(81, abs=1) and fast == pytest.approx(41, abs=1)  # the mean is centred


def test_where_recipes_differ_and_runs_are_held_against_one(desktop, pages):
    at(desktop, pages["three"], "")
    header, found = rows(desktop, "differences")
    assert header == ["key", "1. one", "2. two", "3. three"]
    assert found == [["training.lr", "0.1", "0.2", "0.1"], ["codec.name", "fp32", "co3", "fp32"]]
    header, found = rows(desktop, "runs")
    sent = header.index("sent")
    assert [row[sent : sent + 2] for row in found] == [["180 kB", ""], ["18.0 kB", "0.1"], ["120 kB", "0.667"]]
    score = header.index("accuracy")
    assert [row[score + 1] for row in found] == ["", "+35.00 points", f"{MINUS}30.00 points"]


def test_a_scheme_has_one_colour_and_its_runs_differ_in_dashes(desktop, pages):
    at(desktop, pages["three"], "")
    one, two, three = desktop.run("return edgegossip.runs.map((_, k) => runLook(edgegossip, k))")
    assert one["color"] == three["color"] != two["color"] and one["dash"] != three["dash"]
    assert desktop.run("return MADE.places") == {"dpsgd, fp32": 0, "dpsgd, co3": 3}


def saved(browser, folder, card, kind):
    button = "const b = document.querySelector(`#${arguments[0]} .save[aria-label$=${arguments[1]}]`);"
    where = "b.scrollIntoView({block: 'center'}); const r = b.getBoundingClientRect(); return [r.left + 9, r.top + 9]"
    x, y = browser.run(button + where, card, kind)
    for event in ("mousePressed", "mouseReleased"):  # a page saves one file unasked, and more only for clicks
        browser.devtools("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)
    for _ in range(400):
        if found := [path for path in folder.glob(f"*-{card}.{kind.lower()}") if path.stat().st_size]:
            return found[0].read_text()
        time.sleep(0.05)
    raise AssertionError(f"{card} was not saved: {[*folder.iterdir()]}")


def test_every_card_is_saved_as_figure_and_as_numbers(desktop, pages, tmp_path):
    at(desktop, pages["three"], "theme=dark")
    desktop.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    cards = desktop.run(
        "return [...document.querySelectorAll('.card')].map(c => [c.id, c.querySelectorAll('.save').length])"
    )
    tables_only = {card for card, buttons in cards if buttons == 1}
    assert tables_only == {"goal", "runs", "differences", "boards", "recipe", "events"}
    for card in ("time", "m-train-loss", "parts", "gantt", "all-eval-accuracy", "speed"):
        figure = ET.fromstring(saved(desktop, tmp_path, card, "SVG"))
        shapes = [element.tag.rpartition("}")[2] for element in figure.iter()]
        assert len(shapes) > 20 and "text" in shapes and ("path" in shapes or "rect" in shapes), card
        text = ET.tostring(figure, encoding="unicode")
        assert "NaN" not in text and "undefined" not in text and "var(" not in text, card
        fills = {element.get("fill", "").lower() for element in figure.iter()}
        assert LIGHT["card"] in fills  # light, though the page is dark
    assert "url(#transmit)" in (tmp_path / f"{desktop.run('return edgegossip.run.doc.name')}-time.svg").read_text()
    assert desktop.run("return document.documentElement.dataset.theme") == "dark"
    numbers = list(csv.reader(io.StringIO(saved(desktop, tmp_path, "m-train-loss", "CSV"))))
    assert numbers[0][:4] == ["seconds of training", "greatest", "least", "mean of 3 boards"] and len(numbers) == 61
    assert float(numbers[2][3]) == pytest.approx(1.1, rel=1e-4) and float(numbers[-1][0]) == 60
    lines = dict(desktop.run("return edgegossip.views.map(v => [v.element.id, rowsOf(v).length])"))
    assert {card for card, count in lines.items() if count < 2} == {"links", "partition"}  # which were not recorded
    bars = list(csv.reader(io.StringIO(saved(desktop, tmp_path, "time", "CSV"))))
    assert bars[0] == ["board", *(f"{part}_s" for part in (*PARTS, "sum")), "rounds"]
    assert [float(cell) for cell in bars[1][1:]] == pytest.approx([0.5, 0.2, 0.2, 0, 0.1, 0, 1, 60], rel=1e-3)
    table = list(csv.reader(io.StringIO(saved(desktop, tmp_path, "differences", "CSV"))))
    assert table[1] == ["training.lr", "0.1", "0.2", "0.1"]
    quiet(desktop, pages["three"])


def test_numbers_that_a_spreadsheet_would_calculate_are_text(desktop, pages):
    at(desktop, pages["one"], "")
    assert (
        desktop.run("return csvText([['=1+1', 'a,b', '-x', -2, NaN, 'say \"x\"']])")
        == '\'=1+1,"a,b",\'-x,-2,,"say ""x"""\n'
    )


@pytest.fixture(
    scope="module", params=[(360, 740, True), (820, 1100, False), (1400, 900, False)], ids=["phone", "tablet", "wide"]
)
def sized(request):
    width, height, phone = request.param
    with Chromium(width, height, phone=phone) as browser:
        yield browser


def test_nothing_is_wider_than_the_page_and_nothing_moves_when_it_is_drawn(sized, pages):
    watch = """window.moved = []; new PerformanceObserver(l => window.moved.push(...l.getEntries()))
        .observe({type: 'layout-shift', buffered: true})"""
    for page in pages.values():
        sized.open("about:blank")
        sized.open(page)
        sized.until("return document.documentElement.dataset.ready")
        sized.until("return !edgegossip.views.some(v => v.stale)")  # what is out of sight is drawn as well, a bit later
        sized.run(watch)
        height = sized.run("return document.documentElement.scrollHeight")
        for top in range(0, height, 500):
            sized.run(f"scrollTo(0, {top})")
            sized.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        moved = sized.run("return window.moved.reduce((a, e) => a + e.value, 0)")
        assert moved < 0.1, sized.run(
            "return window.moved.map(e => [e.value, e.sources.map(s => s.node?.outerHTML?.slice(0, 80))])"
        )
        sized.run("edgegossip.draw(() => true)")
        assert sized.run("return document.documentElement.scrollWidth <= innerWidth")
        quiet(sized, page)


@pytest.mark.skipif(
    not AXE.exists(), reason="no axe-core here: npm install --no-save axe-core, or AXE=/path/to/axe.min.js"
)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(sized, pages, theme):
    for page in pages.values():
        at(sized, page, f"theme={theme}")
        sized.run(AXE.read_text() + "; return 1")
        sized.run(
            "window.found = null; axe.run(document, {resultTypes: ['violations']}).then(r => { window.found = r }); return 1"
        )
        found = sized.until("return window.found", 200)
        assert len(found["passes"]) > 10
        assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found["violations"]] == []


def test_print_is_light_has_all_plots_and_no_controls(desktop, pages):
    at(desktop, pages["one"], "theme=dark")
    desktop.devtools("Emulation.setEmulatedMedia", media="print")
    try:
        shown = "return [...document.querySelectorAll(arguments[0])].filter(e => getComputedStyle(e).display !== 'none').length"
        for gone in ("#controls", "#theme", ".card-head button", ".skip"):
            assert desktop.run(shown, gone) == 0, gone
    finally:
        desktop.devtools("Emulation.setEmulatedMedia", media="")
    pdf = b64decode(desktop.devtools("Page.printToPDF", printBackground=True)["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
    assert desktop.run("return document.documentElement.dataset.theme") == "dark"


def test_of_a_long_run_of_many_boards_no_more_is_drawn_than_can_be_seen(tmp_path, desktop):
    """18 boards, 10 000 rounds: 200 rounds that were written, fifty times over. How soon it is
    there, measure.py measures."""
    view = RunView(write_run(tmp_path, boards=18, rounds=200))
    view.read()
    for table in view.tables.nodes.values():
        count = len(table)
        for name, column in table.columns.items():
            column *= 50
            if name == "t_s":
                for k in range(count, len(column)):
                    column[k] += 100.0 * (k // count)
        steps = table.step.tolist()
        table.step.extend(200 * n + step for n in range(1, 50) for step in steps)
    page = page_of([view], tmp_path / "long.html")
    show(desktop, page)
    assert desktop.run("return [edgegossip.run.nodes.length, edgegossip.run.length]") == [18, 10_000]
    points = desktop.run("return edgegossip.views.filter(v => v.chart?.plot).map(v => v.chart.plot.data[0].length)")
    assert len(points) > 10 and max(points) < 3000
