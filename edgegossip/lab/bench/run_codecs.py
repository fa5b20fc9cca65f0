"""The command behind `edgegossip bench codecs`: inputs, cases, rows as they come, the document, the
check."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip import native
from edgegossip.lab.bench import gradients, inputs, show, targets
from edgegossip.lab.bench.cases import Case, parse_cases
from edgegossip.lab.bench.codecs import Row, Settings, measure
from edgegossip.lab.bench.inputs import Input, Tensors
from edgegossip.lab.bench.sizes import parse_size
from edgegossip.telemetry.environment import environment
from edgegossip.types import EXIT_OK, EXIT_RUN, ConfigError, HostError

Print = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, as given."""

    codecs: tuple[str, ...]
    stages: tuple[str, ...]
    inputs: tuple[str, ...]
    sizes: tuple[str, ...]
    settings: tuple[str, ...]  # of the recipe that gradients are dumped from
    steps: int
    threads: int
    repeat: int
    min_seconds: float
    caches: str
    seed: int
    isa: str | None
    rivals: bool
    check: bool
    save: Path | None


def run(asked: Asked, arguments: Sequence[str], out: Print, note: Print) -> tuple[dict[str, Any], int]:
    """Measure. Rows go to `out` as lines when they are there; what was left out to `note`. The
    document and the exit code. Raises ConfigError for options that make no sense, HostError when
    the folder cannot be written to."""
    use_kernels(asked.isa, asked.threads)
    if asked.settings and "gradient" not in asked.inputs:
        raise ConfigError(
            f"--set {asked.settings[0]} changes the recipe behind --input gradient, which is not measured"
        )
    cases, sizes = parse_cases(asked.codecs, asked.stages), [parse_size(text) for text in asked.sizes]
    sources = [(name, _source(name, asked)) for name in dict.fromkeys(asked.inputs)]
    if asked.save is not None:
        with _writing(asked.save):
            asked.save.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "machine": environment(arguments),
        "command": shlex.join(["edgegossip", *arguments]),
        "threads": asked.threads,
        "repeat": asked.repeat,
        "min_seconds": asked.min_seconds,
        "caches": asked.caches,
        "seed": asked.seed,
        "rows": [],
    }
    out(show.machine_line(document["machine"]))
    out(show.heading())
    settings = Settings(asked.repeat, asked.min_seconds, asked.threads, asked.seed, asked.rivals, asked.caches)
    for size in sizes:
        for _, source in sources:
            document["rows"] += _measure_all(cases, source(size), settings, out, note)
    return document, _conclude(document, asked, out)


def use_kernels(isa: str | None, threads: int) -> None:
    """Instruction set and threads of this process's kernels. Raises ConfigError for one that this
    machine lacks."""
    if isa is not None:
        if isa not in native.available_isas():
            raise ConfigError(f"--isa {isa}: this machine has {', '.join(native.available_isas())}")
        os.environ["EDGEGOSSIP_ISA"] = isa
    os.environ["EDGEGOSSIP_THREADS"] = str(threads)


def _source(name: str, asked: Asked) -> Callable[[int], Input]:
    """From a number of values to the input. Reads or computes what it needs at once, so that
    mistakes show early."""
    if name == "synthetic":
        return lambda n: inputs.synthetic(n, asked.seed)
    if name == "gradient":
        tensors = gradients.dump(gradients.recipe_for(asked.settings), asked.steps)
        return lambda n: inputs.fitted("gradient", tensors, n)
    if not Path(name).is_file():
        raise ConfigError(f"--input {name}: neither synthetic, gradient nor a file")
    read: Tensors = inputs.read(Path(name))
    return lambda n: inputs.fitted(Path(name).stem, read, n)


def _measure_all(cases: Sequence[Case], data: Input, settings: Settings, out: Print, note: Print) -> list[Row]:
    rows: list[Row] = []
    for case in cases:
        try:
            found = measure(case, data, settings)
        except HostError as error:  # a stage whose package is not installed
            note(f"left out {case.label}: {error}")
            continue
        for row in found:
            out(show.line(row))
        rows += found
    return rows


def _conclude(document: dict[str, Any], asked: Asked, out: Print) -> int:
    """Notes, the check and files; the exit code."""
    for text in show.NOTES:
        out(text)
    code = EXIT_OK
    if asked.check:
        verdicts = targets.check(document["rows"])
        document["checks"] = [verdict.as_dict() for verdict in verdicts]
        for verdict in document["checks"]:
            out(show.verdict_line(verdict))
        held = [verdict.holds for verdict in verdicts]
        out(
            f"{held.count(True)} of {len(held)} targets hold, {held.count(False)} fail, {held.count(None)} were not measured"
        )
        code = EXIT_OK if False not in held and True in held else EXIT_RUN
    if asked.save is not None:
        with _writing(asked.save):
            (asked.save / "codecs.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            (asked.save / "codecs.md").write_text(show.markdown(document), encoding="utf-8")
    return code


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raises HostError for a folder that cannot be made or written to."""
    try:
        yield
    except OSError as error:
        raise HostError(f"cannot write to {folder}: {error.strerror or error}") from None
