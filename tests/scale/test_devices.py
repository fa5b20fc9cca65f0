"""Profiles of boards and fleets: the packaged ones load, and what is wrong in a file is said in one
sentence."""

import re
import tomllib
from pathlib import Path

import pytest

from edgegossip import codecs
from edgegossip.scale import devices
from edgegossip.types import ConfigError

BOARDS = {
    "raspberry-pi-3",
    "raspberry-pi-zero-2-w",
    "raspberry-pi-4",
    "raspberry-pi-5",
    "jetson-nano",
    "jetson-xavier-nx",
    "jetson-agx-xavier",
    "jetson-orin-nano",
    "coral-dev-board",
}
MINIMAL = """
title = "A board"
cores = 2
memory_bytes = 1_000_000_000
fp32_flops = 4e9
int8_ops = 8e9
memory_bytes_per_s = 1e9
link_bits_per_s = 1e8
encode_bytes_per_s = {default = 1e8, fp32 = 1e9}
decode_bytes_per_s = {default = 2e8}
[sources]
cores = "predicted: x"
memory_bytes = "predicted: x"
fp32_flops = "predicted: x"
int8_ops = "predicted: x"
memory_bytes_per_s = "predicted: x"
link_bits_per_s = "predicted: x"
encode_bytes_per_s = "predicted: x"
decode_bytes_per_s = "predicted: x"
"""


@pytest.fixture
def board(tmp_path):
    def write(text=MINIMAL, name="mine.toml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_every_packaged_board_loads_and_names_codecs_that_there_are():
    assert set(devices.device_names()) >= BOARDS
    for name in devices.device_names():
        profile = devices.load_device(name)
        assert profile.name == name and profile.training_rate(threads=profile.cores) == profile.fp32_flops
        named = (profile.encode_bytes_per_s.keys() | profile.decode_bytes_per_s.keys()) - {devices.DEFAULT}
        assert named <= set(codecs.names())
        assert profile.encode_rate("atomo") == profile.encode_bytes_per_s[devices.DEFAULT]


def test_what_packaged_numbers_say_is_measured_others_measured():
    for name in devices.device_names():
        said = [t for t in devices.load_device(name).sources.values() if t.startswith("measured:")]
        assert all(re.match(r"measured: by others, .*\(.+\)$", text) for text in said)


def test_every_packaged_fleet_loads():
    for name in devices.fleet_names():
        fleet = devices.load_fleet(name)
        assert len(devices.devices_of(fleet)) == fleet.size


def test_the_papers_fleet_has_its_18_boards():
    fleet = devices.load_fleet("paper-18")
    assert fleet.size == 18 and fleet.accelerated and fleet.link.crossings == 2
    assert set(fleet.names(7)) == {"jetson-agx-xavier"}
    with pytest.raises(ConfigError, match="19 boards of fleet paper-18: it has 18"):
        fleet.names(19)


def test_a_rate_goes_with_threads_precision_and_accelerator():
    nano, pi = devices.load_device("jetson-nano"), devices.load_device("raspberry-pi-4")
    assert pi.training_rate(threads=1) * 4 == pi.training_rate(threads=4) == pi.training_rate(threads=64)
    assert nano.training_rate(accelerated=True) == nano.accelerator_flops > nano.fp32_flops
    assert nano.training_rate("int8", 4, accelerated=True) == nano.int8_ops
    assert pi.training_rate(accelerated=True) == pi.training_rate()


def test_a_profile_of_ones_own_survives_writing(board, tmp_path):
    first = devices.load_device(board())
    again = devices.load_device(board(devices.to_toml(first)))
    assert again == first and first.encode_rate("fp32") == 1e9


def test_a_fleet_of_ones_own_finds_its_boards_beside_it(board, tmp_path):
    board()
    text = 'title = "x"\nboards = [["mine.toml", 2], ["raspberry-pi-4", 1]]\n'
    (tmp_path / "fleet.toml").write_text(text)
    fleet = devices.load_fleet(str(tmp_path / "fleet.toml"))
    assert [d.name for d in devices.devices_of(fleet)] == ["mine", "mine", "raspberry-pi-4"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cores = 2", "", "cores is missing"),
        ("cores = 2", "cores = 2\ncorse = 3", "unknown key corse; did you mean cores"),
        ("cores = 2", "cores = 0", "cores = 0: out of range .at least 1"),
        ("fp32_flops = 4e9", "fp32_flops = nan", "fp32_flops = nan: out of range"),
        ("default = 1e8, ", "", "encode_bytes_per_s has no 'default'"),
        ('cores = "predicted: x"\n', "", "does not say where cores comes from"),
        ("cores = 2", 'cores = 2\npower_mode = "15W"', "does not say where power_mode comes from"),
        ('cores = "predicted: x"', 'cores = "somewhere"', "begins with one of measured:"),
        ('title = "A board"', "title = 3", "must be text"),
    ],
)
def test_what_is_wrong_in_a_board_is_named(board, old, new, said):
    assert old in MINIMAL
    with pytest.raises(ConfigError, match=said):
        devices.load_device(board(MINIMAL.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'title = "x"\nboards = [["raspberry-pi-44", 1]]',
            "no board profile named raspberry-pi-44; did you mean raspberry",
        ),
        ('title = "x"\nboards = ["raspberry-pi-4"]', "write it as"),
        ('title = "x"\nboards = [["raspberry-pi-4", 65]]', "65 boards"),
        (
            'title = "x"\nboards = [["raspberry-pi-4", 2]]\nlink = {shared_bits_per_s = 1e6}',
            "does not say where link.shared",
        ),
        ('title = "x"\nboards = [["raspberry-pi-4", 2]]\nlink = 3', "must be a table"),
        ('title = "x"\nboards = [["raspberry-pi-4", 2]]\naccelerated = 1', "must be true or false"),
        ("title =", "is not valid TOML"),
        ("title = " + "[" * 5000, "is not valid TOML: brackets in brackets"),
    ],
)
def test_what_is_wrong_in_a_fleet_is_named(tmp_path, text, said):
    path = tmp_path / "f.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        devices.load_fleet(str(path))


def test_unknown_names_get_the_nearest():
    with pytest.raises(ConfigError, match="no fleet named paper18; did you mean paper-18"):
        devices.load_fleet("paper18")
    with pytest.raises(ConfigError, match="cannot read board profile"):
        devices.load_device("/nonexistent/board.toml")


def test_files_are_plain_toml_beside_the_package():
    folder = Path(__file__).parents[2] / "devices"
    assert {p.stem for p in folder.glob("*.toml")} == set(devices.device_names())
    assert all(tomllib.loads(p.read_text())["sources"] for p in folder.rglob("*.toml"))
