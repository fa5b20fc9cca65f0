"""A report for people: its figures, its verdict as text, and all of it as one HTML file without
scripts and network requests."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, TypeAlias

from edgegossip.report.units import number_text

Report: TypeAlias = dict[str, Any]

SECTIONS = ("isa", "facts", "sensors", "bits", "claims", "storage", "int8", "torch", "load", "rates", "link")
EDGES = 5  # samples at either end of the load
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
body {{ color: #22272e; background: #fff }}
h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
table {{ border-collapse: collapse; width: 100% }}
td {{ text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid #e4e7ea }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }}
.bad {{ color: #b3261e; font-weight: 600 }} .warning {{ color: #8a5300; font-weight: 600 }} .good {{ color: #00684a }}
.kind {{ background: #fff3cd; padding: .4rem .7rem; border-radius: .3rem }}
svg {{ width: 100%; height: auto }} svg text {{ font-size: 11px; fill: #667079 }}
@media (prefers-color-scheme: dark) {{
 body {{ color: #e6e9ec; background: #15191e }} td {{ border-color: #333b44 }} .kind {{ background: #4a3d12 }}
 .bad {{ color: #ff8a80 }} .warning {{ color: #f0b35a }} .good {{ color: #5fd0a5 }}
}}
</style></head><body>
"""
_WORDS = {"bad": "put right", "warning": "know of", "good": "in order"}
_WIDTH, _HEIGHT, _EDGE = 900, 160, 34


def title(report: Report) -> str:
    """Return what a report is of, such as "Raspberry Pi 5 (board), 2026-11-27"; what is not a board
    says so."""
    return f"{report['board']} ({report['kind']}), {report['made'][:10]}"


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


def text_of(report: Report) -> str:
    """Lay out a report's verdict for people: a line a finding, the worst first."""
    mark = {"bad": "!!", "warning": " !", "good": "ok"}
    lines = [title(report), *(f"{mark[f['level']]}  {f['about']:<12}  {f['text']}" for f in report["findings"])]
    bad, warnings = report["bad"], report["warnings"]
    lines.append(f"{bad} to put right, {warnings} to know of" if bad or warnings else "nothing found wrong")
    return "\n".join(lines)


def page(report: Report) -> str:
    """Return the page's text."""
    return "\n".join(_parts(report)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    yield _HEAD.format(title=html.escape(title(report)))
    yield f"<h1>{html.escape(report['board'])}</h1>"
    if report["kind"] != "board":
        yield f'<p class="kind">Not a board: {html.escape(report["kind"])}. Its speeds say nothing of one.</p>'
    beside = "" if report["profile"] is None else f", beside the profile {report['profile']}"
    yield f"<p>{html.escape(report['made'])}, {report['seconds']:.0f} s{html.escape(beside)}</p>"
    yield "<h2>Verdict</h2><table>"
    for finding in report["findings"]:
        level = finding["level"]
        yield (
            f'<tr><td class="{level}">{_WORDS[level]}</td><td>{html.escape(finding["about"])}</td>'
            f"<td>{html.escape(finding['text'])}</td></tr>"
        )
    yield "</table>"
    samples = report["sections"].get("load", {}).get("samples", [])
    if len(samples) > 1:
        yield "<h2>Under load</h2>"
        yield _curve("integer products/s, all cores", [(s["s"], s["products_per_s"]) for s in samples])
        heat = [(s["s"], s["temperature_c"]) for s in samples if "temperature_c" in s]
        if len(heat) > 1:
            yield _curve("degrees Celsius", heat)
    yield from _tables(figures(report))
    yield "<h2>Software</h2><table>"
    software = report["software"]
    names: Mapping[str, Any] = {k: software[k] for k in ("python", "system", "commit")} | dict(software["packages"])
    yield from (
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>" for name, value in names.items()
    )
    yield "</table></body></html>"


def _tables(numbers: Mapping[str, float]) -> Iterator[str]:
    """A table a section."""
    for section in dict.fromkeys(name.partition(".")[0] for name in numbers):
        yield f"<h2>{html.escape(section)}</h2><table>"
        for name, value in numbers.items():
            if name.startswith(f"{section}."):
                label = html.escape(name.partition(".")[2].replace("_", " ").replace(".", ", "))
                yield f'<tr><td>{label}</td><td class="number">{_number(value)}</td></tr>'
        yield "</table>"


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else number_text(value, 4)


def _curve(label: str, points: Sequence[tuple[float, float]]) -> str:
    """A line over seconds, from 0 up."""
    last, top = points[-1][0] or 1.0, max(y for _, y in points) or 1.0
    across, down = (_WIDTH - 2 * _EDGE) / last, (_HEIGHT - 40) / top
    path = " ".join(f"{_EDGE + across * x:.1f},{_HEIGHT - 20 - down * max(0.0, y):.1f}" for x, y in points)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{html.escape(label)}</title>'
        f'<polyline points="{path}" fill="none" stroke="#0072b2" stroke-width="2"/>'
        f'<text x="{_EDGE}" y="14">{html.escape(label)}, at most {top:.4g}</text>'
        f'<text x="{_WIDTH - _EDGE}" y="{_HEIGHT - 4}" text-anchor="end">{last:.0f} s</text></svg>'
    )
