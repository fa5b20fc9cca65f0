"""Rows, verdicts and the document as plain text and as Markdown."""

from __future__ import annotations

from typing import Any

from edgegossip.lab.bench.markdown import page

Row = dict[str, Any]

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
)
NOTES = (
    "bits: on the wire, a value; entropy: order 0, of the symbols, by tensor; error: relative, L2",
    "encode, decode, add (decoding into a sum), memcpy: MB of float32 a second, medians over rounds; q1, q3: memcpy's quartiles",
    "/cpy: median over rounds of the ratio to the memcpy that runs between encoding and decoding in the same round",
    "/torch, /tuned, x numpy, x torch.topk: ratio of two medians of the same run (a slow rival sits out rounds)",
    "before one is timed, other memory is read until nothing of its own is in a cache, or with --caches warm it runs once",
    "torch: the codec as plain torch code; tuned: torch with temporaries reused, if that differs; both quantise and pack alone",
    "sizes and error are of the first message",
)


def heading() -> str:
    """The head of the columns."""
    return "  ".join(head.ljust(w) if d is None else head.rjust(w) for head, _, w, d in _COLUMNS)


def line(row: Row) -> str:
    """One row, and behind the columns what only some rows have."""
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
    """One line of --check: verdict, figure, bound, that row's figure against tuned torch if any,
    and the worst row."""
    word = {True: "holds", False: "FAILS", None: "not measured"}[verdict["holds"]]
    sign = ">=" if verdict["at_least"] else "<="
    figure = _text(verdict["figure"], 2)
    tuned = f" ({verdict['tuned']:.1f} x tuned torch)" if verdict.get("tuned") is not None else ""
    where = f"  ({verdict['row']}; {verdict['isa']})" if verdict["row"] else ""
    return f"{word:12}  {figure:>8} {sign} {verdict['bound']:<5g}  {verdict['text']}{tuned}{where}"


def machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu'] or machine['machine']}, {machine['usable_threads']} threads, {machine['system']}, "
        f"{machine['python']}, isa {machine['isa']}, {machine['started']}"
    )


def packages_line(machine: dict[str, Any], *names: str) -> str:
    """Versions of the package and of these others, as far as they are there."""
    return ", ".join(f"{k} {v}" for k, v in machine["packages"].items() if v and k in ("edgegossip", *names))


def markdown(document: dict[str, Any]) -> str:
    """The document as docs/results keeps it."""
    machine = document["machine"]
    return page(
        "Codecs: size, error and speed",
        f"{machine_line(machine)}; {packages_line(machine, 'numpy', 'torch')}",
        document["command"],
        NOTES,
        [*(head for head, *_ in _COLUMNS), "besides"],
        [[*_cells(row), _extras(row)] for row in document["rows"]],
        [*(head for head, *_, decimals in _COLUMNS if decimals is None), "besides"],
        verdicts=[verdict_line(verdict) for verdict in document.get("checks") or ()],
    )
