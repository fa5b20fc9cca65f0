"""A profile of this machine can be read back, and is of this machine. How fast it is nobody knows
beforehand."""

import dataclasses
import tomllib

import pytest

from edgegossip import recipe as recipes
from edgegossip.fleet.link_test import LinkRate
from edgegossip.scale import calibrate, cost
from edgegossip.scale.devices import device_of, load_device, to_toml


def test_a_profile_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(calibrate, "_ROUNDS", 2)
    monkeypatch.setattr(calibrate.os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(calibrate, "VALUES", 1 << 14)
    monkeypatch.setattr(calibrate, "_COPIED_BYTES", 1 << 20)
    link = LinkRate(30e6, 20e6, 0.002, 0.0, 1500, {})
    notes = []
    profile = calibrate.calibrate("mine", recipes.load("quickstart-gossip"), link, notes.append)
    assert len(notes) >= 4 and profile.link_bits_per_s == 20e6
    assert profile.fp32_flops >= profile.one_thread_flops > 1e6
    assert set(profile.encode_bytes_per_s) == set(profile.decode_bytes_per_s) == {"default", *calibrate.CODECS}
    assert all(source.startswith(("measured:", "predicted:")) for source in profile.sources.values())
    (tmp_path / "mine.toml").write_text(to_toml(profile))
    assert load_device(str(tmp_path / "mine.toml")) == profile


def test_a_machine_that_names_no_rate_of_its_network_says_so(monkeypatch):
    monkeypatch.setattr(calibrate.psutil, "net_if_stats", dict)
    assert calibrate._link(None) == (100e6, "predicted: the interface names no rate; measure it with --peer HOST:PORT")


def test_operations_are_those_of_the_products():
    """One hidden layer on 8 x 8 digits: 64 x h and h x 10, forward, and backward for weights and
    inputs (but for the data)."""
    recipe = recipes.load("quickstart-gossip", ["model.params.hidden=[100]", "training.batch_size=8"])
    layout, step = cost.of_recipe(recipe)
    products = 2 * 8 * (64 * 100 + 100 * 10)
    assert layout.size == 64 * 100 + 100 + 100 * 10 + 10
    assert step.flops == pytest.approx(2 * products + 2 * 8 * 100 * 10)
    assert step.saved_bytes >= 4 * 8 * 100
    more = cost.of_recipe(recipes.with_settings(recipe, {"training.batch_size": 16}))[1]
    assert more.flops == 2 * step.flops and more.saved_bytes > step.saved_bytes


def test_memory_grows_with_what_a_board_keeps():
    recipe = recipes.load("quickstart-gossip")
    layout, step = cost.of_recipe(recipe)
    few = cost.board_bytes(recipe, layout, step, 1, 1000)
    assert cost.PROCESS_BYTES < few < cost.board_bytes(recipe, layout, step, 17, 1000)


def test_a_sources_table_is_written_for_every_number(tmp_path):
    profile = load_device("jetson-nano")
    assert device_of(tomllib.loads(to_toml(profile)), "jetson-nano") == profile


def test_a_profile_holds_in_the_power_mode_in_which_it_was_measured():
    known = load_device("jetson-orin-nano")
    again = dataclasses.replace(known, name="mine", power_mode="MAXN_SUPER")
    measured = dataclasses.replace(again, sources={**known.sources, "power_mode": "measured: here"})
    for mode, profile in (("MAXN_SUPER", measured), (None, dataclasses.replace(known, power_mode=None, sources={}))):
        mine = calibrate.replaced(
            known, dataclasses.replace(profile, sources={**profile.sources, "link_bits_per_s": "measured: here"})
        )
        assert mine.power_mode == mode
        assert device_of(tomllib.loads(to_toml(mine)), mine.name) == mine
