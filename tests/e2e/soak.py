"""Boards that train for an hour, and whether anything grows: memory, threads, descriptors, coroutines.

    python -m tests.e2e.soak --minutes 60 --nodes 8 --out soak.jsonl

A fleet as people start it: certificates of `edgegossip fleet`, `edgegossip node` once with --members and then with --join, a
ring, D-PSGD on digits, a checkpoint every round. Boards rest in every round (tests/e2e/paced.py). Every --every seconds each
process is looked at in /proc, and its coroutines are read from its metrics. Samples go to OUT as they are taken; `--judge OUT`
judges what is there again. Beside it OUT.md and OUT.json have the verdict; the exit status is 1 when something grew or a board
failed. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.e2e import growth

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "model.name=tests.e2e.paced:paced_mlp",
    "training.lr=0.02",
    "run.rounds=1000000",
    "evaluation.every=500",
)
QUANTITIES = tuple(growth.LIMITS)
TAIL_BYTES = 8192  # of metrics.jsonl, more than its last line
START_S = 180.0


class Fleet:
    """`nodes` boards of one fleet on this machine's loopback; their logs go to files."""

    def __init__(self, nodes: int, pause_s: float, folder: Path) -> None:
        self.names = [f"pi-{k}" for k in range(1, nodes + 1)]
        self._folder, self._pause_s = folder, pause_s
        self._fleet = folder / "fleet"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """The first founds; when it listens, the others join."""
        for arguments in (("init", str(self._fleet)), ("add", "--fleet", str(self._fleet), *self.names)):
            subprocess.run(_command("fleet", *arguments), check=True, capture_output=True, cwd=ROOT)
        sets = [part for s in (*SETTINGS, f"model.params.pause_s={self._pause_s}") for part in ("--set", s)]
        first = self.names[0]
        self._start(first, "quickstart-gossip", "--members", ",".join(self.names), *sets)
        until = time.monotonic() + START_S
        while not (listening := [e for e in self.events(first) if e["event"] == "listening"]):
            self._still_wait(until, "the founder listens")
        for name in self.names[1:]:
            self._start(name, "--join", listening[0]["address"])
        while not all(self.last(name) for name in self.names):
            self._still_wait(until, "every board trains")

    def _start(self, name: str, *arguments: str) -> None:
        identity = str(self._fleet / "boards" / name)
        where = ("--listen", "127.0.0.1:0", "--identity", identity, "--runs", str(self._folder / name))
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                _command("node", *arguments, "--name", name, *where),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )

    def _still_wait(self, until: float, what: str) -> None:
        ended = {name: p.returncode for name, p in self.processes.items() if p.poll() is not None}
        if ended or time.monotonic() > until:
            raise RuntimeError(f"not within {START_S:g} s: {what}; ended: {ended}; {self.log(self.names[0])}")
        time.sleep(0.2)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def events(self, name: str) -> list[dict[str, Any]]:
        text = "".join(f.read_text() for f in (self._folder / name).glob("*/events.jsonl"))
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def last(self, name: str) -> dict[str, Any]:
        """The latest metrics record of a board, empty while there is none."""
        for file in (self._folder / name).glob("*/metrics.jsonl"):
            with file.open("rb") as lines:
                lines.seek(max(0, file.stat().st_size - TAIL_BYTES))
                whole = [line for line in lines.read().split(b"\n")[:-1] if line.startswith(b'{"node"')]
            if whole:
                return dict(json.loads(whole[-1]))
        return {}

    def sample(self) -> dict[str, dict[str, float]]:
        """What each live board holds now."""
        found = {}
        for name, process in self.processes.items():
            with suppress(OSError):  # it ended
                record = self.last(name)
                found[name] = {**_held(process.pid), "tasks": record["sys/tasks"], "round": record["step"]}
        return found

    def stop(self) -> dict[str, int]:
        """SIGTERM to each; their exit statuses."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        return {name: process.wait(60) for name, process in self.processes.items()}

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "edgegossip", *arguments]


def _held(pid: int) -> dict[str, float]:
    """Of a process, from /proc: sizes in bytes, CPU in seconds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())

    def kib(key: str) -> int:
        return int(status[key].split()[0]) << 10

    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {
        "rss_bytes": kib("VmRSS"),
        "anonymous_bytes": kib("RssAnon") + kib("VmSwap"),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "cpu_s": (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
    }


@contextmanager
def fleet(nodes: int, pause_s: float) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="edgegossip-soak-") as folder:
        boards = Fleet(nodes, pause_s, Path(folder))
        try:
            boards.start()
            yield boards
        finally:
            boards.kill()


def soak(nodes: int, minutes: float, every_s: float, pause_s: float, out: Path) -> None:
    """One line a sample, the last one tells how it ended."""
    with fleet(nodes, pause_s) as boards, out.open("w") as file:

        def write(what: Mapping[str, Any]) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        began = time.monotonic()
        write({"when": datetime.now(UTC).isoformat(timespec="seconds"), "every_s": every_s, "pause_s": pause_s})
        due = began
        while due <= began + 60 * minutes:
            time.sleep(max(0.0, due - time.monotonic()))
            load = os.getloadavg()[0]
            write({"t_s": round(time.monotonic() - began, 2), "load": load, "boards": boards.sample()})
            due += every_s
        early = {name: p.returncode for name, p in boards.processes.items() if p.poll() is not None}
        codes = boards.stop()
        kinds = ("member-dead", "peer-down", "refused", "error", "checkpoint-failed")
        events = {n: [e["text"] for e in boards.events(n) if e["event"] in kinds] for n in boards.names}
        logs = {n: boards.log(n) for n in boards.names if "Traceback" in boards.log(n)}
        write({"early": early, "codes": codes, "events": {n: e[:20] for n, e in events.items() if e}, "logs": logs})


def verdict(out: Path) -> tuple[dict[str, Any], list[str]]:
    """What OUT says, and what is wrong."""
    lines = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]
    samples = [line for line in lines if "boards" in line]
    names = sorted({name for s in samples for name in s["boards"]}, key=lambda n: int(n.partition("-")[2]))
    series = {n: {q: [s["boards"][n][q] for s in samples if n in s["boards"]] for q in QUANTITIES} for n in names}
    found, wrong = growth.judge(series)
    end = lines[-1] if "codes" in lines[-1] else {}
    wrong += [f"{name} ended early with {code}" for name, code in end.get("early", {}).items()]
    wrong += [f"{name} ended with {code}, not 130" for name, code in end.get("codes", {}).items() if code != 130]
    wrong += [f"{name} printed a traceback: {log}" for name, log in end.get("logs", {}).items()]
    wrong += [f"{name} is missing in a sample" for name in names if any(name not in s["boards"] for s in samples)]
    quarter = len(samples) // 4
    for name in names:
        rounds = [s["boards"][name]["round"] for s in samples if name in s["boards"]]
        steps = [rounds[min((k + 1) * quarter, len(rounds) - 1)] - rounds[k * quarter] for k in range(4)]
        if min(steps) < 0.5 * max(steps):
            wrong.append(f"{name} trained unevenly: {steps} rounds in the four quarters")
    seconds = samples[-1]["t_s"] - samples[0]["t_s"]
    cpu = sum(samples[-1]["boards"][n]["cpu_s"] - samples[0]["boards"][n]["cpu_s"] for n in names)
    document = {
        **{k: lines[0][k] for k in ("when", "every_s", "pause_s")},
        "minutes": round(seconds / 60, 1),
        "samples": len(samples),
        "rounds": max(s["boards"][n]["round"] for s in samples[-1:] for n in names),
        "cores": round(cpu / seconds, 3),
        "load": sorted(s["load"] for s in samples)[len(samples) // 2],
        "boards": {n: {q: [g.before, g.after] for q, g in rows.items()} for n, rows in found.items()},
        "events": end.get("events", {}),
        "ended": bool(end),
        "wrong": wrong,
    }
    return document, wrong


def markdown(document: Mapping[str, Any]) -> str:
    """A table: median of the second quarter, and by how much that of the last one differs."""
    head = (
        f"{document['when']}: {len(document['boards'])} boards, {document['minutes']} minutes, {document['rounds']} rounds, "
        f"a sample each {document['every_s']:g} s, {document['cores']} cores in all, load {document['load']:.1f} (median)."
    )
    rows = ["| board | " + " | ".join(QUANTITIES) + " |", "| --- |" + " ---: |" * len(QUANTITIES)]
    for name, found in document["boards"].items():
        cells = []
        for quantity in QUANTITIES:
            before, after = found[quantity]
            unit, places = (1 << 20, 2) if quantity.endswith("bytes") else (1, 0)
            cells.append(f"{before / unit:.{places}f} {(after - before) / unit:+.{places}f}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    said = "Nothing grew." if not document["wrong"] else "**" + "; ".join(document["wrong"]) + "**"
    return (
        f"{head}\n\nMedian of the second quarter, and what the last quarter's differs by; sizes in MiB.\n\n"
        + "\n".join([*rows, "", said, ""])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds that a board rests in each round")
    parser.add_argument("--out", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--judge", type=Path, help="judge a file that is there")
    options = parser.parse_args()
    out = options.judge or options.out
    if options.judge is None:
        soak(options.nodes, options.minutes, options.every, options.pause, out)
    document, wrong = verdict(out)
    out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(document))
    print(markdown(document))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
