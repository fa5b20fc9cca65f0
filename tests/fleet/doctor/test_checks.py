"""Findings from facts: each trouble has its sentence, and a sound board has none."""

from dataclasses import replace
from pathlib import Path

import pytest

from edgegossip.fleet.doctor import checks
from edgegossip.fleet.doctor.checks import Validity
from edgegossip.fleet.doctor.facts import Facts, Interface, gather
from edgegossip.fleet.link_test import LinkRate
from tests.telemetry.trees import plant

NOW_S = 1_800_000_000.0
SOUND = Facts(
    board="Raspberry Pi 4 Model B Rev 1.4",
    machine="aarch64",
    python=(3, 11),
    packages={"edgegossip": "0.1", "torch": "2.9.1"},
    unix_s=NOW_S,
    clock_synchronised=True,
    throttled=0,
    temperature_c=50.0,
    governors=("ondemand",),
    wear=(("mmcblk0", 1),),
    memory_bytes=4_000_000_000,
    available_bytes=3_000_000_000,
    swap_used_bytes=0,
    disk_free_bytes=10_000_000_000,
    interfaces=(Interface("wlan0", 1500, -50.0),),
)


def test_a_sound_board_has_nothing_wrong():
    assert {finding.level for finding in checks.examine(SOUND)} == {"good"}
    assert not [f for f in checks.examine(Facts(packages={"torch": "2.9.1"}, unix_s=NOW_S)) if f.level != "good"]


@pytest.mark.parametrize(
    ("changed", "level", "about", "said"),
    [
        ({"unix_s": 1.0}, "bad", "clock", "the clock says 1970-01-01: set it"),
        ({"clock_synchronised": False}, "warning", "clock", "timedatectl set-ntp true"),
        ({"throttled": 0x1}, "bad", "throttling", "voltage is too low: use the official power supply"),
        ({"throttled": 0x40004}, "bad", "throttling", "the processor is throttled: give it a heat sink"),
        ({"throttled": 0x80000}, "warning", "throttling", "since the board was started"),
        ({"temperature_c": 81.0}, "warning", "heat", "at 81 C and will throttle"),
        ({"governors": ("powersave",)}, "warning", "governor", "cpupower frequency-set"),
        ({"wear": (("mmcblk0", 9),)}, "warning", "wear", "mmcblk0 has used 80 to 90 % of its life: replace it soon"),
        ({"wear": (("mmcblk0", 11),)}, "bad", "wear", "replace it now"),
        ({"root_is_read_only": True}, "bad", "storage", "read-only"),
        ({"disk_free_bytes": 10_000_000}, "warning", "storage", "10 MB of disk are free"),
        ({"available_bytes": 100_000_000}, "warning", "memory", "100 MB of memory are free"),
        ({"swap_used_bytes": 2_000_000_000}, "warning", "memory", "2000 MB are swapped out"),
        ({"interfaces": (Interface("wg0", 1200),)}, "warning", "mtu", "wg0 has an MTU of 1200"),
        ({"interfaces": (Interface("wlan0", 1500, -81.0),)}, "warning", "radio", "at -81 dBm"),
        ({"python": (3, 10)}, "bad", "versions", "Python 3.10 is not one of"),
        ({"packages": {}}, "bad", "versions", "pip install torch"),
        ({"packages": {"torch": "2.10.0"}}, "bad", "versions", "illegal instruction on a Raspberry Pi 4"),
        ({"packages": {"torch": "2.3.1"}}, "warning", "versions", "torch 2.3.1 is untested"),
    ],
)
def test_each_trouble_has_one_sentence(changed, level, about, said):
    wrong = [finding for finding in checks.examine(replace(SOUND, **changed)) if finding.level != "good"]
    assert len(wrong) == 1 and (wrong[0].level, wrong[0].about) == (level, about)
    assert said in wrong[0].text and "\n" not in wrong[0].text


def test_a_jetson_says_in_which_power_mode_it_is(tmp_path: Path) -> None:
    for file, text in (
        ("var/lib/nvpmodel/status", "pmode:0002\n"),
        ("etc/nvpmodel.conf", "# < POWER_MODEL ID=9 NAME=OLD >\n< POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n"
         "< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n"),
    ):  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    facts = gather(tmp_path, tmp_path)
    assert facts.power_mode == "MAXN_SUPER" and facts.power_modes == ((0, "15W"), (2, "MAXN_SUPER"))
    [said] = [finding.text for finding in checks.examine(facts) if finding.about == "power"]
    assert said == "the power mode is MAXN_SUPER; others: 15W (0), by `sudo nvpmodel -m NUMBER`"
    (tmp_path / "etc/nvpmodel.conf").unlink()
    assert gather(tmp_path, tmp_path).power_mode == "2"


@pytest.mark.parametrize(
    ("release", "board", "level", "said"),
    [
        ("39.2.0", "Orin Nano", "good", "the system is JetPack 7 (Jetson Linux 39.2.0)"),
        ("36.4.3", "Orin Nano", "warning", "JetPack 6 (Jetson Linux 36.4.3) trains on its CPU, as NVIDIA's torch for its GPU "
         "ends before 2.9: JetPack 7.2 has one for the GPU"),
        ("35.4.1", "AGX Xavier", "warning", "no newer JetPack takes this board"),
    ],
)  # fmt: skip
def test_a_jetson_is_told_for_which_part_of_it_there_is_a_torch(release, board, level, said, tmp_path):
    major, _, minor = release.partition(".")
    for file, text in (
        ("etc/nv_tegra_release", f"# R{major} (release), REVISION: {minor}, GCID: 1, BOARD: generic, DATE: now\n"),
        ("proc/device-tree/model", f"NVIDIA Jetson {board} Developer Kit\0"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (found,) = [finding for finding in checks.examine(gather(tmp_path, tmp_path)) if finding.about == "jetson"]
    assert found.level == level and said in found.text


def test_the_worst_comes_first():
    found = checks.examine(replace(SOUND, temperature_c=90.0, throttled=1))
    assert [f.level for f in found][:2] == ["bad", "warning"]


def test_certificates_that_end_begin_or_hold():
    day = 86_400.0
    valid = [
        Validity("old", NOW_S - 9 * day, NOW_S - day),
        Validity("early", NOW_S + day, NOW_S + 99 * day),
        Validity("soon", NOW_S - day, NOW_S + 3 * day),
        Validity("fine", NOW_S - day, NOW_S + 300 * day),
    ]
    found = list(checks.certificates(valid, NOW_S))
    assert [f.level for f in found] == ["bad", "bad", "warning", "good"]
    assert "edgegossip fleet add" in found[0].text and "set the clock" in found[1].text


def test_what_a_link_says():
    rate = LinkRate(40e6, 2e6, 0.01, 5.0, 1400, {"edgegossip": "0.1", "python": "3.11", "machine": "aarch64"})
    found = [f.text for f in checks.peer("pi-2:7733", rate, {"edgegossip": "0.2"}, 1500)]
    for said in (
        "40.0 Mbit/s there, 2.0 back",
        "5.0 s ahead of ours",
        "edgegossip 0.1",
        "1400 bytes",
        "20 times as fast",
    ):
        assert any(said in text for text in found), said
    fine = replace(rate, down_bits_per_s=30e6, ahead_s=0.2, mtu=1500, versions={"edgegossip": "0.2"})
    assert [f.level for f in checks.peer("pi-2:7733", fine, {"edgegossip": "0.2"}, 1500)] == ["good"]


@pytest.mark.parametrize(("free", "level"), [(3_000_000_000, "good"), (None, "good"), (500_000_000, "warning")])
def test_how_much_memory_messages_take_at_most_is_said_and_has_to_be_there(free: int | None, level: str) -> None:
    found = checks.messages(250_000_000, free)
    assert (found.level, found.about) == (level, "memory")
    assert found.text.startswith("messages take at most 250 MB of memory, whatever boards send")
    assert ("and 500 MB are free" in found.text) == (level == "warning")


def test_facts_come_from_the_tree(tmp_path):
    root = plant("raspberry-pi-4", tmp_path)
    (root / "proc/net").mkdir(parents=True)
    (root / "proc/net/wireless").write_text(
        "Inter-| sta-|   Quality        |\n face | tus | link level noise |\n wlan0: 0000   39.  -71.  -256        0\n"
    )
    (root / "proc/meminfo").write_text(
        "MemTotal: 3884304 kB\nMemAvailable: 204304 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n"
    )
    (root / "proc/mounts").write_text("/dev/mmcblk0p2 / ext4 ro,noatime 0 0\n")
    facts = gather(root, tmp_path)
    assert facts.board == "Raspberry Pi 4 Model B Rev 1.4" and facts.throttled == 0x50005
    assert facts.wear == (("mmcblk0", 2), ("mmcblk1", 10))
    assert facts.interfaces == (Interface("wlan0", 1500, -71.0),) and facts.governors == ("powersave",)
    assert facts.root_is_read_only and facts.available_bytes == 204304 * 1024 and facts.swap_used_bytes == 60 * 1024
    (root / "proc/mounts").write_text("overlay / overlay ro,relatime,lowerdir=/a,upperdir=/b 0 0\n")
    assert not gather(root, tmp_path).root_is_read_only, "a container's is meant so"
    assert facts.clock_synchronised is None
    wrong = {f.about for f in checks.examine(facts) if f.level != "good"}
    assert wrong >= {"throttling", "governor", "wear", "storage", "memory", "radio"}


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp"])
def test_a_processor_that_chooses_its_clock_is_not_held_by_powersave(driver: str, tmp_path: Path) -> None:
    policy = tmp_path / "sys/devices/system/cpu/cpufreq/policy0"
    policy.mkdir(parents=True)
    (policy / "scaling_governor").write_text("powersave\n")
    (policy / "scaling_driver").write_text("cpufreq-dt\n")
    assert gather(tmp_path, tmp_path).governors == ("powersave",)
    (policy / "scaling_driver").write_text(f"{driver}\n")
    assert gather(tmp_path, tmp_path).governors == ()
