from __future__ import annotations

import subprocess
import sys

from edgegossip.profiling.system import ProcessSampler


def test_samples_memory_at_once_and_load_after_an_interval():
    now = [0.0]
    sampler = ProcessSampler(min_interval_s=0.5, clock=lambda: now[0])
    first = sampler.sample()
    assert first["sys/cpu_percent"] is None
    assert 1_000_000 < first["sys/rss_bytes"] < 64 * 2**30
    now[0] = 0.4
    assert sampler.sample() == first
    now[0] = 0.6
    assert sampler.sample()["sys/cpu_percent"] >= 0.0


def test_a_process_that_ended_keeps_its_last_sample():
    now = [0.0]
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    sampler = ProcessSampler(child.pid, min_interval_s=0.0, clock=lambda: now[0])
    before = sampler.sample()
    child.communicate(b"\n")
    now[0] = 1.0
    assert sampler.sample()["sys/rss_bytes"] == before["sys/rss_bytes"]
