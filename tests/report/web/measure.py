"""How quickly a page of many boards and rounds can be used: `python -m tests.report.web.measure
--boards 18 --rounds 10000` prints a table for lab/results/pages/report.md. In headless Chromium, a
fresh browser each time, medians."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path

from edgegossip.report.web.page import page_of
from edgegossip.report.web.view import RunView
from edgegossip.telemetry.machine import cpu_name
from tests.report.web.chromium import Chromium
from tests.report.web.synthetic import write_run

READY = "return document.documentElement.dataset.ready"
# What a person does, in one go until it has been drawn: milliseconds.
ACTS = {
    "zoom to a tenth": "edgegossip.zoom(4000, 4999)",
    "back to all": "edgegossip.zoom(null)",
    "one board less": "document.querySelectorAll('.chip[data-node]')[3].click()",
    "a line a board": "document.querySelector('#controls input[type=checkbox]').click()",
    "against seconds": "document.querySelector('.seg [data-value=seconds]').click()",
    "all 20 plots": "edgegossip.dirty(); edgegossip.draw(() => true)",
}
TIMED = "const t = performance.now(); {act}; edgegossip.draw(v => v.visible); return performance.now() - t"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boards", type=int, default=18)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--run", type=Path, help="a run folder to use instead of a synthetic one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or write_run(Path(folder), options.boards, options.rounds)
        begin_s = time.monotonic()
        view = RunView(run)
        view.read()
        read_s = time.monotonic() - begin_s
        page = page_of([view], Path(folder) / "page.html")
        made_s = time.monotonic() - begin_s - read_s
        usable: list[float] = []
        acts: dict[str, list[float]] = {name: [] for name in ACTS}
        heard: list[str] = []
        for _ in range(options.times):
            with Chromium(1280, 900) as browser:
                browser.open(page)
                browser.until(READY)
                usable.append(browser.run("return performance.getEntriesByName('usable')[0].startTime"))
                for name, act in ACTS.items():
                    acts[name].append(browser.run(TIMED.format(act=act)))
                heap = browser.run("return performance.memory.usedJSHeapSize")
                heard += browser.console() + [url for url in browser.requests() if url != page.as_uri()]
        rows = sum(view.rows())
        version = subprocess.run(["chromium", "--version"], capture_output=True, text=True).stdout.strip()
        load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
        print(f"{date.today()}, {cpu_name()}, {os.cpu_count()} cores, load {load}; {version}, headless, no GPU\n")
        print(
            f"{len(view.rows())} boards, {rows} rows, {(run / 'metrics.jsonl').stat().st_size / 1e6:.0f} MB of metrics.jsonl"
        )
        print(f"read in {read_s:.1f} s, page of {page.stat().st_size / 1e6:.1f} MB made in {made_s:.1f} s\n")
        print("| | median | worst |\n| --- | ---: | ---: |")
        print(f"| usable after | {statistics.median(usable) / 1000:.2f} s | {max(usable) / 1000:.2f} s |")
        for name, times in acts.items():
            print(f"| {name} | {statistics.median(times):.0f} ms | {max(times):.0f} ms |")
        print(f"\nscript memory {heap / 1e6:.0f} MB; console messages and requests elsewhere: {json.dumps(heard)}")


if __name__ == "__main__":
    main()
