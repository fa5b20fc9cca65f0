#!/usr/bin/env python3
"""How much of each board's rounds is compute, encode, transmit, decode and wait, by the wall clock.

python -m lab.results.round_parts RUN_FOLDER...

Rounds with an evaluation are left out. What is missing to 100 % is `other`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from edgegossip.telemetry.records import MetricsRecord
from edgegossip.telemetry.run_folder import read_run


def line(node: str, records: Sequence[MetricsRecord]) -> str:
    rounds_s = [record.number("time/round_s") or 0.0 for record in records]
    others_s = [record.number("time/other_s") or 0.0 for record in records]
    of_sum = 1 - sum(others_s) / sum(rounds_s)
    typical = statistics.median(1 - other / whole for other, whole in zip(others_s, rounds_s, strict=True))
    return (
        f"{node:16} {len(records):6} rounds of {1000 * statistics.median(rounds_s):9.2f} ms   parts {of_sum:7.2%} of the sum, "
        f"{typical:7.2%} of the median round; other {1e6 * statistics.median(others_s):.0f} us"
    )


def main(folders: Sequence[str]) -> None:
    for folder in folders:
        print(folder)
        by_node: dict[str, list[MetricsRecord]] = {}
        for record in read_run(Path(folder)).metrics():
            if record.number("time/round_s") and record.number("eval/loss") is None:
                by_node.setdefault(record.node, []).append(record)
        for node in sorted(by_node):
            print(line(node, by_node[node]))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
