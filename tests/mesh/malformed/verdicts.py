"""What an attack says: whether the board stood it. Pure, but for reading files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.growth import MIN_SAMPLES, growth
from tests.mesh.malformed.attack import Tally

LIMITS = {"rss_bytes": 4 << 20, "anonymous_bytes": 4 << 20, "threads": 2, "descriptors": 4, "tasks": 4}
MAX_GAP_S = 30.0  # between two rounds of an honest board; quarantine and reconnects may cost some seconds
ACCURACY = 0.8


@dataclass
class Attack:
    """What was seen: samples (seconds, what each board held) and, of each board, how it ended."""

    tally: Tally = field(default_factory=Tally)
    samples: list[tuple[float, Mapping[str, Mapping[str, float]]]] = field(default_factory=list)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of the attacked board (node.py)
    early: Mapping[str, int] = field(default_factory=dict)  # exit codes of those that ended by themselves
    codes: Mapping[str, int] = field(default_factory=dict)  # of those that were told to end
    rounds_after: Mapping[str, int] = field(default_factory=dict)
    blamed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what honest boards say of honest ones
    logs: Mapping[str, str] = field(default_factory=dict)  # with a traceback
    accuracy: Mapping[str, float | None] = field(default_factory=dict)
    failure: str = ""


def accuracy(runs: Path) -> float | None:
    """The last one in a board's metrics."""
    found = None
    for file in runs.glob("*/metrics.jsonl"):
        for line in file.read_text().splitlines():
            if '"eval/accuracy"' in line and line.endswith("}"):
                found = json.loads(line)["eval/accuracy"]
    return found


def judge(attack: Attack) -> dict[str, Any]:
    """What came of it, with a sentence in `wrong` for all that should not be."""
    counts = {key: dict(Counter(attack.counts[key]).most_common()) for key in ("reached", "refused", "reasons")}
    tally = {"delivered": dict(attack.tally.delivered), "lost": dict(attack.tally.lost)}
    return {**tally, **counts, "seconds": round(attack.samples[-1][0]), "wrong": [*_wrong(attack)]}


def _wrong(attack: Attack) -> Iterator[str]:
    for name in attack.samples[0][1]:
        seen = [(t_s, boards[name]) for t_s, boards in attack.samples if name in boards]
        if len(seen) < len(attack.samples):
            yield f"{name} is missing in {len(attack.samples) - len(seen)} samples"
        if len(seen) >= MIN_SAMPLES:
            for quantity, limit in LIMITS.items():
                found = growth([row[quantity] for _, row in seen], limit)
                if found.grew:
                    yield f"{name}: {quantity} grew from {found.before:.0f} to {found.after:.0f}"
        gap = _longest_gap([(t_s, row["round"]) for t_s, row in seen])
        if gap > MAX_GAP_S:
            yield f"{name} ended no round for {gap:.0f} s"
    yield from (f"{n} refusals {text}" for text, n in attack.counts["reasons"].items() if "NO REASON" in text)
    yield from (f"{n} ended early with {code}" for n, code in attack.early.items())
    yield from (f"{n} ended with {code}, not 130" for n, code in attack.codes.items() if code != 130)
    yield from (f"{n} made no round after the attack" for n, rounds in attack.rounds_after.items() if rounds <= 0)
    yield from (f"{n} printed a traceback: {log}" for n, log in attack.logs.items())
    yield from (f"{n} is at accuracy {a}" for n, a in attack.accuracy.items() if a is None or a < ACCURACY)
    for name, texts in attack.blamed.items():
        yield from (f"{name}: {text}" for text in texts if "dead" in text or "lost" in text or "refused" in text)
    if attack.failure:
        yield attack.failure


def _longest_gap(rounds: Sequence[tuple[float, float]]) -> float:
    longest, last = 0.0, rounds[0]
    for row in rounds:
        if row[1] != last[1]:
            last = row
        longest = max(longest, row[0] - last[0])
    return longest
