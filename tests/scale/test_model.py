"""A cell on a virtual clock: real frames, a link that is shared, and boards of profiles."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from edgegossip import recipe as recipes
from edgegossip.recipe import with_settings
from edgegossip.scale import cells
from edgegossip.scale.devices import load_device
from edgegossip.scale.model import ModelBackend
from edgegossip.types import ConfigError

BASE = recipes.load("quickstart-gossip", ["data.train_examples=960", "training.batch_size=16"])
HOW = {"rate_bps": 1e6, "link": "shared"}


def _cells(names: str, devices: tuple[int, ...], **how: object) -> list[cells.Cell]:
    return cells.make_cells(BASE, cells.parse_schemes(names), devices, "model", {**HOW, **how}, 960, 0)


@pytest.mark.parametrize("scheme", ["choco-4-bit-elastiquant", "server-4-bit-elastiquant"])
def test_transmission_takes_what_the_bytes_take(scheme: str) -> None:
    (cell,), place = _cells(scheme, (3,)), ModelBackend()
    place.check(cell)
    row = place.run(cell)["row"]
    link_s = cell.epoch_rounds * 8 * row["round_bytes"]["link"] / 1e6
    assert row["tx_s"] + row["wait_s"] + row["de_s"] == pytest.approx(link_s, rel=0.1)
    assert row["t_s"] == pytest.approx(sum(row[key] for key in ("cp_s", "en_s", "tx_s", "de_s", "wait_s")))
    assert 4.0 < row["bits_per_value"] < 5.5 and row["round_bytes"]["overhead"] < 6 * 400


def test_a_link_of_its_own_is_a_boards_alone() -> None:
    (shared,), (own,) = _cells("sgd", (4,)), _cells("sgd", (4,), link="each")
    both = [ModelBackend().run(cell)["row"] for cell in (shared, own)]
    assert both[0]["tx_s"] == pytest.approx(4 * both[1]["tx_s"], rel=0.1)


def test_boards_of_a_profile() -> None:
    (cell,) = _cells("sgd", (2,))
    slow = ModelBackend(device="raspberry-pi-3").run(cell)["row"]
    fast = ModelBackend(device="raspberry-pi-5").run(cell)["row"]
    assert slow["cp_s"] > 2 * fast["cp_s"] and slow["tx_s"] == pytest.approx(fast["tx_s"], rel=0.05)


def test_integer_training_computes_too() -> None:
    """What torch counts of integer kernels is nothing; as many operations a second as the profile
    says, in either."""
    seconds = []
    for precision in ("fp32", "int8"):
        recipe = with_settings(BASE, {"training.precision": precision})
        (cell,) = cells.make_cells(recipe, cells.parse_schemes("sgd"), (2,), "model", HOW, 960, 0)
        seconds.append(ModelBackend(device="raspberry-pi-4").run(cell)["row"]["cp_s"])
    pi = load_device("raspberry-pi-4")
    assert seconds[0] > 0 and seconds[1] == pytest.approx(seconds[0] * pi.training_rate() / pi.training_rate("int8"))


@pytest.mark.parametrize(("scheme", "fleet", "said"), [("sgd", "paper-7-xaviers", "7"), ("ad-psgd", "", "no rounds")])
def test_what_is_not_modelled_is_said(scheme: str, fleet: str, said: str) -> None:
    (cell,) = _cells(scheme, (18,))
    with pytest.raises(ConfigError, match=said):
        ModelBackend(fleet=fleet).check(cell)
