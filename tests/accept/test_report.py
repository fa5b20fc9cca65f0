"""A report, its page and the command; bits.json is what the portable kernels make."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgegossip import native
from edgegossip import recipe as recipes
from edgegossip.accept import bits, run, verdict
from edgegossip.accept.page import page
from edgegossip.accept.run import Options, accept, measured_profile, prediction_of
from edgegossip.cli.main import cli
from edgegossip.scale.calibrate import replaced
from edgegossip.scale.devices import load_device
from edgegossip.types import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(board, monkeypatch):
    """Of a sound board, its rates those of a profile."""
    monkeypatch.setattr(run, "calibrate", lambda *_: load_device("raspberry-pi-4"))
    options = Options(
        recipes.load("cifar10-gossip"),
        "raspberry-pi-4",
        ("pi-2", 7733),
        ("isa", "facts", "sensors", "storage", "link", "rates"),
    )
    return accept(board(), options)


def test_a_report_is_plain_and_measures_a_profile(report):
    assert json.loads(json.dumps(report)) == report
    assert measured_profile(report, "raspberry-pi-4") == load_device("raspberry-pi-4")
    assert report["kind"] == "board" and report["board"].startswith("Raspberry Pi 4")


def test_a_board_without_a_name_goes_by_its_processor(board):
    options = Options(recipes.load("cifar10-gossip"), only=("facts",))
    report = accept(board({"proc/device-tree/model": None}), options)
    assert report["board"] == run.environment()["cpu"]


def test_the_page_has_the_verdict_and_needs_nothing(report):
    report["findings"][0]["text"] = "<script>alert(1)</script>"
    text = page(report)
    assert "<script" not in text and "&lt;script&gt;" in text and "fsync s" in text
    assert not re.search(r"(src|href)=|https?://", text)
    assert "Not a board" not in text and "Not a board: emulated" in page({**report, "kind": "emulated"})


def test_the_command_writes_report_and_page(tmp_path):
    done = CliRunner().invoke(cli, ["accept", "--only", "isa", "--emulated", "-o", str(tmp_path / "me.json"), "--json"])
    written = json.loads((tmp_path / "me.json").read_text())
    assert done.exit_code == 0 and written["kind"] == "emulated"
    assert written["sections"]["isa"]["used"] == native.isa()
    assert "Not a board: emulated" in (tmp_path / "me.html").read_text() and not (tmp_path / "me.toml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "me.txt"], "name it .json"),
        (["--profile", "raspberry-pi-44"], "did you mean raspberry-pi-4"),
        (["--profile", "mixed-home"], "its boards differ; name one of"),
    ],
)
def test_what_cannot_be_asked_for_is_said(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in str(CliRunner().invoke(cli, ["accept", *words], standalone_mode=False).exception)


@pytest.mark.parametrize(
    ("files", "architecture", "kind"),
    [
        ({}, "aarch64", "board"),
        ({"proc/cpuinfo": "vendor_id\t: AuthenticAMD\nflags\t: fpu avx2"}, "aarch64", "emulated"),
        ({"proc/sys/kernel/arch": "x86_64\n"}, "aarch64", "emulated"),
        ({"proc/sys/kernel/arch": "aarch64\n"}, "aarch64", "board"),
        ({"proc/device-tree/model": "linux,dummy-virt"}, "aarch64", "emulated"),
        ({"proc/cpuinfo": "vendor_id\t: AuthenticAMD\nflags\t: fpu hypervisor"}, "x86_64", "virtual machine"),
        ({"sys/class/dmi/id/sys_vendor": "QEMU"}, "x86_64", "virtual machine"),
    ],
)
def test_a_machine_that_is_no_board_gives_itself_away(board, files, architecture, kind):
    assert board(files, architecture=architecture).kind() == kind


def test_a_fleets_link_is_what_one_board_can_send():
    predicted = prediction_of("pi4-wifi")
    assert predicted.link_bits_per_s == 50e6 and predicted.link_kind == "predicted"
    assert prediction_of("raspberry-pi-4").link_kind == "measured"
    with pytest.raises(ConfigError, match="its boards differ"):
        prediction_of("paper-18")


def test_rates_are_held_to_what_the_profile_knows():
    known = load_device("raspberry-pi-4")
    slower = replaced(known, known)
    said = {f.about: f for f in verdict.beside(slower, load_device("raspberry-pi-5"))}
    assert said["training"].level == "warning" and "% of what the profile says (predicted)" in said["training"].text
    assert not [f for f in verdict.beside(known, known) if f.level != "good"]


def test_bits_are_those_of_the_portable_kernels():
    assert bits.made_anew() == bits.expected()


def test_the_table_of_reports_is_made_anew():
    import sys

    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import boards
    finally:
        sys.path.pop(0)
    page_text = (ROOT / "docs/boards.md").read_text()
    assert boards.written(page_text) == page_text, "python scripts/boards.py"
