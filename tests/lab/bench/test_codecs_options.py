"""`bench codecs`: options that make no sense are refused before anything is measured."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from edgegossip.types import ConfigError, HostError
from lab.bench.__main__ import bench
from lab.bench.cases import parse_cases, parse_codec, parse_size

ONE = ("--codec", "qsgd", "--input", "synthetic", "--size", "64", "--repeat", "1", "--no-rivals")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets the kernels' environment variables; they go with the test."""
    for name in ("EDGEGOSSIP_ISA", "EDGEGOSSIP_THREADS"):
        monkeypatch.setenv(name, "")


def invoke(*arguments: str) -> None:
    given = ["codecs", *ONE, "--min-seconds", "0", *arguments]
    CliRunner().invoke(bench, given, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("text", ["7B", "10B", "1.001kB", "1.2345k", "1.5"])
def test_sizes_that_are_no_whole_number_of_values(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--size {text} is no whole number of"):
        parse_size(text)


def test_decimal_fractions_are_read_as_they_are_written() -> None:
    assert [parse_size(text) for text in ("4.35k", "1.1kB", "0.1MB", "0.5KiB")] == [4350, 275, 25_000, 128]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--codec", "qsgd:bits=4,bits=5"), "qsgd:bits=4,bits=5: bits is given twice"),
        (("--set", "foo=1"), "--set foo=1 changes the recipe behind --input gradient"),
        (("--size", "7B"), "--size 7B is no whole number of float32"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        invoke(*arguments)


def test_parameters_of_boards_are_not_given_twice_either() -> None:
    with pytest.raises(ConfigError, match="bits is given twice"):
        parse_codec("qsgd:bits=4, bits=4")


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_seconds_are_finite(seconds: str) -> None:
    with pytest.raises(click.BadParameter):
        invoke("--min-seconds", seconds)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot write to /proc/x: No such file or directory"):
        invoke("--output", "/proc/x")
    (tmp_path / "codecs.md").mkdir()  # a file of the result cannot be written
    with pytest.raises(HostError, match=f"cannot write to {tmp_path}: Is a directory"):
        invoke("--output", str(tmp_path))


def test_a_coder_leaves_out_who_cannot_have_it() -> None:
    stages = {case.name: case.coders for case in parse_cases((), ("huffman", "elias"))}
    assert stages["qsgd"] == ("huffman", "elias") and stages["topk"] == ()
    assert "signsgd" not in stages


@pytest.mark.parametrize(("codecs", "stage"), [((), "huffmann"), (("signsgd",), "huffman")])
def test_a_coder_that_none_has_is_refused(codecs: tuple[str, ...], stage: str) -> None:
    with pytest.raises(ConfigError, match=f"^--stage {stage}: none of these codecs has it$"):
        parse_cases(codecs, (stage,))
