from __future__ import annotations

import socket
import subprocess
import sys
import threading

from edgegossip.telemetry.machine import ProcessSampler


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
    before = sampler.sample()
    more, end = [socket.socket() for _ in range(5)], threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    now[0] = 1.0
    soon = sampler.sample()
    now[0] = 1.2
    after = sampler.sample()
    end.set()
    thread.join()
    for s in more:
        s.close()
    assert soon == before  # the interval is from sample to sample
    assert after["sys/descriptors"] - before["sys/descriptors"] == 5
    assert after["sys/threads"] - before["sys/threads"] == 1


def test_a_process_that_ended_keeps_its_last_sample():
    now = [0.0]
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    sampler = ProcessSampler(child.pid, min_interval_s=0.0, clock=lambda: now[0])
    before = sampler.sample()
    assert None not in before.values()
    child.communicate(b"\n")
    now[0] = 1.0
    assert sampler.sample() == before
