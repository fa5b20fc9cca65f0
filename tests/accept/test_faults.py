"""A sound board has nothing wrong; each planted fault is named. Faults are planted in what the
probes read: files under a root, clocks, `fsync`, a kernel, the measured link."""

import numpy as np
import pytest

from edgegossip import native
from edgegossip import recipe as recipes
from edgegossip.accept import probes
from edgegossip.accept.run import Options, accept
from edgegossip.fleet.link_test import LinkRate
from edgegossip.native import int8
from tests.accept.conftest import SOUND, Clock


def wrong(machine, *only, profile="raspberry-pi-4", peer=None):
    """What is not in order, as one text; the report's own format is in order in any case."""
    recipe = recipes.load("cifar10-gossip")
    report = accept(machine, Options(recipe, profile, peer, only, isa="a name"))
    found = [f"{f['about']}: {f['text']}" for f in report["findings"] if f["level"] != "good"]
    return "\n".join(found)


QUICK = ("isa", "facts", "sensors", "storage")
PEER = ("pi-2", 7733)


def test_a_sound_board_has_nothing_wrong(board, monkeypatch):
    monkeypatch.delenv("EDGEGOSSIP_ISA", raising=False)
    assert wrong(board(), *QUICK, "bits", "link", profile="pi4-wifi", peer=PEER) == ""


MEMORY = "proc/meminfo"
POLICY = "sys/devices/system/cpu/cpufreq/policy0/"
IN_FILES = {
    "no sensor": ({"sys/class/thermal/thermal_zone0/temp": None}, "sensors: no thermal sensor answers"),
    "hot board": ({"sys/class/thermal/thermal_zone0/temp": "91000"}, "heat: the board is at 91 C and will throttle"),
    "small memory": (
        {MEMORY: "MemTotal: 930000 kB\nMemAvailable: 700000 kB"},
        "memory: it has 1.0 GB of memory, and raspberry-pi-4 4.0 GB",
    ),
    "swap in use": (
        {MEMORY: f"{SOUND[MEMORY].replace('SwapFree: 2000000', 'SwapFree: 500000')}"},
        "memory: 1536 MB are swapped out",
    ),
    "throttled": (
        {"sys/devices/platform/soc/soc:firmware/get_throttled": "0x50005"},
        "throttling: the processor is throttled: give it a heat sink",
    ),
    "capped clock": ({f"{POLICY}scaling_max_freq": "600000"}, "the clock may not go above 600 of 1500 MHz"),
    "slow governor": ({f"{POLICY}scaling_governor": "powersave"}, "governor: the governor `powersave`"),
    "failing card": ({"proc/mounts": "/dev/mmcblk0p2 / ext4 ro 0 0"}, "storage: the root file system is read-only"),
    "worn card": ({"sys/block/mmcblk0/device/life_time": "0x0b 0x01"}, "wear: mmcblk0 has outlived"),
    "flag that is not there": ({"proc/cpuinfo": "flags\t: fpu"}, f"isa: the kernels use {native.available_isas()[1]}"),
}


@pytest.mark.parametrize(("files", "said"), IN_FILES.values(), ids=list(IN_FILES))
def test_a_fault_in_the_files_of_the_system_is_named(board, monkeypatch, files, said):
    monkeypatch.delenv("EDGEGOSSIP_ISA", raising=False)
    assert said in wrong(board(files), *QUICK)


def test_a_slower_instruction_set_than_the_machine_has_is_named(board, monkeypatch):
    monkeypatch.setenv("EDGEGOSSIP_ISA", "portable")
    best = native.available_isas()[-1]
    assert f"isa: EDGEGOSSIP_ISA = a name holds the kernels at portable, and this machine has {best}" in wrong(
        board(), "isa"
    )


def test_a_wrong_clock_is_named(board):
    assert "clock: the clock says 1970-01-01: set it" in wrong(board(unix_s=lambda: 0.0), "facts")


def test_a_slow_disk_is_named(board):
    clock = Clock()

    def slow(file):
        clock.now_s += 8.0 if clock.now_s < 8 else 0.3

    said = wrong(board(clock=clock, fsync=slow), "storage")
    assert "MB/s, less than a card of class 10" in said and "an fsync takes 300 ms: a slow card" in said


def test_a_disk_that_fails_is_named(board):
    def fails(file):
        raise OSError(5, "Input/output error")

    assert "storage: storage could not be measured: OSError: [Errno 5]" in wrong(board(fsync=fails), "storage")


def test_a_package_that_is_missing_is_named(board, monkeypatch):
    def asks():
        raise ModuleNotFoundError("No module named 'sympy'")

    monkeypatch.setattr(probes, "against_torch", asks)
    assert "torch could not be measured: ModuleNotFoundError: No module named 'sympy'" in wrong(board(), "torch")


def test_a_kernel_with_a_wrong_bit_is_named(board, monkeypatch):
    right = int8.conv

    def flipped(shape, x, weight, bias, out, isa=None, threads=None):
        right(shape, x, weight, bias, out, isa, threads)
        if isa == native.available_isas()[-1]:
            out.q[7] ^= 1

    monkeypatch.setattr(int8, "conv", flipped)
    said = wrong(board(), "bits").splitlines()
    assert len(said) == 1 and f"int8 conv on {native.available_isas()[-1]} computes something else" in said[0]


def test_a_codec_with_a_wrong_bit_is_named(board, monkeypatch):
    right = native.minmax8_encode

    def flipped(x, offsets, out, *rest):
        right(x, offsets, out, *rest)
        np.frombuffer(out, np.uint8)[40] ^= 1

    monkeypatch.setattr(native, "minmax8_encode", flipped)
    assert "bits: codec minmax8 on" in wrong(board(), "bits")


def test_a_board_that_slows_down_under_load_is_named(board, monkeypatch):
    monkeypatch.setattr(probes, "LOAD_S", 30.0)
    monkeypatch.setattr(probes, "large_convolution", lambda threads: (lambda: None, 1e9))
    assert wrong(board(clock=Clock(0.1)), "load") == ""
    assert "s of load it computes at" in wrong(board(clock=Clock(0.1, later_s=15.0, later_step_s=0.3)), "load")


def test_a_board_that_throttles_under_load_is_named(board, monkeypatch):
    monkeypatch.setattr(probes, "LOAD_S", 12.0)
    monkeypatch.setattr(probes, "large_convolution", lambda threads: (lambda: None, 1e9))
    files = {"sys/devices/platform/soc/soc:firmware/get_throttled": "0x4"}
    assert "throttling: the board is throttled under load" in wrong(board(files, clock=Clock(0.1)), "load")


def test_a_link_that_is_slower_than_the_profile_is_named(board):
    slow = board(link=lambda host, port: LinkRate(60e6, 11e6, 0.002, 4.0, 1500, {}))
    said = wrong(slow, "link", profile="pi4-wifi", peer=PEER)
    assert "link: the link carries 11 Mbit/s, 22% of what the profile says (predicted)" in said
    assert "clock: the peer's clock is +4.0 s off ours" in said


def test_a_power_sensor_that_is_missing_is_named(board):
    assert "sensors: ina3221, which jetson-orin-nano has, does not answer" in wrong(
        board(), "sensors", profile="jetson-orin-nano"
    )


def test_a_power_mode_that_is_not_the_profiles_is_named(board):
    def in_mode(number):
        modes = "< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >"
        files = {"etc/nvpmodel.conf": modes, "var/lib/nvpmodel/status": f"pmode:{number:04}"}
        return wrong(board(files), "facts", profile="jetson-orin-nano")

    said = "power: it is in the power mode MAXN_SUPER, and the numbers of jetson-orin-nano are of 15W: choose that by"
    assert said in in_mode(2) and "power" not in in_mode(0)


def test_what_takes_too_long_is_left_out_and_said(board):
    assert "isa: isa was left out: ten minutes were over; run --only isa" in wrong(board(clock=Clock(700.0)), "isa")
