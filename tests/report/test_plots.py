from __future__ import annotations

import sys

import numpy as np
import pytest

from edgegossip.report.plots import run_title, write_plots
from edgegossip.report.style import LIGHT, Figures
from edgegossip.telemetry.records import EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.types import DataError, HostError


def _pixels(path):
    from matplotlib.image import imread

    return imread(path)


def test_all_plots_are_drawn_and_show_something(drawn):
    assert list(drawn) == ["learning.png", "time.png", "partition.png"]
    assert all(path.parent.name == "plots" for path in drawn.values())
    for path in drawn.values():
        image = np.round(255 * _pixels(path)[..., :3]).astype(np.uint32)
        assert image.shape[0] > 200 and image.shape[1] > 1000
        assert np.unique(image @ np.array([65536, 256, 1], dtype=np.uint32)).size > 100


@pytest.mark.parametrize("part", ["compute", "transmit", "wait"])
def test_the_length_of_a_bar_is_its_time(drawn, part):
    """Three boards spent 0.2 s in each part, the lost one 0.1 s: its pieces are half as long."""
    image = np.round(255 * _pixels(drawn["time.png"])[..., :3]).astype(int)
    color = [int(LIGHT[part][k : k + 2], 16) for k in (1, 3, 5)]
    there = np.abs(image - color).max(axis=2) <= 1  # [rows, columns]
    lengths = np.array([_longest(np.flatnonzero(row)) for row in there])
    rows = np.flatnonzero(lengths > 60)  # more than the legend's
    bars = [lengths[bar].max() for bar in np.split(rows, np.flatnonzero(np.diff(rows) > 5) + 1)]
    long, short = max(bars), min(bars)
    assert 150 < long < 260 and abs(short - long / 2) <= 3 and len(bars) == 4


def _longest(columns, gap=12):
    """Of columns that belong together: a texture leaves gaps."""
    if not columns.size:
        return 0
    pieces = np.split(columns, np.flatnonzero(np.diff(columns) > gap) + 1)
    return max(piece[-1] - piece[0] + 1 for piece in pieces)


def test_the_title_says_what_was_run(run_dir):
    run = read_run(run_dir)
    assert run_title(run, summarise(run)) == "demo: gossip (ring, dpsgd), minmax8, 4 boards, 20 rounds"


def test_a_run_of_one_round_without_evaluation_or_bytes_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    folder = RunFolder.create(tmp_path, "x", "", {})
    folder.metrics("a", 0, {"train/loss": 1.0})
    folder.close()
    assert [p.name for p in write_plots(folder.path)] == ["learning.png"]


def test_a_run_without_records_is_one_sentence(tmp_path):
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    folder = RunFolder.create(tmp_path, "x", "", {})
    folder.close()
    with pytest.raises(DataError, match="no records to draw"):
        write_plots(folder.path)


def test_more_classes_than_the_palette_has_colours():
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    from edgegossip.report.draw import class_colors

    assert [len(set(class_colors(n))) for n in (1, 2, 10, 11, 100)] == [1, 2, 10, 11, 100]


def test_without_matplotlib_the_sentence_says_what_to_install(run_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HostError, match="pip install matplotlib"):
        write_plots(run_dir)


@pytest.mark.parametrize("scores", [{}, {"eval/mae": 0.5}])
def test_a_run_is_drawn_with_the_score_that_it_goes_by_or_none(tmp_path, scores):
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    folder = RunFolder.create(tmp_path, "x", "", {})
    for step in range(4):
        folder.metrics("a", step, {"train/loss": 1.0, "eval/loss": 1.0, "net/sent_bytes": 10, **scores})
    folder.close()
    (path,) = (p for p in write_plots(folder.path) if p.name == "learning.png")
    assert (_pixels(path).shape[0] < 700) == (not scores)  # two rows of panels, or one


@pytest.fixture
def figure(tmp_path, monkeypatch):
    """Draws records and events, and returns the picture of that name."""
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    from matplotlib.figure import Figure

    drawn = {}
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.setdefault(path.name, figure))

    def make(*records, titles=True, name="learning.png", counts=((1,), (1,))):
        folder = RunFolder.create(tmp_path, "x", '[run]\nname = "x"\nmode = "server"\n', {})
        folder.write_partition("ab", [str(k) for k in range(len(counts[0]))], counts)
        for record in records:
            folder.write(record)
        folder.close()
        write_plots(folder.path, Figures(plot_titles=titles))
        return drawn[name]

    return make


def _round(node, step, **values):
    values = {name.replace("_", "/", 1): v for name, v in values.items()}
    return MetricsRecord(node, step, step + 1.0, {"time/round_s": 1.0, "net/sent_bytes": 1000, **values})


def test_a_partition_has_a_bar_a_board_with_its_number_inside_the_picture(figure):
    (axes,) = figure(_round("a", 0), name="partition.png", counts=[[40, 2], [10, 90]]).axes
    assert [(bar.get_x(), bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in axes.patches] == [
        *((0, 0, 40), (0, 1, 10)),
        *((40, 0, 2), (10, 1, 90)),
    ]
    said = {text.get_text(): text.get_position() for text in axes.texts}
    assert set(said) == {"42", "100", "40", "10", "90"} and "2" not in said  # no room for that one
    assert 42 < said["42"][0] < said["100"][0] < axes.get_xlim()[1] and axes.get_xlim()[0] == 0
    assert axes.get_ylim()[0] > 1.36 and axes.get_ylim()[1] < -0.36 and axes.get_xlabel() == "training examples"


def _legend(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize(
    ("low", "high", "limits"),
    [
        (0.1, 0.93, (0, 1)),
        (0.91, 0.975, (0.9, 1)),
        (0.62, 0.71, (0.6, 0.75)),
        (0.5, 0.5, (0.45, 0.55)),
        (1, 1, (0.95, 1)),
    ],
)
def test_an_axis_of_accuracies_tells_them_apart(low, high, limits):
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    from edgegossip.report.draw import share_limits

    assert share_limits(low, high) == pytest.approx(limits)


@pytest.mark.parametrize("form", ["svg", pytest.param("pdf", marks=pytest.mark.slow)])
def test_plots_for_a_paper(run_dir, form):
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    plain = write_plots(run_dir, Figures(plot_format=form, plot_titles=False))
    assert [p.name for p in plain] == [f"{name}.{form}" for name in ("learning", "time", "partition")]
    assert plain[0].read_bytes().startswith(b"%PDF" if form == "pdf" else b"<?xml")
    before = [p.read_bytes() for p in plain]
    again = write_plots(run_dir, Figures(plot_format=form, plot_titles=False))
    assert again == plain and [p.read_bytes() for p in again] == before  # written over


def test_a_title_is_left_out_and_panels_have_letters(figure):
    drawn = figure(*(_round("a", k, train_loss=1.0, eval_accuracy=0.5) for k in range(4)), titles=False)
    assert drawn.get_suptitle() == ""
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["(a)", "(b)", "(c)", "(d)"]


def test_an_accuracy_is_in_per_cent_and_bytes_are_the_boards(figure):
    records = [_round(node, k, train_loss=1.0) for node in "ab" for k in range(4)]
    records += [_round("coordinator", k, eval_loss=0.1, eval_accuracy=1.0 - 0.01 * (k % 2)) for k in range(4)]
    drawn = figure(*records)
    loss, _, accuracy, against = drawn.axes
    assert accuracy.get_ylim() == pytest.approx((0.95, 1)) and loss.get_ylim()[0] == 0
    assert "(8.00 kB in all)" in against.get_xlabel() and accuracy.get_xlabel() == "seconds of training"
    assert loss.get_ylabel() == "training and test loss"
    assert _legend(drawn) == ["training, every board", "training, mean of 2 boards", "test, by the coordinator"]


def test_no_peak_is_cut(figure):
    drawn = figure(*(_round("a", k, train_loss=100.0 if k == 700 else 1.0) for k in range(1000)))
    assert drawn.axes[0].get_ylim()[1] > 100


def test_every_panel_shows_where_a_board_was_lost_and_where_one_was_started_again(figure):
    records = [_round("a", k, train_loss=1.0, eval_accuracy=0.5) for k in range(8)]
    records += [_round("b", k, train_loss=1.0) for k in range(5)]
    records.append(EventRecord("a", 2.5, "restarted", "a is started again: it was killed"))
    records.append(EventRecord("b", 5.5, "lost", "lost b: it was killed"))
    drawn = figure(*records)
    assert _legend(drawn)[-2:] == ["a board was lost", "a board was started again"]
    for axes, x in zip(drawn.axes, ([5.0, 2.0], [10_000, 4_000]) * 2, strict=True):
        marks = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() in ("--", ":")]
        assert marks == x


def test_every_panel_shows_where_the_run_was_resumed(figure):
    records = [_round(node, k, train_loss=1.0, eval_accuracy=0.5) for node in "ab" for k in range(8)]
    records += [EventRecord(node, 4.5, "resumed", f"{node} goes on: the run is resumed") for node in "ab"]
    drawn = figure(*records)
    assert _legend(drawn)[-1] == "the run was resumed"
    assert [axes.lines[-1].get_xdata()[0] for axes in drawn.axes] == [4.0, 8_000] * 2
