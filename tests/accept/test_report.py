"""A report's format, its page, two of them beside each other, and the command; bits.json is what
the portable kernels make."""

import copy
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgegossip import native
from edgegossip import recipe as recipes
from edgegossip.accept import bits, document, run, verdict
from edgegossip.accept.page import page
from edgegossip.accept.run import Options, accept, measured_profile, prediction_of
from edgegossip.cli.main import cli
from edgegossip.scale.calibrate import replaced
from edgegossip.scale.devices import load_device
from edgegossip.types import ConfigError, DataError

ROOT = Path(__file__).parents[2]
REPORTS = sorted((ROOT / "devices/reports").glob("*.json"))


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


def test_a_report_is_of_its_format_and_measures_a_profile(report):
    assert list(document.faults(json.loads(json.dumps(report)))) == []
    assert measured_profile(report, "raspberry-pi-4") == load_device("raspberry-pi-4")
    assert report["kind"] == "board" and report["board"].startswith("Raspberry Pi 4")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("format", 2, "format is 2, and this version reads 1"),
        ("kind", "toaster", "report.kind is 'toaster'"),
        ("board", "a\x1b[31m", "report.board is"),
        ("bad", 3, "bad is 3, and 0 findings are of that level"),
        ("findings.0.level", "fine", "report.findings[0].level is 'fine'"),
        ("sections.storage.fsync_s", float("nan"), "storage.fsync_s is nan"),
        ("sections.storage.more", 1, "storage has more, which belongs to no report"),
        ("sections.isa.available", "avx2", "isa.available is no list"),
        ("sections.rates.encode_bytes_per_s.fp32", "fast", "rates.encode_bytes_per_s.fp32 is 'fast'"),
        ("sections.weather", {}, "sections has no 'weather'"),
        ("software", [], "report.software is no table"),
    ],
)
def test_what_is_wrong_in_a_report_is_named(report, place, value, said):
    broken = copy.deepcopy(report)
    *way, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    inner = broken
    for word in way:
        inner = inner[word]
    inner[last] = value
    assert said in "\n".join(document.faults(broken))


def test_the_page_has_the_verdict_and_needs_nothing(report):
    report["findings"][0]["text"] = "<script>alert(1)</script>"
    text = page(report)
    assert "<script" not in text and "&lt;script&gt;" in text and "fsync s" in text
    assert not re.search(r"(src|href)=|https?://", text)
    assert "Not a board" not in text and "Not a board: emulated" in page({**report, "kind": "emulated"})


def test_two_reports_beside_each_other(report, tmp_path):
    other = copy.deepcopy(report)
    other["sections"]["rates"]["fp32_flops"] *= 2
    other["findings"] = [{"level": "warning", "about": "heat", "text": "the board is at 90 C"}, *report["findings"]]
    other["warnings"] += 1
    for name, one in (("a", report), ("b", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    call = ["accept", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    said = CliRunner().invoke(cli, call).output
    assert (
        re.search(r"rates\.fp32_flops +8e\+09 +1\.6e\+10 +2\.00", said) and "only B: heat: the board is at 90 C" in said
    )
    made = json.loads(CliRunner().invoke(cli, [*call, "--json"]).output)
    assert [f["report"] for f in made["findings"]] == ["b"]
    assert {row["figure"]: row["ratio"] for row in made["figures"]}["storage.fsync_s"] == 1


def test_the_command_writes_report_and_page(tmp_path):
    done = CliRunner().invoke(cli, ["accept", "--only", "isa", "--emulated", "-o", str(tmp_path / "me.json"), "--json"])
    assert done.exit_code == 0 and json.loads((tmp_path / "me.json").read_text())["kind"] == "emulated"
    assert document.load(tmp_path / "me.json")["sections"]["isa"]["used"] == native.isa()
    assert "Not a board: emulated" in (tmp_path / "me.html").read_text() and not (tmp_path / "me.toml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compare", "a.json"], "--compare takes two reports"),
        (["a.json"], "reports are for --compare"),
        (["-o", "me.txt"], "name it .json"),
        (["--profile", "raspberry-pi-44"], "did you mean raspberry-pi-4"),
        (["--profile", "mixed-home"], "its boards differ; name one of"),
    ],
)
def test_what_cannot_be_asked_for_is_said(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in str(CliRunner().invoke(cli, ["accept", *words], standalone_mode=False).exception)


def test_a_file_that_is_no_report_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match="is no report of `accept`: report lacks made"):
        document.load(tmp_path / "x.json")


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


@pytest.mark.parametrize("file", REPORTS, ids=lambda file: file.stem)
def test_a_report_that_was_sent_is_of_the_format_and_shown(file):
    report = document.load(file)
    shown = (ROOT / "docs/boards.md").read_text()
    row = next(line for line in shown.splitlines() if file.name in line)
    assert report["board"] in row and f"| {report['kind']} |" in row


def test_the_table_of_reports_is_made_anew():
    import sys

    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import boards
    finally:
        sys.path.pop(0)
    page_text = (ROOT / "docs/boards.md").read_text()
    assert boards.written(page_text) == page_text, "python scripts/boards.py"
