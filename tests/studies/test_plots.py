"""What goes into which panel, colour and mark; the figures are drawn and show something."""

import sys

import numpy as np
import pytest

from edgegossip.recipe import Recipe
from edgegossip.studies.cases import StudyPlan, make_cases, product
from edgegossip.studies.summary import MOST_PANELS, variants, write_plots
from edgegossip.types import HostError
from tests.drawn import drawn_texts


def fake(case, accuracy=0.5, distances=((0, 1.0), (5, 0.1)), state="done"):
    curve = [{"round": 2, "sent_bytes": 400, "accuracy": accuracy / 2, "train_loss": 2.0 - accuracy}]
    figures = {"bits_per_value": 8.0, "sent_bytes": {"payload": 700, "overhead": 100}, "nodes": 4}
    rates = {"accuracy": {"averaged": accuracy}, "curve": curve, "consensus_distance": [list(d) for d in distances]}
    return {"key": case.key, "state": state, **figures, **rates}


def faked(cases, **more):
    return {case.key: fake(case, 0.5 + case.seed / 10, **more) for case in cases}


def looks(cases):
    return [(v.panel, v.color, v.mark) for v in variants(cases, faked(cases))]


def test_panels_are_problems_colours_are_algorithms_marks_are_the_rest():
    points = product([("data.skew", [0.0, 0.9]), ("run.mode", ["gossip", "server"]), ("codec.name", ["fp32", "bf16"])])
    assert looks(make_cases(Recipe(), StudyPlan(), points))[:3] == [
        ("skew=0.0", "gossip", "fp32"),
        ("skew=0.0", "gossip", "bf16"),
        ("skew=0.0", "server", "fp32"),
    ]


def test_what_another_key_determines_is_not_named():
    point = {"codec.name": "topk", "codec.params.ratio": 0.01, "gossip.params.eta": 0.01}
    other = {"codec.name": "topk", "codec.params.ratio": 0.1, "gossip.params.eta": 0.1}
    found = looks(make_cases(Recipe(), StudyPlan(), [point, other, {"codec.name": "fp32"}, {"codec.name": "bf16"}]))
    assert [color for _, color, _ in found] == ["topk", "topk", "fp32", "bf16"]
    assert [mark for _, _, mark in found] == ["ratio=0.01", "ratio=0.1", "", ""]


def test_a_table_whose_keys_are_named_is_not_named_as_well():
    points = [{"codec.name": "qsgd", "codec.params": {}, "codec.params.bits": bits} for bits in (2, 4)]
    found = looks(make_cases(Recipe(), StudyPlan(), [{"codec.name": "elasticl"}, *points]))
    assert [mark for _, _, mark in found] == ["", "bits=2", "bits=4"]


def test_too_many_problems_go_into_one_panel():
    skews = [k / 20 for k in range(MOST_PANELS + 1)]
    found = looks(make_cases(Recipe(), StudyPlan(), [{"data.skew": s} for s in skews]))
    assert {panel for panel, _, _ in found} == {""} and len({color for _, color, _ in found}) == len(skews)


def test_points_are_means_over_the_seeds_that_did_not_fail():
    cases = make_cases(Recipe(), StudyPlan(), [{}], (1, 3, 5))
    results = faked(cases)
    results[cases[2].key]["state"] = "failed"
    (found,) = variants(cases, results)
    assert found.value == pytest.approx(0.7) and found.std == pytest.approx(0.02**0.5)
    assert found.by_bytes == [(100, pytest.approx(0.35)), (200, pytest.approx(0.7))]
    assert found.loss_by_bits == [(800, pytest.approx(1.3))]
    assert found.by_round == [(0, 1.0), (5, pytest.approx(0.1))]


def test_the_figures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    from matplotlib.image import imread

    points = product([("data.skew", [0.0, 0.8]), ("codec.name", ["fp32", "bf16"])])
    cases = make_cases(Recipe(), StudyPlan(), points, (1, 2))
    written = write_plots(tmp_path, cases, faked(cases))
    assert [path.name for path in written] == [
        "accuracy-bits.png",
        "accuracy-bytes.png",
        "loss-bits.png",
        "consensus.png",
    ]
    for path in written:
        image = imread(path)[..., :3]
        assert image.shape[0] > 500 and np.unique(np.round(255 * image).astype(int) @ [65536, 256, 1]).size > 50


def test_figures_without_data_are_left_out(tmp_path):
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    cases = make_cases(Recipe(), StudyPlan(), [{}])
    assert len(write_plots(tmp_path, cases, faked(cases, distances=()))) == 3
    assert write_plots(tmp_path, cases, faked(cases, state="failed")) == []


def test_without_matplotlib_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HostError, match="pip install matplotlib"):
        write_plots(tmp_path, [], {})


def test_names_are_drawn_as_they_are_and_axes_need_no_mathematics(tmp_path):
    plots = pytest.importorskip("edgegossip.sweep.plots", reason="an extra: pip install '.[report]'")
    with drawn_texts() as drawn:
        colors, marks, points = ("_a$b$", "two$$"), ("$\\frac", "c\\$"), [(1.0, 1e-3), (2.0, 0.5)]
        series = [plots.PlotSeries("$x$ &", color, mark, points) for color in colors for mark in marks]
        axes = plots.Axis("boards $n$"), plots.Axis("distance", log=10)
        plots.panels(series, "$t$", tmp_path / "a.png", *axes, "curves")
        assert {*colors, *marks, "$x$ &", "$t$", "boards $n$"} <= set(drawn)
        plots.losses([(name, [[1.0, 2e3, 1.0], [2.0, 4e3, 0.5]]) for name in colors], "t", tmp_path / "b.png")
    assert not any(drawn.values())


@pytest.mark.parametrize("kind", ["points", "curves"])
def test_an_accuracy_never_passes_100_and_its_axis_tells_high_ones_apart(kind, tmp_path, monkeypatch):
    plots = pytest.importorskip("edgegossip.sweep.plots", reason="needs matplotlib")
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    series = [plots.PlotSeries(panel, "a", "", [(1.0, y), (2.0, 1.0)][: 1 + (kind == "curves")]) for panel, y in
              (("one", 1.0), ("two", 0.97))]  # fmt: skip
    plots.panels(series, "x", tmp_path / "x.png", plots.Axis("x"), plots.Axis("y", unit="%"), kind)
    assert [axes.get_ylim() for axes in drawn[0].axes if axes.lines] == [pytest.approx((0.95, 1.0))] * 2
