"""A sound board: files, clocks and a link, which a test may change."""

from dataclasses import dataclass, field, replace

import pytest

from edgegossip import native
from edgegossip.accept import probes, run
from edgegossip.accept.machine import FLAGS, Machine
from edgegossip.fleet.link_test import LinkRate
from edgegossip.telemetry.machine import environment

NOW_S = 1_800_000_000.0
FLAGS_HERE = sorted({flag for name in native.available_isas() for flag in FLAGS.get(name, ())} | {"fpu"})
SOUND = {
    "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4",
    "proc/cpuinfo": f"flags\t: {' '.join(FLAGS_HERE)}",
    "proc/meminfo": "MemTotal: 3882516 kB\nMemAvailable: 3300000 kB\nSwapTotal: 2000000 kB\nSwapFree: 2000000 kB",
    "proc/mounts": "/dev/mmcblk0p2 / ext4 rw,noatime 0 0",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "51342",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1500000",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1500000",
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "1500000",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "ondemand",
    "sys/devices/platform/soc/soc:firmware/get_throttled": "0",
    "sys/block/mmcblk0/device/life_time": "0x01 0x01",
}

ENVIRONMENT = environment()  # which asks git


@dataclass
class Clock:
    """Goes on by `step_s` each time that it is read; from `later_s` on by `later_step_s`."""

    step_s: float = 1e-4
    later_s: float = 1e9
    later_step_s: float = 0.0
    now_s: float = field(default=0.0)

    def __call__(self) -> float:
        self.now_s += self.later_step_s if self.now_s > self.later_s else self.step_s
        return self.now_s


@pytest.fixture
def board(tmp_path, monkeypatch):
    """Makes a sound board, with other files (None: it is not there) or parts where asked."""
    monkeypatch.setattr(probes, "_WRITTEN_BYTES", 4 << 20)
    monkeypatch.setattr(run, "environment", lambda: ENVIRONMENT)

    def made(files=None, **parts):
        for name, text in {**SOUND, **(files or {})}.items():
            if text is not None:
                file = tmp_path / "root" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text + "\n")
        folder = tmp_path / "runs"
        folder.mkdir(exist_ok=True)
        sound = Machine(
            root=tmp_path / "root",
            folder=folder,
            clock=Clock(),
            unix_s=lambda: NOW_S,
            sleep=lambda seconds: None,
            fsync=lambda file: None,
            link=lambda host, port: LinkRate(60e6, 55e6, 0.002, 0.0, 1500, {}),
        )
        return replace(sound, **parts)

    return made
