"""The format of a report, checked by code, for reports come from others; and two of them beside
each other. Texts in a report are printable and short, so that a page may show them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from edgegossip.files import MAX_TEXT_BYTES
from edgegossip.report.table import in_columns
from edgegossip.types import DataError
from edgegossip.untrusted import printable

FORMAT = 1
KINDS = ("board", "virtual machine", "emulated")
LEVELS = ("bad", "warning", "good")
EDGES = 5  # samples at either end of the load
_LONGEST = 600  # characters of a text
_MOST = 2000  # members of a list or a table

Report = dict[str, Any]


class Optional:
    """Marks what may be null."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


class Newer(Optional):
    """Marks what may be null, and what reports of earlier versions lack."""


class Each:
    """Marks a table of values of one shape under any names."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


_NUMBER = float  # an integer is one, too
_RATES = Each(_NUMBER)
SHAPE: Mapping[str, Any] = {
    "format": int,
    "made": str,
    "kind": KINDS,
    "board": str,
    "profile": Optional(str),
    "seconds": _NUMBER,
    "software": {
        "python": str,
        "system": str,
        "commit": Optional(str),
        "dirty": Optional(bool),
        "packages": Each(Optional(str)),
    },
    "findings": [{"level": LEVELS, "about": str, "text": str}],
    "bad": int,
    "warnings": int,
    "sections": Each(dict),
}
SECTIONS: Mapping[str, Any] = {
    "isa": {
        "machine": str,
        "told": Optional([str]),
        "compiled": [str],
        "available": [str],
        "used": str,
        "asked": Optional(str),
    },
    "facts": {
        "board": Optional(str),
        "machine": str,
        "python": str,
        "packages": Each(Optional(str)),
        "unix_s": _NUMBER,
        "clock_synchronised": Optional(bool),
        "power_mode": Optional(str),
        "power_modes": [[(str, int)]],
        "jetson_linux": Newer(str),
        # Of reports that were sent before.
        "gpu": Newer(("open", "closed", "missing")),
        "torch_build": Newer({"cuda": Optional(str), "architectures": [str], "trouble": Optional(str)}),
        "spares": Newer([[(str, int)]]),
        **dict.fromkeys(("allowed_hz", "highest_hz"), Newer(_NUMBER)),
        "throttled": Optional(int),
        "governors": [str],
        "temperature_c": Optional(_NUMBER),
        "wear": [[(str, int)]],
        **dict.fromkeys(("memory_bytes", "available_bytes", "swap_used_bytes", "disk_free_bytes"), Optional(int)),
        "root_is_read_only": bool,
        "interfaces": [{"mtu": int, "wireless_dbm": Optional(_NUMBER)}],
    },
    "sensors": {"names": [str], "values": _RATES, "needed": bool},
    "bits": {"checked": int, "wrong": [{"what": str, "isa": str, "fault": str}]},
    "claims": {"checked": int, "broken": [str]},
    "storage": {
        "written_bytes": int,
        **dict.fromkeys(("write_bytes_per_s", "read_bytes_per_s"), Optional(_NUMBER)),
        **dict.fromkeys(("fsync_s", "fsync_worst_s"), _NUMBER),
    },
    "int8": {"values_per_s": Each(_RATES)},
    "torch": dict.fromkeys(("cosine", "loss", "torch_loss"), _NUMBER),
    "load": {
        "threads": int,
        **dict.fromkeys(("idle_w", "load_w"), Optional(_NUMBER)),
        "samples": [_RATES],
    },
    "rates": {
        **dict.fromkeys(("name", "title"), str),
        **dict.fromkeys(("cores", "memory_bytes"), int),
        **dict.fromkeys(("fp32_flops", "int8_ops", "memory_bytes_per_s", "link_bits_per_s"), _NUMBER),
        **dict.fromkeys(("encode_bytes_per_s", "decode_bytes_per_s"), _RATES),
        **dict.fromkeys(("one_thread_flops", "one_thread_int8_ops", "update_spread"), Optional(_NUMBER)),
        "accelerator_flops": Optional(_NUMBER),
        "power_sensors": [str],
        "power_mode": Newer(str),
        "sources": Each(str),
    },
    "link": {
        **dict.fromkeys(("up_bits_per_s", "down_bits_per_s", "round_trip_s", "ahead_s"), _NUMBER),
        "mtu": Optional(int),
    },
}


def load(path: Path) -> Report:
    """Read a report. Raises DataError for what is none."""
    try:
        data = path.read_bytes()
        if len(data) > MAX_TEXT_BYTES:
            raise DataError(f"{path} is no report of `accept`: {len(data)} bytes")
        document = json.loads(data)
    except OSError as error:
        raise DataError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not valid JSON") from None
    for fault in faults(document):
        raise DataError(f"{path} is no report of `accept`: {fault}")
    made: Report = document
    return made


def faults(document: Any) -> Iterator[str]:
    """Yield what is wrong with a report's format, with the place of each."""
    if isinstance(document, Mapping) and document.get("format") != FORMAT:
        yield f"format is {document.get('format')!r}, and this version reads {FORMAT}"
        return
    broken = list(_faults("report", document, SHAPE))
    yield from broken
    if not broken:
        for name, section in document["sections"].items():
            if name in SECTIONS:
                yield from _faults(name, section, SECTIONS[name])
            else:
                yield f"sections has no {printable(name, 40)!r}"
        for level, key in (("bad", "bad"), ("warning", "warnings")):
            counted = sum(finding["level"] == level for finding in document["findings"])
            if counted != document[key]:
                yield f"{key} is {document[key]}, and {counted} findings are of that level"


def _faults(where: str, value: Any, shape: Any) -> Iterator[str]:
    if isinstance(shape, Optional):
        yield from () if value is None else _faults(where, value, shape.shape)
    elif isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            yield f"{where} is no table"
            return
        yield from (f"{where} lacks {key}" for key in shape if key not in value and not isinstance(shape[key], Newer))
        yield from (
            f"{where} has {printable(str(key), 40)}, which belongs to no report" for key in value if key not in shape
        )
        for key in shape.keys() & value.keys():
            yield from _faults(f"{where}.{key}", value[key], shape[key])
    elif isinstance(shape, Each):
        if not isinstance(value, Mapping) or len(value) > _MOST:
            yield f"{where} is no table"
            return
        for key, one in value.items():
            yield from _faults(f"{where}, a name", key, str)
            yield from _faults(f"{where}.{printable(str(key), 40)}", one, shape.shape)
    elif isinstance(shape, list):
        if not isinstance(value, list) or len(value) > _MOST:
            yield f"{where} is no list"
            return
        for number, one in enumerate(value):
            yield from _faults(f"{where}[{number}]", one, shape[0])
    else:
        yield from () if _fits(value, shape) else [f"{where} is {printable(repr(value), 60)}"]


def _fits(value: Any, shape: Any) -> bool:
    if isinstance(shape, tuple):  # choices, or one of several kinds
        return any(value == one if isinstance(one, str) else _fits(value, one) for one in shape)
    if shape is str:
        return isinstance(value, str) and len(value) <= _LONGEST * 2 and value == printable(value, _LONGEST * 2)
    if shape is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return type(value) is shape


def figures(report: Report) -> dict[str, float]:
    """Return every number of a report's sections, by its place; of the load its first and last
    rate, and the hottest moment."""
    found: dict[str, float] = {}
    for name, section in report["sections"].items():
        rest = {key: value for key, value in section.items() if key not in ("samples", "unix_s")}
        found |= dict(_numbers(name, rest))
    if samples := report["sections"].get("load", {}).get("samples"):
        found["load.first_products_per_s"], found["load.last_products_per_s"] = edge_rates(samples)
        if degrees := [s["temperature_c"] for s in samples if "temperature_c" in s]:
            found["load.hottest_c"] = max(degrees)
    return found


def edge_rates(samples: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return the mean rate of the load's first and of its last samples."""
    first, last = (mean(s["products_per_s"] for s in part) for part in (samples[:EDGES], samples[-EDGES:]))
    return first, last


def _numbers(where: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _numbers(f"{where}.{key}", one)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield where, float(value)


def compared(a: Report, b: Report) -> dict[str, Any]:
    """Put two reports beside each other: `figures` that both have, with how many times a's value
    b's is, and `findings` of only one of them."""
    ours, theirs = figures(a), figures(b)
    rows = [
        {"figure": name, "a": ours[name], "b": theirs[name], "ratio": theirs[name] / ours[name] if ours[name] else None}
        for name in ours
        if name in theirs
    ]
    texts = [{finding["text"] for finding in report["findings"]} for report in (a, b)]
    only = [
        {"report": letter, **finding}
        for letter, report, others in (("a", a, texts[1]), ("b", b, texts[0]))
        for finding in report["findings"]
        if finding["text"] not in others and finding["level"] != "good"
    ]
    return {"a": title(a), "b": title(b), "figures": rows, "findings": only}


DIFFERENT = 1.1  # times as much, or as little


def comparison_text(made: Mapping[str, Any]) -> str:
    """Lay out what differs by a tenth or more, and the findings of only one report."""
    rows: list[tuple[str, ...]] = [("figure", "A", "B", "B/A")]
    for row in made["figures"]:
        ratio = row["ratio"]
        if ratio is not None and not 1 / DIFFERENT < ratio < DIFFERENT:
            rows.append((row["figure"], f"{row['a']:.4g}", f"{row['b']:.4g}", f"{ratio:.2f}"))
    lines = [f"A: {made['a']}", f"B: {made['b']}", "", *in_columns(rows)]
    lines.append(f"{len(made['figures']) - len(rows) + 1} figures are within a tenth of each other")
    lines += ["", *(f"only {f['report'].upper()}: {f['about']}: {f['text']}" for f in made["findings"])]
    return "\n".join(lines).rstrip()


def title(report: Report) -> str:
    """Return what a report is of, such as "Raspberry Pi 5 (board), 2026-11-27"; what is not a board
    says so."""
    return f"{report['board']} ({report['kind']}), {report['made'][:10]}"


def text_of(report: Report) -> str:
    """Lay out a report's verdict for people: a line a finding, the worst first."""
    mark = {"bad": "!!", "warning": " !", "good": "ok"}
    lines = [title(report), *(f"{mark[f['level']]}  {f['about']:<12}  {f['text']}" for f in report["findings"])]
    bad, warnings = report["bad"], report["warnings"]
    lines.append(f"{bad} to put right, {warnings} to know of" if bad or warnings else "nothing found wrong")
    return "\n".join(lines)
