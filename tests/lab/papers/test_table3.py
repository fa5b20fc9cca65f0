"""The paper's Table 3 on the virtual clock, from five fitted numbers a network."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from edgegossip.scale.devices import load_device
from lab.papers import table3 as paper

BITS = {"SGD": 32.0, "8-bit-ElastiQuant": 8.03, "4-bit-ElastiQuant": 4.03, "E-ElastiQuant": 3.05}


@pytest.mark.parametrize("network", list(paper.PAPER))
def test_the_shape_of_the_table(network: str) -> None:
    lines = {
        (line.scheme, line.devices): line for line in paper.lines_of(network, BITS, load_device("jetson-agx-xavier"))
    }
    for scheme in paper.SCHEMES:
        for before, after in ((2, 4), (4, 7)):
            if (scheme, after) == ("8-bit-ElastiQuant", 7):
                continue  # a stall, in the paper as here
            here = lines[scheme, after].t - lines[scheme, before].t
            there = lines[scheme, after].paper.sp
            assert (here < 0) == (there < 0), (scheme, after)
    assert abs(lines["8-bit-ElastiQuant", 7].t / lines["8-bit-ElastiQuant", 4].t - 1) < 0.08
    ordered = sorted(paper.SCHEMES, key=lambda scheme: -lines[scheme, 7].t)
    assert ordered[:2] == ["SGD", "8-bit-ElastiQuant"]
    assert all(abs(line.t / line.paper.t - 1) < 0.15 for line in lines.values())


@pytest.mark.parametrize("network", list(paper.PAPER))
def test_what_the_paper_prints_agrees_with_itself_but_for_roundings_and_one_slip(network: str) -> None:
    """A digit that was mistyped here would stand out: Sp is the difference of printed Ts."""
    for scheme, cells in paper.PAPER[network].items():
        for before, cell in pairwise(cells):
            assert cell.t - before.t == pytest.approx(cell.sp, abs=0.021), scheme
        slips = [cell for cell in cells if abs(sum(cell[:3]) - cell.t) > 0.13]
        assert len(slips) == (scheme == "8-bit-ElastiQuant")


def test_errors_of_what_is_predicted_stand_apart_from_what_is_fitted() -> None:
    """SGD's Tx and the En of 4 bits are what was fitted; the other Tx and En are not."""
    lines = paper.lines_of("ResNet-34", BITS, load_device("jetson-agx-xavier"))
    errors = paper.errors(lines)
    assert [len(off) for off in errors.values()] == [9, 6, 12, 3, 3, 12]
    assert sum(sum(off) for name, off in errors.items() if "SGD" in name) / 3 < 0.05
    exact = [replace(line, tx=line.paper.tx) for line in lines]
    assert max(paper.errors(exact)["predicted, Tx of the quantised schemes"]) == 0.0
    assert paper.errors(exact)["fitted, Cp"] == errors["fitted, Cp"]


def test_conclusions_follow_the_numbers() -> None:
    lines = paper.lines_of("ResNet-34", BITS, load_device("jetson-agx-xavier"))
    said = list(paper.findings("ResNet-34", lines))
    assert said[0].startswith("The sign of Sp is the paper's in 7 of 8 steps; not of: 8-bit-ElastiQuant on 7")
    papers = [
        replace(line, cp=line.paper.cp, en=line.paper.en, tx=line.paper.t - sum(line.paper[:2])) for line in lines
    ]
    said = list(paper.findings("ResNet-34", papers))
    assert said[0] == "The sign of Sp is the paper's in 8 of 8 steps; not of: none."
    assert sum("; as in the paper." in sentence for sentence in said) == 3
