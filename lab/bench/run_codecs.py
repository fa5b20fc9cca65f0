"""The command behind `python -m lab.bench codecs`: inputs, cases, rows as they come, the document,
the check."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from edgegossip import native
from edgegossip.telemetry.machine import environment
from edgegossip.types import EXIT_OK, ConfigError, HostError
from lab.bench import inputs
from lab.bench.cases import Case, description, parse_cases, parse_size
from lab.bench.codecs import Row, Settings, measure
from lab.bench.inputs import Input, Tensors
from lab.bench.tables import exit_code, machine_line, packages_line, page, verdict_word, write_document
from lab.bench.torch_quantisers import can_compile

Print = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """Holds the options of the command as they were given."""

    codecs: tuple[str, ...]
    coders: tuple[str, ...]
    inputs: tuple[str, ...]
    sizes: tuple[str, ...]
    settings: tuple[str, ...]  # of the recipe that gradients are dumped from
    steps: int
    threads: int
    repeat: int
    min_seconds: float
    caches: str
    seed: int
    rivals: bool
    compiled: bool
    check: bool
    save: Path | None


def run(options: Options, arguments: Sequence[str], out: Print, note: Print) -> tuple[dict[str, Any], int]:
    """Measure. Rows go to `out` as lines when they are there; what was left out to `note`. The
    document and the exit code. Raises ConfigError for options that make no sense, HostError when
    the folder cannot be written to."""
    os.environ["EDGEGOSSIP_THREADS"] = str(options.threads)
    if options.settings and "gradient" not in options.inputs:
        raise ConfigError(
            f"--set {options.settings[0]} changes the recipe behind --input gradient, which is not measured"
        )
    plan = _plan(options)
    sources = {name: cache(_source(name, options)) for name in dict.fromkeys(options.inputs)}
    compiled = options.rivals and options.compiled and can_compile()
    if options.save is not None:
        with _writing(options.save):
            options.save.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "machine": environment(arguments),
        "command": shlex.join(["python", "-m", "lab.bench", *arguments]),
        "threads": options.threads,
        "repeat": options.repeat,
        "min_seconds": options.min_seconds,
        "caches": options.caches,
        "seed": options.seed,
        "torch_compiled": compiled,
        "rows": [],
    }
    out(machine_line(document["machine"]))
    out(heading())
    settings = Settings(
        options.repeat, options.min_seconds, options.threads, options.seed, options.rivals, compiled, options.caches
    )
    last_steps = [max((k for k, step in enumerate(plan) if t.judges(step)), default=0) for t in TARGETS]
    for at, step in enumerate(plan):
        document["rows"] += _measured(step.case, sources[step.source](step.n), settings, out, note)
        for target, last in zip(TARGETS, last_steps, strict=True):
            if options.check and last == at:
                out(verdict_line(_check(target, document["rows"]).as_dict()))
    return document, _conclude(document, options, out)


_SIZES = ("8MB", "100MB")  # unless some are given


@dataclass(frozen=True, slots=True)
class _Step:
    """A case on one input, before it is measured."""

    n: int
    source: str
    case: Case

    def sketches(self) -> Iterator[Row]:
        """Return what is known of its rows; of an entropy, what it can be."""
        for coder in self.case.coders or (None,):
            name, params = description(self.case.build(coder))
            known = {"n": self.n, "input": self.source, "isa": native.isa(), "stage": coder, "family": name}
            for entropy_bits in (0.5, 2.0):
                yield {**known, "bits": params.get("bits"), "entropy_bits": entropy_bits}


def _plan(options: Options) -> list[_Step]:
    """What to measure, in order. A check of which neither codecs nor sizes are given measures what
    its targets speak of, each at the least size at which they do, codec by codec, so that verdicts
    come early. Raises ConfigError."""
    cases = parse_cases(options.codecs, options.coders)
    sizes = [parse_size(text) for text in options.sizes or _SIZES]
    names = dict.fromkeys(options.inputs)
    if not options.check or options.codecs or options.sizes:
        return [_Step(n, name, case) for n in sizes for name in names for case in cases]
    single = [
        _Step(n, name, replace(case, coders=(coder,) if coder else ()))
        for n in sorted(sizes)
        for case in cases
        for name in names
        for coder in case.coders or (None,)
    ]
    wanted = set()
    for target in TARGETS:
        judged = [k for k, step in enumerate(single) if target.judges(step)]
        wanted |= {k for k in judged if single[k].n == single[judged[0]].n}
    plan: list[_Step] = []
    for k in sorted(wanted):
        step, last = single[k], plan[-1] if plan else None
        if last and (last.n, last.source, last.case.label) == (step.n, step.source, step.case.label):
            plan[-1] = replace(last, case=replace(last.case, coders=last.case.coders + step.case.coders))
        else:
            plan.append(step)
    return plan


def _source(name: str, options: Options) -> Callable[[int], Input]:
    """From a number of values to the input. Reads or computes what it needs at once, so that
    mistakes show early."""
    if name == "synthetic":
        return lambda n: inputs.synthetic(n, options.seed)
    if name == "gradient":
        tensors = inputs.dump(inputs.recipe_for(options.settings), options.steps)
        return lambda n: inputs.fitted("gradient", tensors, n)
    if not Path(name).is_file():
        raise ConfigError(f"--input {name}: neither synthetic, gradient nor a file")
    read: Tensors = inputs.read(Path(name))
    return lambda n: inputs.fitted(Path(name).stem, read, n)


def _measured(case: Case, data: Input, settings: Settings, out: Print, note: Print) -> list[Row]:
    try:
        rows = measure(case, data, settings)
    except HostError as error:  # a coder whose package is not installed
        note(f"left out {case.label}: {error}")
        return []
    for row in rows:
        out(line(row))
    return rows


def _conclude(document: dict[str, Any], options: Options, out: Print) -> int:
    """Notes, the check and files; the exit code."""
    for text in _notes(document):
        out(text)
    code = EXIT_OK
    if options.check:
        verdicts = verdicts_on(document["rows"])
        document["checks"] = [verdict.as_dict() for verdict in verdicts]
        held = [verdict.holds for verdict in verdicts]
        out(
            f"{held.count(True)} of {len(held)} targets hold, {held.count(False)} fail, {held.count(None)} were not measured"
        )
        code = exit_code(held)
    if options.save is not None:
        with _writing(options.save):
            write_document(options.save, "codecs", document, markdown(document))
    return code


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raises HostError for a folder that cannot be made or written to."""
    try:
        yield
    except OSError as error:
        raise HostError(f"cannot write to {folder}: {error.strerror or error}") from None


# The figures that a release has to reach, in one table, and the check of rows against them.
#
# Speed is for one core; the ratios to memcpy are stated for machines with AVX-512 and are checked
# with every instruction set but `portable`. Every figure is the worst among the rows that a line
# speaks of.


@dataclass(frozen=True, slots=True)
class Target:
    """Describes one line: a figure of certain rows and its bound. `portable`: the bound for the
    portable build; None: none. `plain`: the same
    figure against the rival as a user writes it, which is told and not judged."""

    text: str
    of: Callable[[Row], bool]
    figure: Callable[[Row], float | None]
    bound: float
    at_least: bool = True
    portable: float | None = None
    any_isa: bool = False  # the bound holds for the portable build too
    plain: Callable[[Row], float | None] = lambda row: None

    def bound_for(self, row: Row) -> float | None:
        """Return the bound for this row's instruction set; None: it has none."""
        return self.bound if self.any_isa or row["isa"] != "portable" else self.portable

    def judges(self, step: _Step) -> bool:
        """Say whether rows of this step can be among those that the line speaks of."""
        return any(self.of(row) and self.bound_for(row) is not None for row in step.sketches())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says what a line came to. `holds` None: no row that it speaks of was measured. `plain`: that
    row's figure against plain torch, where the line is against tuned torch."""

    text: str
    bound: float
    at_least: bool
    figure: float | None
    row: str
    isa: str
    holds: bool | None
    plain: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for the document."""
        return asdict(self)


def _field(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _four_bits(coder: str, *families: str) -> Callable[[Row], bool]:
    return lambda row: row["stage"] == coder and row["bits"] == 4 and row["family"] in families


def _coded(low: float, high: float) -> Callable[[Row], bool]:
    return lambda row: (
        row["stage"] in ("huffman", "auto") and row["entropy_bits"] is not None and low <= row["entropy_bits"] < high
    )


def _above_entropy(row: Row) -> float | None:
    """Percent that the body is larger than its symbols' entropy, heads and scales counted."""
    return 100 * (row["bits_per_value"] / row["entropy_bits"] - 1) if row["entropy_bits"] else None


def _sparse(row: Row) -> bool:
    return row["family"] in ("topk", "dgc")


_BOTH = ("qsgd", "elastiquant")


TARGETS = (
    Target("quantise and pack 4 bits, encoding to memcpy", _four_bits("raw", *_BOTH), _field("encode_vs_memcpy"), 0.5),
    Target(
        "quantise and pack 4 bits, qsgd to tuned torch",
        _four_bits("raw", "qsgd"),
        _field("encode_vs_torch_tuned"),
        17.0,
        portable=6.0,
        plain=_field("encode_vs_torch"),
    ),
    Target(
        "quantise and pack 4 bits, elastiquant to tuned torch",
        _four_bits("raw", "elastiquant"),
        _field("encode_vs_torch_tuned"),
        60.0,
        portable=25.0,
        plain=_field("encode_vs_torch"),
    ),
    Target("4 bits and Huffman, encoding to memcpy", _four_bits("huffman", *_BOTH), _field("encode_vs_memcpy"), 0.30),
    Target("4 bits and Huffman, decoding to memcpy", _four_bits("huffman", *_BOTH), _field("decode_vs_memcpy"), 0.65),
    Target("Elias, encoding to numpy", lambda r: r["stage"] == "elias", _field("encode_vs_numpy"), 5.0),
    Target("Elias, decoding to numpy", lambda r: r["stage"] == "elias", _field("decode_vs_numpy"), 5.0),
    Target(
        "Huffman or auto above an entropy from 1.5 bit, %",
        _coded(1.5, float("inf")),
        _above_entropy,
        3.5,
        at_least=False,
        any_isa=True,
    ),
    Target(
        "Huffman or auto above an entropy below 1 bit, %",
        _coded(0.0, 1.0),
        _above_entropy,
        12.0,
        at_least=False,
        any_isa=True,
    ),
    Target(
        "topk and dgc of 25 M values, selection to torch.topk",
        lambda r: _sparse(r) and r["n"] >= 25_000_000,
        _field("select_vs_torch"),
        3.0,
    ),
    # Not of synthetic values: the entropy of 1 % independent positions is 8.08 bits each, which no
    # code can beat.
    Target(
        "topk and dgc of gradients, bits an index",
        lambda r: _sparse(r) and r["input"] != "synthetic",
        _field("index_bits"),
        8.0,
        at_least=False,
        any_isa=True,
    ),
)


def verdicts_on(rows: Sequence[Row]) -> tuple[Verdict, ...]:
    """Return every line with the worst figure among its rows."""
    return tuple(_check(target, rows) for target in TARGETS)


def _check(target: Target, rows: Sequence[Row]) -> Verdict:
    judged = []
    for row in rows:
        bound = target.bound_for(row) if target.of(row) else None
        figure = target.figure(row) if bound is not None else None
        if bound is not None and figure is not None:
            margin = figure - bound if target.at_least else bound - figure
            judged.append((margin, figure, bound, row))
    if not judged:
        return Verdict(target.text, target.bound, target.at_least, None, "", "", None)
    margin, figure, bound, row = min(judged, key=lambda j: j[0])
    where = f"{row['codec']} {row['stage'] or ''}".strip() + f", {row['input']}, {row['n']}"
    return Verdict(target.text, bound, target.at_least, figure, where, row["isa"], margin >= 0, target.plain(row))


# Rows, verdicts and the document as plain text and as Markdown.


# Head, field, width, decimals; decimals None: text.
_COLUMNS: tuple[tuple[str, str, int, int | None], ...] = (
    ("codec", "codec", 20, None),
    ("stage", "stage", 7, None),
    ("input", "input", 10, None),
    ("values", "n", 9, 0),
    ("bits", "bits_per_value", 7, 3),
    ("entropy", "entropy_bits", 7, 3),
    ("error", "relative_error", 7, 4),
    ("encode", "encode_mb_s", 7, 0),
    ("decode", "decode_mb_s", 7, 0),
    ("add", "decode_add_mb_s", 7, 0),
    ("memcpy", "memcpy_mb_s", 7, 0),
    ("cpy q1", "memcpy_q1_mb_s", 7, 0),
    ("cpy q3", "memcpy_q3_mb_s", 7, 0),
    ("enc/cpy", "encode_vs_memcpy", 7, 2),
    ("dec/cpy", "decode_vs_memcpy", 7, 2),
    ("enc/torch", "encode_vs_torch", 9, 1),
    ("dec/torch", "decode_vs_torch", 9, 1),
    ("enc/tuned", "encode_vs_torch_tuned", 9, 1),
    ("dec/tuned", "decode_vs_torch_tuned", 9, 1),
)
_NOTES = (
    "bits: on the wire, a value; entropy: order 0, of the symbols, by tensor; error: relative, L2",
    "encode, decode, add (decoding into a sum), memcpy: MB of float32 a second, medians over rounds; q1, q3: memcpy's quartiles",
    "/cpy: median over rounds of the ratio to the memcpy that runs between encoding and decoding in the same round",
    "/torch, /tuned, x numpy, x torch.topk: ratio of two medians of the same run (a slow rival sits out rounds)",
    "before one is timed, other memory is read until nothing of its own is in a cache, or with --caches warm it runs once",
    "torch: the codec as plain torch code; tuned: {tuned}, if that differs; both quantise and pack alone",
    "sizes and error are of the first message",
)


def _notes(document: dict[str, Any]) -> list[str]:
    """Return what the columns mean. Earlier results have a weaker rival as tuned torch."""
    tuned = "torch with temporaries reused, less than its best"
    if "torch_compiled" in document:
        tuned = f"at its best (with{'' if document['torch_compiled'] else 'out'} torch.compile)"
    return [text.format(tuned=tuned) for text in _NOTES]


def heading() -> str:
    """Return the head of the columns."""
    return "  ".join(head.ljust(w) if d is None else head.rjust(w) for head, _, w, d in _COLUMNS)


def line(row: Row) -> str:
    """Return one row, and behind the columns what only some rows have."""
    columns = "  ".join(
        text.ljust(w) if d is None else text.rjust(w) for (_, _, w, d), text in zip(_COLUMNS, _cells(row), strict=True)
    )
    return f"{columns}  {extras}".rstrip() if (extras := _extras(row)) else columns


def _extras(row: Row) -> str:
    parts = []
    if row["select_vs_torch"] is not None:
        parts.append(f"selection {row['select_vs_torch']:.1f} x torch.topk")
    if row["index_bits"] is not None:
        parts.append(f"{row['index_bits']:.2f} bits a position")
    if row["encode_vs_numpy"] is not None:
        parts.append(f"{row['encode_vs_numpy']:.1f} and {row['decode_vs_numpy']:.1f} x numpy")
    return ", ".join(parts)


def _cells(row: Row) -> list[str]:
    return [_text(row[field], decimals) for _, field, _, decimals in _COLUMNS]


def _text(value: Any, decimals: int | None) -> str:
    if value is None:
        return "-"
    return str(value) if decimals is None else f"{value:.{decimals}f}"


def verdict_line(verdict: dict[str, Any]) -> str:
    """Return one line of --check: verdict, figure, bound, that row's figure against plain torch if
    any, and the worst row."""
    sign = ">=" if verdict["at_least"] else "<="
    figure = _text(verdict["figure"], 2)
    plain = f" ({verdict['plain']:.1f} x plain torch)" if verdict.get("plain") is not None else ""
    where = f"  ({verdict['row']}; {verdict['isa']})" if verdict["row"] else ""
    return (
        f"{verdict_word(verdict['holds'])}  {figure:>8} {sign} {verdict['bound']:<5g}  {verdict['text']}{plain}{where}"
    )


def markdown(document: dict[str, Any]) -> str:
    """Return the document as lab/results/pages keeps it."""
    machine = document["machine"]
    return page(
        "Codecs: size, error and speed",
        f"{machine_line(machine)}; {packages_line(machine, 'numpy', 'torch')}",
        document["command"],
        _notes(document),
        [*(head for head, *_ in _COLUMNS), "besides"],
        [[*_cells(row), _extras(row)] for row in document["rows"]],
        [*(head for head, *_, decimals in _COLUMNS if decimals is None), "besides"],
        verdicts=[verdict_line(verdict) for verdict in document.get("checks") or ()],
    )
