"""Colours: that people with any kind of colour vision tell the parts of a round apart, that words
can be read, and that a scheme has its colour everywhere."""

import itertools

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.report.style import DARK, LIGHT, SERIES, SERIES_DARK, TEXTURES, Figures, places
from edgegossip.telemetry.records import PARTS

# G. Machado et al., "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# 2009, at severity 1.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(color):
    channels = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(color, sight="usual"):
    """CIE L*a*b* of a colour as it is seen."""
    t = XYZ @ np.clip(np.array(SIGHT[sight]) @ linear(color), 0, 1) / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    """WCAG's, from 1 to 21."""
    low, high = sorted(0.05 + XYZ[1] @ linear(color) for color in (one, other))
    return high / low


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_the_parts_of_a_round_are_told_apart(theme, sight):
    apart = {
        pair: float(np.linalg.norm(lab(theme[pair[0]], sight) - lab(theme[pair[1]], sight)))
        for pair in itertools.combinations(PARTS, 2)
    }
    assert min(apart.values()) > 12, apart
    busy = [apart[pair] for pair in itertools.combinations(("compute", "encode", "transmit", "decode"), 2)]
    assert min(busy) > 25, apart
    assert abs(lab(theme["encode"], sight)[0] - lab(theme["transmit"], sight)[0]) > 20  # in print too
    assert "transmit" in TEXTURES and "encode" not in TEXTURES


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_words_can_be_read(theme):
    for ink, paper in itertools.product(("ink", "muted", "accent", "alarm", "again", "good"), ("bg", "card")):
        assert contrast(theme[ink], theme[paper]) >= 4.5, (ink, paper)


def test_both_themes_have_the_same_things():
    assert set(LIGHT) == set(DARK) and len(SERIES) == len(SERIES_DARK) == len({*SERIES}) == len({*SERIES_DARK})


def test_a_scheme_has_its_colour_however_it_is_called_and_whoever_is_beside_it():
    named = ["dpsgd, 4-bit-elastiquant", "choco-4-bit-elastiquant", "4-bit-elastiquant", "server-4-bit-elastiquant"]
    assert {places([name])[name] for name in named} == {1}
    assert {places([name])[name] for name in ("sgd", "dpsgd", "dpsgd, fp32", "choco-sgd, fp32")} == {0}
    for beside in ([], ["sgd"], ["co3", "x"]):
        assert places([*beside, "choco-sgd, topk"])["choco-sgd, topk"] == places(["topk"])["topk"]
    assert places(["qsgd levels=4"]) == {"qsgd levels=4": places(["qsgd"])["qsgd"]}  # and not that of plain sgd


def test_no_two_lines_of_a_figure_have_one_colour():
    names = list(codecs.names())
    for some in (names[:10], names[5:15], ["s = 1", "s = 2", "fp32", "dpsgd, fp32"]):
        found = places(some)
        assert list(found) == some and len(set(found.values())) == len(some) and max(found.values()) < len(SERIES)
    assert sorted(places(names).values()) == list(range(len(names)))


def test_figures_have_a_name_and_a_title_or_none(tmp_path):
    assert Figures(plot_format="pdf").path(tmp_path, "time") == tmp_path / "time.pdf"
    assert Figures().title("x") == "x" and Figures(plot_titles=False).title("x") == ""
