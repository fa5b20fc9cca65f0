"""What the lines of an attack say: whether the board stood it. Pure, but for reading files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.growth import MIN_SAMPLES, growth

BOARD = "pi-1"
LIMITS = {"rss_bytes": 4 << 20, "anonymous_bytes": 4 << 20, "threads": 2, "descriptors": 4, "tasks": 4}
MAX_GAP_S = 30.0  # between two rounds of an honest board; quarantine and reconnects may cost some seconds
ACCURACY = 0.8


def read(file: Path) -> list[dict[str, Any]]:
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def accuracy(runs: Path) -> float | None:
    """The last one in a board's metrics."""
    found = None
    for file in runs.glob("*/metrics.jsonl"):
        for line in file.read_text().splitlines():
            if '"eval/accuracy"' in line and line.endswith("}"):
                found = json.loads(line)["eval/accuracy"]
    return found


def judge(lines: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """All sessions together, and what is wrong."""
    starts = [k for k, line in enumerate(lines) if "session" in line]
    sessions = [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
    wrong: list[str] = []
    sums: dict[str, Counter[str]] = {
        k: Counter() for k in ("delivered", "lost", "answers", "reached", "refused", "reasons")
    }
    rows = []
    for part in sessions:
        samples = [line for line in part if "t_s" in line]
        if not samples:
            wrong.append("a session without a sample")
            continue
        last, end = samples[-1], next((line for line in part if "end" in line), None)
        counts: Mapping[str, Any] = next((line["counts"] for line in reversed(part) if "counts" in line), {})
        for key in ("delivered", "lost", "answers"):
            sums[key].update(last[key])
        for key in ("reached", "refused", "reasons"):
            sums[key].update(counts[key])
        rows.append(_session(part[0], samples, end))
        wrong += _wrong(samples, end)
    wrong += [f"{count} refusals {text}" for text, count in sums["reasons"].items() if "NO REASON" in text]
    document = {"sessions": rows, **{k: dict(v.most_common()) for k, v in sums.items()}, "wrong": wrong}
    return document, wrong


def _session(
    head: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], end: Mapping[str, Any] | None
) -> dict[str, Any]:
    seconds = samples[-1]["t_s"]
    boards = {
        n: {q: [s["boards"][n][q] for s in samples if n in s["boards"]] for q in (*LIMITS, "round")}
        for n in samples[0]["boards"]
    }
    return {
        "when": head["session"],
        "seed": head["seed"],
        "seconds": seconds,
        "delivered": sum(samples[-1]["delivered"].values()),
        "load": sorted(s["load"] for s in samples)[len(samples) // 2],
        "quarters": {n: {q: _quarters(v) for q, v in rows.items() if q != "round"} for n, rows in boards.items()},
        "rounds": {n: rows["round"][-1] - rows["round"][0] for n, rows in boards.items()},
        "end": end and {k: end[k] for k in ("end", "early", "rounds_after", "accuracy", "events")},
    }


def _quarters(values: Sequence[float]) -> list[float]:
    if len(values) < MIN_SAMPLES:
        return []
    found = growth(values, 0)
    return [found.before, found.after]


def _wrong(samples: Sequence[Mapping[str, Any]], end: Mapping[str, Any] | None) -> list[str]:
    wrong = []
    for name in samples[0]["boards"]:
        seen = [(s["t_s"], s["boards"][name]) for s in samples if name in s["boards"]]
        if len(seen) < len(samples):
            wrong.append(f"{name} is missing in {len(samples) - len(seen)} samples")
        if len(seen) >= MIN_SAMPLES:
            for quantity, limit in LIMITS.items():
                found = growth([row[quantity] for _, row in seen], limit)
                if found.grew:
                    wrong.append(f"{name}: {quantity} grew from {found.before:.0f} to {found.after:.0f}")
        gap = _longest_gap([(t, row["round"]) for t, row in seen])
        if gap > MAX_GAP_S:
            wrong.append(f"{name} ended no round for {gap:.0f} s")
    if end is None:
        return wrong
    wrong += [f"{n} ended early with {code}" for n, code in end["early"].items()]
    wrong += [f"{n} ended with {code}, not 130" for n, code in end["end"].items() if code != 130]
    wrong += [f"{n} made no round after the attack" for n, rounds in end["rounds_after"].items() if rounds <= 0]
    wrong += [f"{n} printed a traceback: {log}" for n, log in end["logs"].items()]
    wrong += [f"{n} is at accuracy {a}" for n, a in end["accuracy"].items() if a is None or a < ACCURACY]
    for name, events in end["honest"].items():
        wrong += [f"{name}: {text}" for text in events if "dead" in text or "lost" in text or "refused" in text]
    return wrong + ([end["failure"]] if end["failure"] else [])


def _longest_gap(rounds: Sequence[tuple[float, int]]) -> float:
    longest, last = 0.0, rounds[0]
    for row in rounds:
        if row[1] != last[1]:
            last = row
        longest = max(longest, row[0] - last[0])
    return longest


def markdown(document: Mapping[str, Any]) -> str:
    out = ["| messages of the attackers | delivered | lost with a connection |", "| --- | ---: | ---: |"]
    out += [f"| {k} | {n} | {document['lost'].get(k, 0)} |" for k, n in document["delivered"].items()]
    out.append(f"| all | {sum(document['delivered'].values())} | {sum(document['lost'].values())} |")
    out += ["", "| decoder of the board | messages that reached it, honest ones included |", "| --- | ---: |"]
    out += [f"| {k} | {n} |" for k, n in document["reached"].items()]
    for row in document["sessions"]:
        out += [
            "",
            f"{row['when']}, seed {row['seed']}: {row['delivered']} messages in {row['seconds']:.0f} s, load {row['load']:.1f}.",
            "",
        ]
        out += ["| board | rounds | " + " | ".join(LIMITS) + " |", "| --- | ---: |" + " ---: |" * len(LIMITS)]
        for name, quarters in row["quarters"].items():
            cells = [_cell(quantity, quarters[quantity]) for quantity in LIMITS]
            out.append(f"| {name} | {row['rounds'][name]} | {' | '.join(cells)} |")
    out += ["", "| reasons, numbers left out | times |", "| --- | ---: |"]
    out += [f"| {k.replace('|', '/')} | {n} |" for k, n in list(document["reasons"].items())[:40]]
    said = "Nothing wrong." if not document["wrong"] else "**" + "; ".join(document["wrong"]) + "**"
    return "\n".join([*out, "", said, ""])


def _cell(quantity: str, quarters: Sequence[float]) -> str:
    if not quarters:
        return "-"
    unit, places = (1 << 20, 1) if quantity.endswith("bytes") else (1, 0)
    before, after = quarters
    return f"{before / unit:.{places}f} {(after - before) / unit:+.{places}f}"
