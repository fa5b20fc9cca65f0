"""The page in a real browser: everything is drawn, nothing is wrong on its console, and nobody is
asked for anything."""

import pytest

from edgegossip.report.web.page import write_page
from edgegossip.telemetry.records import EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder
from tests.report.web.chromium import missing, quiet, show
from tests.report.web.synthetic import write_run

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

EMPTY = """return [...document.querySelectorAll('.card')]
    .filter(c => !c.querySelector('canvas, svg, table, .bar, pre')).map(c => c.id)"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders of 2, 6 and 18 boards."""
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder, boards=n, rounds=200, seed=n) for n in (2, 6, 18)]


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {"one": write_page(runs[2:], folder / "one.html"), "three": write_page(runs, folder / "three.html")}


@pytest.mark.parametrize("which", ["one", "three"])
@pytest.mark.parametrize("browser", ["desktop", "phone"])
def test_every_plot_is_drawn_and_nobody_is_asked(browser, which, pages, request):
    browser = request.getfixturevalue(browser)
    show(browser, pages[which])
    assert browser.run(EMPTY) == (["differences"] if which == "three" else [])  # their recipes are the same
    wanted = {
        "time",
        "parts",
        "m-train-loss",
        "m-eval-accuracy",
        "gantt",
        "links",
        "rates-bits",
        "rates-mbit",
        "events",
        "m-sys-temperature-c",
        "boards",
    }
    wanted |= {"runs", "speed", "runs-time"} if which == "three" else set()
    assert wanted <= set(browser.run("return [...document.querySelectorAll('.card')].map(c => c.id)"))
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    quiet(browser, pages[which])


def test_boards_rounds_and_axes_are_chosen(desktop, pages):
    show(desktop, pages["one"])
    bars = "return document.querySelectorAll('#time .bar').length"
    assert desktop.run(bars) == 18
    desktop.run("document.querySelectorAll('.chip[data-node]')[3].click()")
    desktop.until("return document.querySelectorAll('#time .bar').length === 17")
    desktop.run("document.querySelector('.seg [data-value=bytes]').click()")
    desktop.run("edgegossip.zoom(50, 99)")
    rounds = "return [edgegossip.state.from, edgegossip.state.to, edgegossip.views[2].element.id]"
    assert desktop.run(rounds)[:2] == [50, 99]
    desktop.until("return edgegossip.views.filter(v => v.visible).every(v => !v.stale)")
    desktop.run("document.querySelector('#time details').open = true")
    cells = desktop.until(
        "return [...document.querySelectorAll('#time details tbody td:last-child')].map(c => c.textContent).join()"
    )
    assert set(cells.split(",")) == {"50"}
    quiet(desktop, pages["one"])


def test_dragging_zooms_and_keys_read_values(desktop, pages):
    show(desktop, pages["one"])
    desktop.run("document.querySelector('#m-train-loss').scrollIntoView({block: 'center'})")
    box = desktop.run(
        "const b = document.querySelector('#m-train-loss .u-over').getBoundingClientRect(); return [b.left, b.top, b.width]"
    )
    mouse = {"y": box[1] + 60, "button": "left", "clickCount": 1}
    for kind, at in (("mousePressed", 0.25), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        desktop.devtools("Input.dispatchMouseEvent", type=kind, x=box[0] + at * box[2], buttons=1, **mouse)
    low, high = desktop.run("return [edgegossip.state.from, edgegossip.state.to]")
    assert abs(low - 50) < 4 and abs(high - 100) < 4
    desktop.run("edgegossip.zoom(null); document.querySelector('#m-train-loss .plot').focus()")
    desktop.until("return !edgegossip.views.some(v => v.visible && v.stale)")
    for _ in range(3):
        desktop.devtools("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert desktop.until(
        "return !document.getElementById('tip').hidden && document.getElementById('tip').textContent"
    ).startswith("after round 4")
    quiet(desktop, pages["one"])


def test_what_is_read_aloud(desktop, pages):
    show(desktop, pages["one"])
    unnamed = """return [...document.querySelectorAll('button, input, select, [role=img], section')].filter(e =>
        !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim() || e.closest('label')))
        .map(e => e.outerHTML.slice(0, 80))"""
    assert desktop.run(unnamed) == []
    assert "compute" in desktop.run("return document.querySelector('#time [role=listitem]').getAttribute('aria-label')")


def test_a_page_of_a_run_without_rounds_says_so(desktop, tmp_path):
    folder = RunFolder.create(tmp_path, "empty", '[run]\nname = "empty"\nmode = "gossip"\n', {})
    folder.close()
    page = write_page([folder.path], tmp_path / "empty.html")
    show(desktop, page)
    assert "empty" in desktop.run("return document.getElementById('title').textContent")
    quiet(desktop, page)


def test_what_became_of_a_board_without_rounds_is_told(desktop, tmp_path):
    """One that was lost before its first round has no button to choose it by."""
    folder = RunFolder.create(tmp_path, "lost", '[run]\nname = "lost"\nmode = "gossip"\n', {})
    folder.write_partition(["a", "b"], ["0"], [[3], [4]])
    for step in range(3):
        folder.write(MetricsRecord("a", step, 1.0, {"train/loss": 1.0, "time/compute_s": 0.1, "time/round_s": 0.1}))
    folder.write(EventRecord("b", 0.5, "lost", "lost b: killed by SIGKILL"))
    folder.write(EventRecord("a", 0.6, "peer-down", "lost b"))
    folder.close()
    show(desktop, write_page([folder.path], tmp_path / "lost.html"))
    assert "killed by SIGKILL" in desktop.run("return document.getElementById('events').textContent")
    assert desktop.run("return document.querySelectorAll('#partition .bar').length") == 2
    assert "2 boards, 3 rounds" in desktop.run("return document.getElementById('subtitle').textContent")


def test_energy_says_of_how_many_rounds_it_is(desktop, tmp_path):
    """A sensor that failed leaves rounds without; a sum of the others is not the run's."""
    folder = RunFolder.create(tmp_path, "energy", '[run]\nname = "energy"\nmode = "gossip"\n', {})
    for step in range(4):
        for node, joules in (("a", 2.0), ("b", 3.0 if step < 3 else None)):
            values = {"time/compute_s": 0.1, "time/round_s": 0.1, "sys/energy_j": joules}
            folder.write(MetricsRecord(node, step, 0.1 * (step + 1), values))
    folder.close()
    page = write_page([folder.path], tmp_path / "energy.html")
    show(desktop, page)
    assert "some rounds not measured" in desktop.run("return document.getElementById('tiles').textContent")
    cells = desktop.run("return [...document.querySelectorAll('#boards td:last-child')].map(e => e.textContent)")
    assert cells == ["8.00 J", "9.00 J (3 of 4 rounds)"]
    quiet(desktop, page)


def test_a_coordinator_evaluates_in_records_of_their_own(desktop, tmp_path):
    folder = RunFolder.create(tmp_path, "server", '[run]\nname = "server"\nmode = "server"\n', {})
    for step in range(4):
        seconds = {"time/wait_s": 0.5, "time/round_s": 0.5, "time/spans": "w500000"}
        for node in ("a", "b", "coordinator"):
            net = {"net/sent_bytes": 100, "net/received_bytes": 50, "time/transmit_s": 0.0, "train/loss": 1.0}
            folder.write(
                MetricsRecord(node, step, 0.5 * (step + 1), {**seconds, **(net if node != "coordinator" else {})})
            )
        folder.write(
            MetricsRecord("coordinator", step, 0.5 * (step + 1) + 0.1, {"eval/loss": 0.3, "eval/accuracy": 0.9})
        )
    folder.close()
    page = write_page([folder.path], tmp_path / "server.html")
    show(desktop, page)
    assert (
        desktop.run("return [...document.querySelectorAll('#time .total')].map(e => e.textContent)") == ["500 ms"] * 3
    )
    assert desktop.run("return document.querySelectorAll('#gantt rect').length") == 3
    assert desktop.run("return document.querySelectorAll('#links td[aria-label]').length") == 4
    quiet(desktop, page)


# Pixels of the colour of alarms in a plot.
MARKED = """const canvas = document.querySelector('#' + CARD + ' canvas'), at = canvas.getContext('2d');
    const probe = document.createElement('i'); probe.style.color = css('--alarm'); document.body.append(probe);
    const [r, g, b] = getComputedStyle(probe).color.match(/[0-9]+/g).map(Number); probe.remove();
    const data = at.getImageData(0, 0, canvas.width, canvas.height).data; let n = 0;
    for (let i = 0; i < data.length; i += 4)
      if (data[i + 3] > 200 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 30) n++;
    return n"""


@pytest.fixture
def killed(desktop, tmp_path):
    """A page of six rounds: b, whose clock began 10 s after a's, is killed after three. Sockets are
    read in every other round."""
    folder = RunFolder.create(tmp_path, "killed", '[run]\nname = "killed"\nmode = "gossip"\nrounds = 6\n', {})
    for record in (
        EventRecord("b", 1.0, "started", "b trains", {"unix_s": 1011.0}),
        EventRecord("a", 1.0, "started", "a trains", {"unix_s": 1001.0}),
        EventRecord("b", 3.9, "notice", "b has hot feet"),
        EventRecord("b", 14.0, "lost", "lost b: killed by SIGKILL"),
        EventRecord("a", 14.5, "peer-down", "lost b", {"peer": "b"}),
        EventRecord("a", 17.5, "finished", "a finished"),
    ):
        folder.write(record)
    for node, began_s, rounds in (("a", 11.0, 6), ("b", 1.0, 3)):
        for step in range(rounds):
            values = {"train/loss": 5.0 if step == 1 else 0.5, "time/compute_s": 1.0, "time/round_s": 1.0}
            values |= {"eval/loss": 0.25, "eval/accuracy": 0.96} if step % 2 else {}
            values |= {"net/sent_bytes": 2000} if step % 2 else {}
            folder.write(MetricsRecord(node, step, began_s + step + 1.0 - 0.25, values))
    folder.close()
    page = write_page([folder.path], tmp_path / "killed.html")
    show(desktop, page)
    yield desktop
    quiet(desktop, page)


def test_events_are_sorted_on_one_clock(killed):
    cells = killed.run("return [...document.querySelectorAll('#events td:first-child')].map(e => e.textContent)")
    assert cells == ["1.00 s", "11.0 s", "13.9 s", "14.0 s", "14.5 s", "17.5 s"]
    assert "17.5 s" in killed.run("return document.getElementById('tiles').textContent")


def test_every_plot_shows_where_a_board_was_killed_and_its_row_says_so(killed):
    for card in ("parts", "m-train-loss", "m-eval-accuracy", "m-time-round-s", "m-net-sent-bytes", "any"):
        killed.run(f"document.getElementById('{card}').scrollIntoView()")
        killed.until(f"return document.querySelector('#{card} canvas') !== null")
        assert killed.run(MARKED.replace("CARD", f"'{card}'")) > 50, card
    assert killed.run("return edgegossip.run.marks.map(m => edgegossip.run.steps[m.at] + 1).join()") == "3"
    for card in ("time", "gantt"):
        assert "b" in killed.run(f"return document.querySelector('#{card} .fate') && 'b'")
    killed.run("document.querySelector('#gantt input').value = 5")
    killed.run("document.querySelector('#gantt input').dispatchEvent(new Event('change'))")
    text = killed.run("return document.querySelector('#gantt svg').textContent")
    assert "b lost after 3 rounds, at 14.0 s wall: killed by SIGKILL" in text


def test_bytes_of_rounds_without_a_count_are_there_and_counted_once(killed):
    assert killed.run("return [...edgegossip.run.matrix('net/sent_bytes')[0]].join()") == ",".join(["1000"] * 6)
    assert killed.run("return edgegossip.run.bytes().at(-1)") == 8000
    assert killed.run("return edgegossip.run.sum('net/sent_bytes', 1, 0, 5)") == 2000


def test_axes_begin_at_0_end_at_100_percent_and_cut_no_peak(killed):
    share_limits = pytest.importorskip("edgegossip.report.draw", reason="needs matplotlib").share_limits
    for low, high in ((0.95, 0.97), (0.1, 0.9), (0.62, 0.71), (1, 1)):
        shown = killed.run("return yRange(arguments[0], arguments[1], limitsOf('eval/accuracy'))", low, high)
        assert shown == pytest.approx(share_limits(low, high))  # as in plots
    low, high = killed.run("return yRange(42000, 48000, limitsOf('net/sent_bytes'))")
    assert low == 0 and high > 48000
    assert killed.run("return yRange(0.5, 5, limitsOf('train/loss'))")[1] > 5
    assert killed.run("return yRange(40, 61, limitsOf('sys/temperature_c'))")[0] > 30


def test_the_page_says_which_loss_and_counts_rounds_as_the_recipe_does(killed):
    heads = killed.run("return [...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert "Training and test loss" in heads and "Loss" not in heads
    assert "Test loss" in killed.run("return document.getElementById('tiles').textContent")
    rounds = "return [...document.querySelectorAll('.range input[type=number]')].map(e => e.value).join()"
    assert killed.run(rounds) == "1,6"


def test_bytes_and_seconds_of_a_server_run_are_its_boards(desktop, tmp_path):
    folder = RunFolder.create(tmp_path, "server", '[run]\nname = "server"\nmode = "server"\n', {})
    for node, round_s in (("a", 1.0), ("b", 1.0), ("coordinator", 3.0)):
        for step in range(3):
            values = {"net/sent_bytes": 100, "time/wait_s": round_s, "time/round_s": round_s}
            folder.write(MetricsRecord(node, step, round_s * (step + 1), values))
    folder.close()
    show(desktop, write_page([folder.path], tmp_path / "server.html"))
    assert desktop.run("return [edgegossip.run.bytes().at(-1), edgegossip.run.seconds().at(-1)]") == [600, 3]


def test_a_board_that_claims_a_round_beyond_all_reason_does_no_harm(desktop, tmp_path):
    folder = RunFolder.create(tmp_path, "odd", '[run]\nname = "odd"\nmode = "gossip"\n', {})
    for step in (0, 1, 2, 2**52):
        folder.write(MetricsRecord("a", step, 1.0, {"train/loss": 1.0, "time/compute_s": 0.1, "time/round_s": 0.1}))
    folder.close()
    page = write_page([folder.path], tmp_path / "odd.html")
    show(desktop, page)
    assert desktop.run("return [edgegossip.run.length, edgegossip.run.steps[3]]") == [4, 2**52]
    quiet(desktop, page)


def test_a_request_and_an_error_would_be_noticed(desktop, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<script>fetch('http://elsewhere.example/x').catch(() => 0); nobody()</script>")
    desktop.console(), desktop.requests()
    desktop.open(page)
    desktop.until("return performance.now() > 300")
    assert "http://elsewhere.example/x" in desktop.requests()
    assert any("nobody is not defined" in line for line in desktop.console())
