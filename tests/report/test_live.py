from __future__ import annotations

import io
import json
import sys
import types

import pytest

from edgegossip.report.live import Live, line_output, progress_line
from edgegossip.report.progress import FleetLines
from edgegossip.telemetry.records import EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, read_run


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.s = 0.0

    def __call__(self):
        return self.s


def _round(node, step, t_s=0.0, **extra):
    return MetricsRecord(node, step, t_s, {"train/loss": 0.5, "net/sent_bytes": 1000, **extra})


def _event(node, name, text, **fields):
    return EventRecord(node, 1.0, name, text, fields)


@pytest.fixture
def plain():
    """(display, what it printed, clock) without a terminal."""
    stream, clock = io.StringIO(), Clock()
    return Live(["a", "b"], 10, stream=stream, environ={}, clock=clock), stream, clock


def test_plain_lines_come_at_most_every_two_seconds(plain):
    live, stream, clock = plain
    for step in range(10):
        clock.s = 0.5 * step
        live.write(_round("a", step))
        live.write(_round("b", step))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "round 4/10" in lines[0] and "loss 0.5000" in lines[0] and "sent 9.00 kB" in lines[0]
    clock.s = 9.0
    live.write(_event("b", "waiting", "for a"))
    said = stream.getvalue()
    clock.s = 20.0
    live.write(_event("b", "waiting", "for a"))
    assert stream.getvalue() == said  # nothing is new
    live.close()
    live.close()
    assert stream.getvalue().splitlines()[-1].split("  ")[1] == "round 10/10"


def test_a_lost_board_is_said_at_once_and_once(plain):
    live, stream, _ = plain
    live.write(_event("b", "lost", "lost b: its process was killed by SIGKILL"))
    live.write(_event("a", "peer-down", "lost b: refused", peer="b"))
    assert stream.getvalue() == "1.00 s  !! lost b: its process was killed by SIGKILL\n"
    live.write(_round("a", 4))
    live.close()
    assert "round 5/10" in stream.getvalue() and stream.getvalue().rstrip().endswith("lost b")


def test_nobody_says_more_of_a_board_that_is_lost_and_one_cause_is_said_once(plain):
    live, stream, _ = plain
    live.write(_event("b", "error", "no file data/b"))
    live.write(_event("a", "notice", "cannot reach b at 127.0.0.1:1: connection refused; trying again", peer="b"))
    live.write(_event("a", "peer-left", "b left", peer="b"))
    assert stream.getvalue() == ""
    for text in ("refused a board: no data", "refused a board: no data", "refused a board: no model"):
        live.write(_event("coordinator", "refused", text))
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["no data", "no model"]


def test_neighbours_say_once_that_a_peer_is_gone_and_once_that_it_is_back(plain):
    live, stream, _ = plain
    for node in "ab":
        live.write(_event(node, "peer-down", "lost c", peer="c"))
    for node in "ab":
        live.write(_event(node, "peer-up", "c is back", peer="c"))
    assert stream.getvalue().splitlines() == ["1.00 s  !! a: lost c", "1.00 s  a: c is back"]


def test_one_line_for_what_members_and_connections_both_tell(plain):
    live, stream, _ = plain
    for name, text in (
        ("member-here", "b is here, at 10.0.0.2:7700"),
        ("member-left", "b left"),
        ("peer-left", "b left"),
        ("member-here", "b was restarted, at 10.0.0.2:7700"),
        ("peer-up", "b is back"),
        ("member-dead", "b is dead: we got no answer; 1 of 2 members are here"),
        ("peer-down", "lost b: we got no answer; 1 of 2 members are here"),
        ("member-here", "b was restarted, at 10.0.0.2:7701"),
        ("member-dead", "b is dead: again"),
    ):
        live.write(_event("a", name, text, peer="b"))
    assert stream.getvalue().splitlines() == [
        "1.00 s  a: b is here, at 10.0.0.2:7700",
        "1.00 s  a: b left",
        "1.00 s  a: b was restarted, at 10.0.0.2:7700",
        "1.00 s  !! a: b is dead: we got no answer; 1 of 2 members are here",
        "1.00 s  a: b was restarted, at 10.0.0.2:7701",
        "1.00 s  !! a: b is dead: again",
    ]


def test_a_board_that_has_finished_is_not_missed(plain):
    live, stream, _ = plain
    live.write(_event("b", "finished", "b finished"))
    live.write(_event("a", "peer-down", "lost b: closed", peer="b"))
    live.write(_event("a", "peer-left", "b left", peer="b"))
    assert stream.getvalue() == ""
    for node in "ac":
        live.write(_event(node, "peer-left", "d left", peer="d"))
    assert stream.getvalue() == "1.00 s  a: d left\n"


@pytest.mark.parametrize(("rounds", "said"), [(10, []), (9, ["1.00 s  b: a left"])])
def test_a_board_that_has_done_all_rounds_is_not_missed(plain, rounds, said):
    """Its neighbours see it go before it has said that it finished."""
    live, stream, _ = plain
    live.write(_round("a", rounds - 1))
    before = len(stream.getvalue())
    live.write(_event("b", "peer-left", "a left", peer="a"))
    assert stream.getvalue()[before:].splitlines() == said


@pytest.mark.parametrize("size", [1000.0, 3.0])
def test_inputs_in_other_units_are_said_once_when_all_boards_have_told(plain, size):
    live, stream, _ = plain
    for node, p in (("a", 1.0), ("b", size), ("b", size)):  # the last one starts again
        live.write(_event(node, "holds", f"{node} holds 9 examples", sizes=json.dumps({"column p": p})))
        live.write(_event(node, "started", f"{node} trains 9 values"))
    said = [line for line in stream.getvalue().splitlines() if "holds 9" not in line]
    alarm = "1.00 s  !! column p is about 1000 times as large on b as on others: give all boards the same units"
    assert said == [f"{alarm}, or set data.normalise = board"] * (size > 20)


def test_who_waits_is_shown_and_forgotten_with_the_next_round(plain):
    live, stream, clock = plain
    clock.s = 3.0
    live.write(_event("a", "waiting", "round 3: waiting for b for 5 s"))
    assert "a: round 3: waiting for b for 5 s" in stream.getvalue()
    live.write(_round("a", 3, t_s=2.0))
    clock.s = 6.0
    live.write(_round("b", 3, t_s=2.0))
    assert "waiting" not in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("stream", "environ"),
    [
        (io.StringIO(), {}),
        (Terminal(), {"NO_COLOR": "1"}),
        (Terminal(), {"TERM": "dumb"}),
    ],
)
def test_no_control_characters_without_a_willing_terminal(stream, environ):
    live = Live(["a"], 2, stream=stream, environ=environ)
    live.write(_event("a", "refused", "refused \x1b[31mred\x07\rtext"))
    live.write(_round("a", 0))
    live.close()
    text = stream.getvalue()
    assert "refused" in text and not set(text) & set("\x1b\x07\r")


def test_no_rich_is_plain_lines(monkeypatch):
    monkeypatch.setattr("edgegossip.report.live.find_spec", lambda name: None)
    stream = Terminal()
    live = Live(["a"], 2, stream=stream, environ={})
    live.write(_round("a", 0))
    live.close()
    assert "round 1/2" in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_on_a_terminal_every_board_has_a_line_and_events_stay(monkeypatch):
    pytest.importorskip("rich", reason="an extra: pip install '.[report]'")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    live = Live(["a", "b"], 4, stream=stream, environ={"TERM": "xterm-256color"})
    live.write(_round("a", 0, **{"eval/loss": 0.5, "eval/accuracy": 0.75, "time/compute_s": 2.0, "time/round_s": 2.5}))
    live.write(_event("b", "lost", "lost b: [red]not markup[/red] \x1b]0;title\x07"))
    live.close()
    text = stream.getvalue()
    assert "75.00 %" in text and "█" * 24 in text and "1/4" in text
    assert "[red]not markup[/red]" in text and "\x1b]0;" not in text
    assert text.index("lost b: ") < text.rindex("75.00 %")
    assert text.endswith("\x1b[?25h"), "the cursor is shown again"


def test_disabled_shows_nothing_and_a_closed_stream_ends_nothing():
    stream = io.StringIO()
    quiet = Live(["a"], 2, stream=stream, enabled=False)
    quiet.write(_round("a", 0))
    quiet.write(_event("a", "lost", "lost a"))
    quiet.close()
    assert stream.getvalue() == ""
    gone = Live(["a"], 2, stream=stream, environ={})
    stream.close()
    gone.write(_event("a", "lost", "lost a"))
    gone.close()


def test_what_may_come_every_round_is_said_once_a_minute(plain):
    live, stream, _ = plain
    for k in range(130):
        missing = "ab"[k % 2]
        text = f"round {k}: went on with 1 answers, without {missing}"
        live.write(EventRecord("coordinator", 1.0 * k, "stragglers", text, {"missing": missing}))
        text = f"the answer of {missing} came after its round was over"
        live.write(EventRecord("coordinator", 1.0 * k + 0.5, "late", text, {"peer": missing}))
    live.write(_event("coordinator", "refused", "refused the update of a: garbage", peer="a"))
    lines = [line.split("coordinator: ")[1] for line in stream.getvalue().splitlines()]
    assert lines[:2] == ["round 0: went on with 1 answers, without a", "the answer of a came after its round was over"]
    for k in (60, 120):
        assert f"round {k}: went on with 1 answers, without a (and 59 like it since the last one)" in lines
    assert len(lines) == 7 and lines[-1].endswith("garbage")


@pytest.mark.parametrize("name", ["listening", "started"])
def test_a_run_that_goes_on_shows_its_round_from_the_start(plain, name):
    live, stream, _ = plain
    live.write(_event("coordinator", name, "coordinator listens", round=6))
    live.write(_event("a", "joined", "a joined"))
    live.close()
    assert "round 6/10" in stream.getvalue().splitlines()[-1]


def test_a_board_that_starts_again_does_not_speak_for_the_others(plain):
    live, stream, _ = plain
    live.write(_event("a", "started", "a goes on", round=6))
    live.close()
    assert "round 0/10" in stream.getvalue().splitlines()[-1]


def test_the_display_goes_by_the_runs_own_score():
    for scores, said in (
        ({"mae": 0.25}, "test mae 0.2500"),
        ({}, ""),
        ({"accuracy": 0.5, "f1": 0.125}, "test accuracy 50.00 %"),
    ):
        fleet = FleetLines(["a", "b"], 5)
        assert "accuracy" not in progress_line(fleet)  # nobody knows yet
        for name in ("a", "b"):
            fleet.update(_round(name, 0, **{"eval/loss": 1.0, **{f"eval/{k}": v for k, v in scores.items()}}))
        line = progress_line(fleet)
        assert said in line and ("accuracy" in line) == ("accuracy" in scores) and "f1" not in line


def test_the_score_is_the_coordinators_once_it_tells_one_and_rounds_are_the_boards():
    """It weighs by examples, and a summary goes by it. The training loss is the boards'."""
    fleet = FleetLines(["a", "b"], 5)
    for name, score in (("a", 0.5), ("b", 1.0)):
        fleet.update(_round(name, 0, **{"eval/accuracy": score}))
    assert "accuracy 75.00 %" in progress_line(fleet)
    fleet.update(MetricsRecord("coordinator", 1, 2.0, {"train/loss": 9.0, "eval/accuracy": 0.875}))
    assert "accuracy 87.50 %" in progress_line(fleet) and "loss 0.5000" in progress_line(fleet)
    for name in ("a", "b"):
        fleet.event(_event(name, "lost", f"lost {name}: nan"))
    assert "round 1/5" in progress_line(fleet)


def test_a_run_that_goes_on_does_not_begin_at_round_0(tmp_path):
    """What was said before is not said again; whom neighbours had lost they can lose again. Rounds
    that a board does again are no new ones."""
    folder = RunFolder.create(tmp_path, "r", "", {})
    for node in ("a", "b"):
        for step in range(4):
            folder.write(_round(node, step, t_s=step + 1.0))
    folder.write(_event("a", "peer-down", "lost b", peer="b"))
    folder.write(_event("a", "doubt", "a has odd data"))
    folder.write(_event("b", "error", "b: out of memory"))
    folder.write(_event("b", "waiting", "round 4: waiting for a"))
    folder.close()
    stream, clock = io.StringIO(), Clock()
    live = Live(["a", "b"], 10, stream=stream, environ={}, clock=clock, before=read_run(folder.path))
    live.write(EventRecord("a", 5.0, "peer-down", "lost b", {"peer": "b"}))
    live.write(EventRecord("a", 5.0, "doubt", "a has odd data"))
    live.write(MetricsRecord("a", 2, 5.5, {}))
    clock.s = 3.0
    live.write(EventRecord("a", 6.0, "listening", "a listens"))
    lost, doubt, line = stream.getvalue().splitlines()
    assert (lost, doubt) == ("5.00 s  !! a: lost b", "5.00 s  !! a has odd data")
    assert line == "6.00 s wall  round 4/10  training loss 0.5000  sent 8.00 kB"


def test_bytes_of_a_server_run_count_once():
    """What a coordinator sends is what its boards receive."""
    fleet = FleetLines(["a", "b"], 5)
    for name in ("a", "b", "coordinator"):
        fleet.update(_round(name, 0, **{"net/sent_bytes": 1000}))
    assert "sent 2.00 kB" in progress_line(fleet)


def test_frames_stand_in_where_the_system_does_not_tell_what_sockets_sent():
    fleet = FleetLines(["a"], 4)
    frames = {"net/payload_bytes": 1000, "net/overhead_bytes": 20}
    for step in range(2):
        fleet.update(MetricsRecord("a", step, 0.0, {"train/loss": 0.5, **frames}))
    assert "sent 2.04 kB" in progress_line(fleet)
    fleet.update(_round("a", 2, **frames, **{"net/sent_bytes": 5000}))
    fleet.update(MetricsRecord("a", 3, 0.0, frames))  # its sockets were not read in this round
    assert "sent 5.00 kB" in progress_line(fleet)


def test_in_how_many_rounds_a_model_was_unchanged_is_left_to_the_verdict():
    fleet = FleetLines(["a"], 4)
    first = EventRecord("a", 1.0, "unchanged", "in round 0 nothing of the model changed")
    assert (notice := fleet.event(first)) is not None and notice.alarm
    counts = {"rounds": 4, "unchanged": 1, "elsewhere": 0}
    assert fleet.event(EventRecord("a", 2.0, "unchanged", "nothing changed in 1 of 4 rounds", counts)) is None


def test_the_run_ends_with_its_boards_and_not_with_a_look_at_their_models():
    fleet = FleetLines(["a"], 1)
    fleet.event(EventRecord("a", 2.0, "finished", "a finished"))
    fleet.event(EventRecord("a", 9.0, "compared", "a is like the others", {"distance": 0.0, "length": 1.0}))
    assert progress_line(fleet).startswith("2.00 s wall")


class Notebook:
    """What IPython offers in a kernel: a text below the cell that is replaced."""

    def __init__(self, monkeypatch):
        self.shown, here = [], self

        class Handle:
            def update(self, data, raw):
                assert raw
                here.shown[-1] = data["text/plain"]

        def display(data, raw, display_id):
            assert raw and display_id
            here.shown.append(data["text/plain"])
            return Handle()

        shell = types.SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))


def test_in_a_notebook_a_few_lines_are_replaced(monkeypatch):
    notebook, stream, clock = Notebook(monkeypatch), io.StringIO(), Clock()
    live = Live(["a", "b"], 1000, stream=stream, environ={}, clock=clock)
    for step in range(100):
        clock.s += 0.1
        live.write(_round("a", step))
        live.write(_event("a", "notice", f"sentence {step}"))
    live.close()
    (text,) = notebook.shown
    *said, last = text.splitlines()
    assert [line.split("  ")[1] for line in said] == [f"a: sentence {k}" for k in range(88, 100)]
    assert "round 0/1000" in last and stream.getvalue() == ""


def test_lines_of_a_study_are_replaced_in_a_notebook(monkeypatch, capsys):
    line_output()("outside")
    assert capsys.readouterr().err == "outside\n"
    notebook = Notebook(monkeypatch)
    say = line_output()
    for k in range(30):
        say(f"line {k}")
    assert notebook.shown == ["\n".join(f"line {k}" for k in range(18, 30))] and capsys.readouterr().err == ""


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    Notebook(monkeypatch)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
    stream = io.StringIO()
    live = Live(["a"], 2, stream=stream, environ={}, clock=Clock())
    live.close()
    assert "round 0/2" in stream.getvalue()
