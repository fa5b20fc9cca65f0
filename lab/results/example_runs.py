#!/usr/bin/env python3
"""Train the example scripts on boards and in one place, kill boards on the way, and write one
table.

    python -m lab.results.example_runs --images fashion_mnist.npz --articles wikitext.txt \
        --plays shakespeare.txt --work DIR [CASE...]

A case is an example on boards with disjoint folders. Its runs are `central` (plain.py on all data),
`gossip`, `server` (a coordinator), `killed` (gossip, where board-1 gets SIGKILL half-way and
`network.restarts` starts it again), and for some cases the same by hand, with a command for each
board. All see the same number of examples: a board's batch is a central one divided by the boards.

With `--seeds 1,3,4` central, gossip and server are made three times, on data of three seeds.

DIR gets the data, DIR/runs.jsonl a line a run, DIR/logs what each run printed. A run that has its
line is not made again; `--out` (lab/results/pages/examples.md) is written anew from the lines after
each case.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.flower.superlink import free_port
from edgegossip.sweep.results import Result
from edgegossip.telemetry.run_folder import read_run
from lab.results import resumable
from lab.results.gossip_runs import VICTIM, kill_on_the_way

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples/scripts"
LIMIT_S = 900.0
POINTS, SHARE = 0.02, 0.05  # how far from central training a score, or a loss, may be


# The others wait for it: some of these runs are over before a process has started again.
KILLED = ("network.restarts=1", "network.grace_s=60")
GOSSIP = "gossip.algorithm=choco-sgd codec.name=minmax8 gossip.topology=complete"


@dataclass(frozen=True, slots=True)
class Case:
    """An example on boards. `score` is what it goes by: points for a score, a share for a loss."""

    example: str
    data: str  # arguments of make_data.py
    arguments: str  # of the script, at the boards and in one place
    lr: float  # at the boards
    central_lr: float
    batch: int  # in one place
    rounds: int
    score: str
    boards: int = 4
    epochs: str = "--epochs {rounds}"
    gossip: str = GOSSIP
    runs: tuple[str, ...] = ("central", "gossip", "server", "killed")
    steps_a_round: int = 1
    seeds: bool = True  # whether another seed makes other data

    def script_args(self, data: Path, folder: str, boards: int) -> list[str]:
        lr = self.central_lr if boards == 1 else self.lr
        words = f"{self.arguments} {self.epochs} --batch-size {self.batch // boards} --lr {lr}"
        words = words.replace("{steps}", str(self.rounds * self.steps_a_round))
        return ["--data", str(data / folder), *words.split()]


IMAGES = "images --train 3000 --test 2000"
THREE = ("central", "gossip", "server")
CASES = {
    "images": Case(
        "images",
        IMAGES,
        "",
        lr=0.01,
        central_lr=0.02,
        batch=64,
        rounds=20,
        score="accuracy",
        runs=("central", "gossip", "server", "killed", "gossip dpsgd"),
    ),
    "segmentation": Case(
        "segmentation",
        "segmentation --train 800 --test 200",
        "--width 8",
        lr=0.02,
        central_lr=0.01,
        batch=64,
        rounds=40,
        score="iou",
    ),
    "forecast": Case("forecast", "forecast", "", lr=0.005, central_lr=0.005, batch=128, rounds=12, score="loss"),
    "text": Case(
        "text",
        "text --words 20 --test 1000 --classes 8",
        "--classes 8",
        lr=0.04,
        central_lr=0.04,
        batch=128,
        rounds=40,
        score="accuracy",
    ),
    "gpt": Case(
        "gpt",
        "gpt",
        "--every 2",
        lr=0.045,
        central_lr=0.07,
        batch=32,
        rounds=200,
        score="loss",
        epochs="--steps {steps}",
        runs=("central", "gossip", "server", "killed", "gossip by hand", "server by hand"),
        steps_a_round=2,
        seeds=False,
    ),
    # A machine a board: few steps a round, or each forgets the others' machines before it hears of
    # them.
    "anomalies": Case(
        "anomalies",
        "anomalies --train 4000 --test 800",
        "",
        lr=0.2,
        central_lr=0.2,
        batch=1000,
        rounds=400,
        score="auc",
    ),
    "twelve-series": Case(
        "forecast",
        "forecast --boards 12",
        "",
        lr=0.04,
        central_lr=0.04,
        batch=1536,
        rounds=80,
        score="loss",
        boards=12,
        runs=THREE,
    ),
    # One class a board: a step a round.
    "six-speakers": Case(
        "text",
        "text --words 30 --test 300 --boards 6 --by-class",
        "--optimizer sgd",
        lr=20.0,
        central_lr=20.0,
        batch=1536,
        rounds=200,
        score="accuracy",
        boards=6,
        runs=THREE,
    ),
    # Three classes a board, or two: a step a round.
    "images-by-class": Case(
        "images",
        "images --train 800 --test 2000 --by-class",
        "--norm group",
        lr=0.1,
        central_lr=0.1,
        batch=512,
        rounds=200,
        score="accuracy",
        runs=THREE,
    ),
}

HOW = """Settings were chosen on other data than the table's: images of the training part that stood in
for the test set, a text of other articles, the plays without their last tenth (gpt) or with a part of the
training set held out (six-speakers), and drawn data of seed 2. Boards and central training
were given the same small grid of learning rates, and each has its best. Boards averaged exactly
there, all four, in one process."""


class Campaign:
    """Makes runs into one work folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.work, self.options = options.work.resolve(), options
        self.file = self.work / "runs.jsonl"
        (self.work / "logs").mkdir(parents=True, exist_ok=True)
        text = self.file.read_text() if self.file.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        # of a run that failed and was made again the last line counts
        self.lines: list[Result] = list({key(line): line for line in lines}.values())

    def do(self, name: str, case: Case, seed: int) -> None:
        for kind in case.runs if seed == self.options.seeds[0] else case.runs[:3] if case.seeds else ():
            if any(key(line) == (name, kind, seed) and "failed" not in line for line in self.lines):
                continue
            began = time.monotonic()
            line: Result = {"case": name, "run": kind, "seed": seed, "boards": case.boards, "rounds": case.rounds}
            line |= {"date": str(datetime.datetime.now(datetime.UTC).date())}
            try:
                line |= self.make(name, case, kind, seed)
            except (OSError, ValueError, LookupError, subprocess.SubprocessError, RuntimeError) as error:
                line["failed"] = f"{type(error).__name__}: {error}"[:500]
            line["seconds"] = round(time.monotonic() - began, 1)
            self.lines = [k for k in self.lines if key(k) != key(line)] + [line]
            with self.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)

    def make(self, name: str, case: Case, kind: str, seed: int) -> Result:
        """Make one run; its part of the line."""
        self.log = self.work / "logs" / f"{name}-{seed}-{kind.replace(' ', '-')}.log"
        self.log.unlink(missing_ok=True)
        data = self.data(name, case, seed)
        if kind == "central":
            return self.central(case, data)
        if kind == "gossip by hand":
            return self.gossip_by_hand(case, data)
        if kind == "server by hand":
            return self.server_by_hand(case, data)
        modes = {"server": "run.mode=server", "gossip dpsgd": "gossip.algorithm=dpsgd gossip.topology=complete"}
        settings = modes.get(kind, case.gossip).split()
        return self.fleet(case, data, [*settings, *(KILLED if kind == "killed" else [])])

    def data(self, name: str, case: Case, seed: int) -> Path:
        """The case's folders, made once."""
        folder: Path = self.work / "data" / f"{name}-{seed}"
        if not (folder / "all").exists():
            words, given = case.data.split(), self.options
            sources = {"images": given.images, "text": given.articles, "gpt": given.plays}
            source = given.plays if "--by-class" in words and words[0] == "text" else sources.get(words[0])
            if source is not None:
                words += ["--from", str(source.resolve())]
            self.call([str(SCRIPTS / "make_data.py"), *words, "--seed", str(seed), "--out", str(folder)])
        return folder

    def central(self, case: Case, data: Path) -> Result:
        words = case.script_args(data, "all", 1)
        words = [word.replace("{rounds}", str(case.rounds)) for word in words]
        threads = {"OMP_NUM_THREADS": "1"}  # as a board has
        out = self.call([str(SCRIPTS / case.example / "plain.py"), *words], threads)
        *_, last = out.strip().splitlines()
        scores = {k: float(v) for k, v in re.findall(r"'(\w+)': (?:tensor\()?([\d.]+)", last)}
        return {"scores": {k: v for k, v in scores.items() if k != "examples"}}

    def fleet(self, case: Case, data: Path, settings: Sequence[str]) -> Result:
        """`edgegossip run`; with network.restarts one board is killed half-way."""
        killed = "network.restarts=1" in settings
        with tempfile.TemporaryDirectory() as runs:
            words = ["-m", "edgegossip", "run", str(SCRIPTS / case.example / "train.py")]
            words += ["--boards", str(case.boards), "--runs", runs, "--no-plots", "--json"]
            words += [*self.settings(case, settings), "--", *case.script_args(data, "{board}", case.boards)]
            with self.log.open("a") as log, self.started(words, stdout=subprocess.PIPE, stderr=log) as process:
                if killed and not kill_on_the_way(process, Path(runs), case.boards, case.rounds // 2):
                    raise RuntimeError("the run ended before a board was killed")
                out, _ = process.communicate(timeout=LIMIT_S)
            summary = json.loads(out) if out else {"verdict": []}
            if process.returncode:
                lost = [f"{name} lost" for name in summary.get("failed_nodes", ())]
                said = "; ".join(lost + [finding["text"] for finding in summary["verdict"]])
                raise RuntimeError(f"exit code {process.returncode}, see {self.log.name} {said}")
            line: Result = {"settings": " ".join(settings), "bits_per_value": summary["bits_per_value"]}
            line["scores"] = {name: spread["mean"] for name, spread in summary["scores"].items()}
            line["scores"]["loss"] = summary["loss"]
            if killed:
                (row,) = (row for row in summary["boards"] if row["node"] == VICTIM)
                data_of_run = read_run(next(Path(runs).iterdir()))
                done = {r.step for r in data_of_run.metrics() if r.node == VICTIM}
                line |= {"victim": {**row["scores"], "loss": row["loss"]}, "missed": case.rounds - len(done)}
                line["restarts"] = sum(e.node == VICTIM and e.name == "restarted" for e in data_of_run.events())
            return line

    def gossip_by_hand(self, case: Case, data: Path) -> Result:
        chosen = [*case.gossip.split(), KILLED[1]]
        names = [f"board-{k}" for k in range(case.boards)]  # ten at most
        port, train = free_port("127.0.0.1", 0), str(SCRIPTS / case.example / "train.py")

        def command(name: str) -> list[str]:
            how = ["--members", ",".join(names)] if name == names[0] else ["--join", f"127.0.0.1:{port}"]
            listen = ["--listen", f"127.0.0.1:{port if name == names[0] else 0}", "--name", name]
            settings = self.settings(case, chosen) if name == names[0] else []
            return [train, *how, *listen, *settings, "--", *case.script_args(data, "{board}", case.boards)]

        return self.by_hand(case, names, {name: ["node", *command(name)] for name in names})

    def server_by_hand(self, case: Case, data: Path) -> Result:
        names = [f"board-{k}" for k in range(case.boards)]  # ten at most
        port, train = free_port("127.0.0.1", 0), str(SCRIPTS / case.example / "train.py")
        arguments = case.script_args(data, "{board}", case.boards)
        settings = self.settings(case, [])
        first = ["coordinator", "--for", train, "--boards", ",".join(names), "--port", str(port), *settings]
        commands = {"coordinator": [*first, "--no-plots", "--", *arguments]}
        for name in names:
            commands[name] = ["node", train, "--coordinator", f"127.0.0.1:{port}", "--name", name, "--", *arguments]
        return self.by_hand(case, names, commands)

    def by_hand(self, case: Case, names: Sequence[str], commands: dict[str, list[str]]) -> Result:
        """A process for each command; board-1 is killed half-way, and its command given again."""
        with tempfile.TemporaryDirectory() as runs, self.log.open("a") as log, contextlib.ExitStack() as stack:

            def start(name: str) -> subprocess.Popen[str]:
                head, *rest = commands[name]
                words = ["-m", "edgegossip", head, "--runs", f"{runs}/{name}", *rest]
                return stack.enter_context(self.started(words, stdout=log, stderr=log))

            processes = {name: start(name) for name in commands}
            wait(lambda: rounds_done(Path(runs) / VICTIM, VICTIM) >= case.rounds // 2)
            processes[VICTIM].kill()
            processes[VICTIM].wait()
            kept = rounds_done(Path(runs) / VICTIM, VICTIM)
            processes[VICTIM] = start(VICTIM)
            for name, process in processes.items():
                if code := process.wait(LIMIT_S):
                    raise RuntimeError(f"{name} ended with exit code {code}, see {self.log.name}")
            rows = last_scores(Path(runs))  # of the boards; through a coordinator, its means over them
            done = rounds_done(Path(runs) / VICTIM, VICTIM)
            line: Result = {"scores": mean(list(rows.values())), "killed_at": kept, "ended_at": done}
            return line | ({"victim": rows[VICTIM]} if VICTIM in rows else {})

    def settings(self, case: Case, settings: Sequence[str]) -> list[str]:
        pairs = [f"run.name={case.example}", f"run.rounds={case.rounds}", *settings]
        return [word for pair in pairs for word in ("--set", pair)]

    def call(self, words: Sequence[str], environment: dict[str, str] | None = None) -> str:
        environment = os.environ | (environment or {})
        with self.log.open("a") as log:
            done = subprocess.run(
                [sys.executable, *words],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                timeout=LIMIT_S,
            )
            log.write(done.stdout)
        if done.returncode:
            raise RuntimeError(f"{Path(words[0]).name} ended with exit code {done.returncode}, see {self.log.name}")
        return done.stdout

    @contextlib.contextmanager
    def started(self, words: Sequence[str], **pipes: Any) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen([sys.executable, *words], text=True, **pipes)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def key(line: Result) -> tuple[str, str, int]:
    return line["case"], line["run"], line["seed"]


def mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def wait(until: Any) -> None:
    end = time.monotonic() + LIMIT_S
    while not until():
        if time.monotonic() > end:
            raise RuntimeError("gave up waiting for half of the rounds")
        time.sleep(0.1)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("*/metrics.jsonl") for line in path.read_text(errors="replace").splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def rounds_done(folder: Path, node: str) -> int:
    return max((r["step"] + 1 for r in records(folder) if r["node"] == node), default=0)


def last_scores(runs: Path) -> dict[str, dict[str, float]]:
    """{board: scores of its last evaluation}, from all run folders."""
    found: dict[str, dict[str, float]] = {}
    for record in sorted(records_below(runs), key=lambda r: r["step"]):
        values = {k.removeprefix("eval/"): v for k, v in record.items() if k.startswith("eval/")}
        if values:
            found[record["node"]] = {k: v for k, v in values.items() if k not in ("examples", "seconds")}
    return found


def records_below(runs: Path) -> list[dict[str, Any]]:
    return [record for folder in runs.iterdir() for record in records(folder)]


def verdict(score: str, found: float, central: float) -> str:
    """How far a run is from central training, and whether that is within the target."""
    if score == "loss":
        off = found / central - 1
        return f"{off:+.1%}" + ("" if off <= SHARE else ", beyond 5 %")
    off = found - central
    return f"{100 * off:+.1f} points" + ("" if off >= -POINTS else ", beyond 2 points")


def table(lines: Sequence[Result]) -> str:
    rows = resumable.heading("case, run, goes by, score, beside central, each seed, others, board killed, seconds")
    for name, case in CASES.items():
        for kind in case.runs:
            of_kind = sorted((k for k in lines if key(k)[:2] == (name, kind)), key=key)
            for line in of_kind:
                if "failed" in line:
                    rows.append(f"| {name} | {kind} | {case.score} | failed: {line['failed']} | | | | | |")
            made = [line for line in of_kind if "failed" not in line]
            if made:
                rows.append(row(name, case, kind, made, lines))
    return "\n".join(rows)


def row(name: str, case: Case, kind: str, made: Sequence[Result], lines: Sequence[Result]) -> str:
    """Of one kind of run, over its seeds; central training is that of the same seeds."""
    scores = mean([line["scores"] for line in made])
    score, seeds = scores[case.score], {line["seed"] for line in made}
    central = [k for k in lines if key(k)[:2] == (name, "central") and k["seed"] in seeds and "failed" not in k]
    beside = ""
    if kind != "central" and len(central) == len(made):
        beside = verdict(case.score, score, mean([k["scores"] for k in central])[case.score])
    each = ", ".join(f"{line['scores'][case.score]:.4f}" for line in made) if len(made) > 1 else ""
    others = ", ".join(f"{k} {v:.3f}" for k, v in scores.items() if k != case.score)
    said = []
    for line in made:
        said += [f"{case.score} {line['victim'][case.score]:.4f}"] if "victim" in line else []
        said += [f"{line['missed']} rounds missed"] if "missed" in line else []
        said += (
            [f"killed after round {line['killed_at']}, ended with {line['ended_at']}"] if "killed_at" in line else []
        )
    boards = f"{case.boards} boards, " if kind != "central" else ""
    seconds = sum(line["seconds"] for line in made) / len(made)
    cells = [
        name,
        f"{boards}{kind}",
        case.score,
        f"{score:.4f}",
        beside,
        each,
        others,
        ", ".join(said),
        f"{seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def settings_table() -> str:
    heading = "case, data, script, lr of boards, lr of central, batch of a board, steps a round, rounds, gossip"
    rows = resumable.heading(heading)
    for name, case in CASES.items():
        steps = str(case.steps_a_round) if "steps" in case.epochs else "an epoch"
        cells = [name, f"`{case.data}`", f"`{case.example} {case.arguments}`", case.lr, case.central_lr]
        cells += [case.batch // case.boards, steps, case.rounds, f"`{case.gossip}`"]
        rows.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(rows)


def document(lines: Sequence[Result], machine: str) -> str:
    dates = ", ".join(sorted({line["date"] for line in lines}))
    return f"""# The example scripts, on boards and in one place

Written by `lab/results/example_runs.py`. Date: {dates}.
Machine: {machine}.

Each case trains a script of examples/scripts: `central` is plain.py on all data, the others are
train.py on boards with disjoint folders (`edgegossip run`, or a command for each board where it says
by hand). All see the same number of examples: a round is an epoch of a board's own data (gpt: some
steps), and a board's batch is a central one divided by the number of boards. The score is the mean
over the boards, each on the common test set. The target is within 2 points of a score, or 5 % of a
loss, of central training. `killed`: board-1 gets SIGKILL after half of the rounds and is started
again; by hand its command is given again. The others wait for it (`network.grace_s=60`), as some of
these runs would be over before a process has started. In `six-speakers` and `images-by-class` boards hold other
classes each, in `twelve-series` another household each.

{table(lines)}

Where there are more seeds, each makes other data (gpt's are the same), the score is the mean, and
`each seed` has all. A difference of a point or two with one seed says little.

## Settings, and how they were chosen

{settings_table()}

{HOW}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--images", type=Path, help="Fashion-MNIST as .npz; default: handwritten digits")
    parser.add_argument("--articles", type=Path, help="WikiText's validation part, for text")
    parser.add_argument("--plays", type=Path, help="Shakespeare's plays, for gpt and six-speakers")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--seeds",
        default="1",
        metavar="1,3,4",
        help="of the data; runs other than central, gossip and server have the first only",
    )
    parser.add_argument("--machine", default="not said", help="words for the machine in the table's head")
    parser.add_argument("--out", type=Path, default=ROOT / "lab/results/pages/examples.md")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and leave no board behind
    campaign = Campaign(options)
    for seed in options.seeds:
        for name in options.cases or CASES:
            campaign.do(name, CASES[name], seed)
            write(campaign.lines, options)
    return resumable.exit_code(campaign.lines)


def write(lines: Sequence[Result], options: argparse.Namespace) -> None:
    resumable.write_page(options.out, lines, document(lines, options.machine))


if __name__ == "__main__":
    sys.exit(main())
