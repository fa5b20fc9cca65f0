"""A cell on a virtual clock: real frames, a link that is shared, work that is measured or a
profile's."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from edgegossip import recipe as recipes
from edgegossip.recipe import with_settings
from edgegossip.scale import cells, emulated
from edgegossip.scale.devices import load_device
from edgegossip.scale.model import ModelBackend, measure_frames, measure_update
from edgegossip.types import ConfigError

BASE = recipes.load("quickstart-gossip", ["data.train_examples=960", "training.batch_size=16"])
HOW = {"rate_bps": 1e6, "link": "shared", "device": "", "fleet": ""}


def _cells(names: str, devices: tuple[int, ...], **how: object) -> list[cells.Cell]:
    return cells.make_cells(BASE, cells.parse_schemes(names), devices, "model", {**HOW, **how}, 960, 0)


def test_frames_are_those_of_the_algorithm() -> None:
    update = measure_update(BASE)
    (cell,) = _cells("sgd", (4,))
    found = measure_frames(cell.recipe, update.layout, update.local, update.initial)
    assert all(len({(m.sender, m.receiver) for m in of_round}) == 12 for of_round in found.rounds)
    assert found.payload_bytes == 12 * 4 * update.layout.size and found.bits_per_value == 32.0
    assert 0 < found.overhead_bytes < 12 * 400 and found.encode_s > 0 < found.decode_s
    assert all(m.size_bytes == found.rounds[0][0].size_bytes for m in found.rounds[0])
    (ring,) = _cells("choco-4-bit-elastiquant", (4,))
    found = measure_frames(ring.recipe, update.layout, update.local, update.initial)
    assert len(found.rounds[0]) == 8 and 4.0 < found.bits_per_value < 5.0


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> ModelBackend:
    """Of boards whose update takes 20 ms."""
    monkeypatch.setattr(emulated, "update_here", lambda recipe: (0.02, 0.0))
    return ModelBackend()


@pytest.mark.slow  # processes that load torch, and time it for seconds
def test_an_update_is_timed_here() -> None:
    seconds, spread = emulated.update_here(BASE)
    assert 1e-5 < seconds < 10 and 0 <= spread < 10


@pytest.mark.parametrize("scheme", ["choco-4-bit-elastiquant", "server-4-bit-elastiquant"])
def test_transmission_takes_what_the_bytes_take(scheme: str, place: ModelBackend) -> None:
    for cell in _cells(scheme, (3,)):
        place.check(cell)
        row = place.run(cell)["row"]
        link_s = cell.epoch_rounds * 8 * row["round_bytes"]["link"] / 1e6
        assert row["tx_s"] + row["wait_s"] + row["de_s"] == pytest.approx(link_s, rel=0.1)
        assert row["t_s"] == pytest.approx(sum(row[key] for key in ("cp_s", "en_s", "tx_s", "de_s", "wait_s")))


def test_boards_of_a_profile() -> None:
    (cell,) = _cells("sgd", (2,), device="raspberry-pi-3")
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


def test_a_fleet_has_so_many_boards() -> None:
    (cell,) = _cells("sgd", (18,), fleet="paper-7-xaviers")
    with pytest.raises(ConfigError, match="7"):
        ModelBackend(fleet="paper-7-xaviers").check(cell)
