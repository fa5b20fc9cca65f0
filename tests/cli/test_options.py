"""Options are declared once: in the forms that a command, a recipe and a codec have, with one page
that lists them all."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import click
import pytest
from click.testing import CliRunner

from edgegossip.choices import Range
from edgegossip.cli.options import JSON, command
from edgegossip.codecs import REGISTRY
from edgegossip.options import REQUIRED, option, options_of
from edgegossip.types import ConfigError

ROOT = Path(__file__).parents[2]
Rate: TypeAlias = Annotated[float, Range(0, 1, "how far", above=True)]


@dataclass(frozen=True, slots=True)
class Where:
    """Options within others."""

    out: Path | None = option(None, "A file.", flag=("-o", "--out"), path="file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Options of a command."""

    name: str = option(REQUIRED, argument=True)
    where: Where
    times: tuple[int, ...] = option((1, 2), "Repeat.", flag="--time", low=0, high=9)
    rate: float = option(0.5, "A share.", low=0.0, high=1.0)
    kind: Literal["a", "b"] = option("a", "Which.")
    loud: bool = option(True, "Or not.")
    as_json: bool = JSON()


@command(Demo)
def demo(options: Demo) -> None:
    """Show what was said."""
    click.echo(repr(options))


def said(*arguments: str) -> str:
    return CliRunner().invoke(demo, list(arguments)).output


def test_a_command_gets_one_typed_value() -> None:
    asked = said("x", "-o", "f", "--time", "3", "--time", "4", "--rate", "1", "--kind", "b", "--no-loud", "--json")
    wanted = Demo(
        name="x",
        where=Where(Path("f").resolve().relative_to(Path.cwd())),
        times=(3, 4),
        rate=1.0,
        kind="b",
        loud=False,
        as_json=True,
    )
    assert asked == f"{wanted!r}\n"
    assert said("x") == f"{Demo(name='x', where=Where())!r}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing argument 'NAME'"),
        (("x", "--time", "10"), "10 is not in the range 0<=x<=9"),
        (("x", "--rate", "nan"), "nan is no number"),
        (("x", "--kind", "c"), "'c' is not one of 'a', 'b'"),
        (("x", "--rates", "1"), "--rate"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: tuple[str, ...], words: str) -> None:
    assert words in said(*arguments)


def test_help_says_defaults_and_ranges() -> None:
    page = said("--help")
    assert "--rate FLOAT RANGE" in page and "[default: 0.5; 0.0<=x<=1.0]" in page and "--loud / --no-loud" in page


def test_parameters_of_codecs_and_keywords_of_functions_are_read_as_they_are() -> None:
    ratio = next(o for o in options_of(REGISTRY.families["topk"].params) if o.name == "ratio")
    assert ratio.type is float and ratio.help and ratio.check("ratio", 1) == 1.0
    with pytest.raises(ConfigError, match=r"codec.params.ratio = 2.0: out of range .*; the nearest is 1"):
        ratio.check("codec.params.ratio", 2)

    def mix(eta: Rate = 1.0, degree: int | None = None, *, graph: object = None) -> None: ...

    assert [(o.name, o.type, o.default) for o in options_of(mix)] == [("eta", float, 1.0), ("degree", int, None)]
    assert options_of(mix)[0].help == "how far (above 0 and at most 1)"


# What other rooms take of a command's options by name, less what the command makes of them itself.
TAKEN = [
    ("lab.bench.__main__.Codecs", "lab.bench.run_codecs.Options", ""),
    ("lab.bench.__main__.Mesh", "lab.bench.mesh.Settings", ""),
    ("lab.bench.__main__.Int8", "lab.bench.int8.Options", ""),
    ("lab.bench.__main__.Server", "lab.bench.server.Options", ""),
    ("edgegossip.cli.study.StudyCommand", "edgegossip.studies.campaign.StudyOptions", "listed"),
    ("edgegossip.cli.scale.ScaleCommand", "edgegossip.scale.campaign.ScaleOptions", "security"),
    ("edgegossip.cli.scale.ScaleCommand", "edgegossip.scale.follow.FollowOptions", "operator runs_dir"),
    ("edgegossip.cli.node.Node", "edgegossip.node.main.NodeOptions", "members joined make_runtime resume"),
    (
        "edgegossip.cli.coordinator.CoordinatorCommand",
        "edgegossip.fleet.launch.coordinator.CoordinatorOptions",
        "",
    ),
]


def named(path: str) -> type:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("options", "taken", "besides"), TAKEN)
def test_options_have_what_is_taken_of_them(options: str, taken: str, besides: str) -> None:
    have = {f.name for f in fields(named(options))}
    assert {f.name for f in fields(named(taken))} - set(besides.split()) <= have


def test_the_reference_page_is_up_to_date() -> None:
    pytest.importorskip("flwr", reason="the page has Flower's strategies: pip install '.[server]'")
    made = subprocess.run(
        [sys.executable, "scripts/reference.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert made.stdout == page, "python scripts/reference.py > docs/reference.md"
