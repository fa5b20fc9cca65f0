"""The command itself, and the link between two machines, here two threads."""

import json
import platform
import socket
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgegossip.cli.main import cli
from edgegossip.fleet import link_test
from edgegossip.fleet.doctor.checks import _mtu_towards
from edgegossip.types import ConfigError, HostError, PeerError
from edgegossip.version import VERSION


@pytest.fixture
def served():
    """Port of a machine that answers."""
    listener = link_test.listen(0)
    thread = threading.Thread(target=link_test.serve, args=(listener, time.monotonic() + 600), daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.close()


def test_a_link_is_measured_both_ways(served, monkeypatch):
    monkeypatch.setattr(link_test, "_AIM_S", 0.05)
    rate = link_test.measure("127.0.0.1", served)
    assert rate.up_bits_per_s > 1e6 and rate.down_bits_per_s > 1e6 and 0 < rate.round_trip_s < 5
    assert abs(rate.ahead_s) < 5 and rate.versions == {
        "edgegossip": VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def test_a_stranger_and_garbage_do_not_stop_the_server(served, monkeypatch):
    monkeypatch.setattr(link_test, "_AIM_S", 0.05)
    for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n", b"R" + b"\xff" * 4):
        with socket.create_connection(("127.0.0.1", served)) as link:
            link.sendall(garbage)
    assert link_test.measure("127.0.0.1", served).up_bits_per_s > 0


def trickle(s):
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        s.sendall(b"x")
        time.sleep(0.02)


def test_who_trickles_is_cut_off_and_the_next_one_is_served(served, monkeypatch):
    monkeypatch.setattr(link_test, "LONGEST_S", 0.3)
    monkeypatch.setattr(link_test, "_AIM_S", 0.01)
    with socket.create_connection(("127.0.0.1", served), timeout=0.05) as slow:
        slow.sendall(b"S" + (1 << 20).to_bytes(8, "big"))
        with pytest.raises(ConnectionError):
            trickle(slow)
        monkeypatch.setattr(link_test, "LONGEST_S", 30.0)
        assert link_test.measure("127.0.0.1", served).up_bits_per_s > 0


def test_a_peer_that_is_not_there_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HostError, match=f"cannot listen on port {port}: address already in use"):
            link_test.listen(port)
    with pytest.raises(PeerError, match=f"run `edgegossip calibrate --serve {port}` there first"):
        link_test.measure("127.0.0.1", port)


def test_the_command_serves_for_a_time_that_is_one():
    for seconds in ("nan", "inf", "-1"):
        ended = CliRunner().invoke(cli, ["calibrate", "--serve", "0", "--for", seconds])
        assert ended.exit_code == 2 and "--for" in ended.output
    assert "0 callers" in CliRunner().invoke(cli, ["calibrate", "--serve", "0", "--for", "0.1"]).output


def test_addresses():
    assert link_test.parse_address("pi-2") == ("pi-2", link_test.PORT)
    assert link_test.parse_address("[fe80::1]:80") == ("fe80::1", 80)
    for text in ("pi-2:", "pi-2:x", ":80", "pi-2:99999", "pi-2:0", "pi-2:²", "pi-2:" + "9" * 5000):
        with pytest.raises(ConfigError, match="write it as HOST:PORT"):
            link_test.parse_address(text)


def test_the_command_names_a_taken_port_and_a_silent_peer_and_ends_with_6(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        call = [
            "doctor",
            "--listen",
            str(port),
            "--peer",
            "127.0.0.1:1",
            "--identity",
            str(tmp_path),
            "--runs",
            str(tmp_path),
        ]
        done = CliRunner().invoke(cli, [*call, "--json"], standalone_mode=False)
        document = json.loads(done.output)
        assert done.return_value == 6 and document["bad"] >= 3 and document["links"] == []
        bad = {f["about"]: f["text"] for f in document["findings"] if f["level"] == "bad"}
        assert f"port {port} cannot be listened on" in bad["ports"] and "calibrate --serve" in bad["link"]
        assert str(tmp_path) in bad["certificates"]
        page = CliRunner().invoke(cli, call, standalone_mode=False).output
    assert "to put right" in page and f"port {port}" in page


def test_the_mtu_towards_a_peer_is_that_of_the_interface_which_leads_there() -> None:
    """Not the largest that there is, which may be of a bridge that has nothing to do with it."""
    assert _mtu_towards("127.0.0.1", 9) == min(65_535, int(Path("/sys/class/net/lo/mtu").read_text()))
    assert _mtu_towards("no such host", 9) is None


def test_the_recipes_device_is_tried(monkeypatch):
    """Where torch sees it, a little is computed there; where it does not, that is to be put
    right."""
    runner = CliRunner()
    asked = ["doctor", "--json", "--recipe", "quickstart-gossip"]
    told = json.loads(runner.invoke(cli, [*asked, "--set", "training.device=cpu"]).output)
    (found,) = [f for f in told["findings"] if f["about"] == "device"]
    assert found["level"] == "good" and found["text"].endswith("trains on cpu")
    assert any(f["text"].startswith("messages take at most 67 MB of memory") for f in told["findings"])
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = runner.invoke(cli, [*asked, "--set", "training.device=cuda"], standalone_mode=False)
    assert done.return_value == 6
    (found,) = [f for f in json.loads(done.output)["findings"] if f["about"] == "device"]
    assert found["level"] == "bad" and "sees no CUDA GPU" in found["text"]
    assert not [
        f for f in json.loads(runner.invoke(cli, ["doctor", "--json"]).output)["findings"] if f["about"] == "device"
    ]
    lost = runner.invoke(cli, ["doctor", "--set", "training.device=cuda"])
    assert "name it with --recipe" in str(lost.exception) + lost.output
