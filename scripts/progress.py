"""Run a command of the set-up, and show in one line how far it is instead of what it prints.

    python scripts/progress.py WHAT LOG COMMAND ...

Of pip it counts the packages that it found and those that it has unpacked into this Python's
environment; of ninja, by way of pip, the files that are compiled. All that the command prints goes
to LOG. When the command fails so does this, and the end of LOG is shown. Of several at a time, one
shows how far it is."""

import fcntl
import queue
import re
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

TERMINAL = sys.stdout.isatty()
EVERY_S = 1.0 if TERMINAL else 10.0
SHOWN_LINES = 40
WIDTH = 60  # of a line, which hides what another step wrote there
FOUND = re.compile(r"(Collecting|Processing|Requirement already satisfied)\b")
UNPACKED = re.compile(r"Installing collected packages: (.*)")
BUILT = re.compile(r"\s*\[(\d+)/(\d+)\] ")


class Counter:
    """What a command has done so far, as its lines tell."""

    def __init__(self, command: list[str]) -> None:
        self.site = Path(sysconfig.get_path("purelib"))
        locks = [Path(name).read_text() for name in re.findall(r"-r (\S+\.txt)", " ".join(command))]
        self.locked = {name for lock in locks for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
        self.found, self.wanted, self.before, self.built = 0, 0, 0, ""

    def read(self, line: str) -> None:
        if built := BUILT.match(line):
            self.built = f"file {built[1]} of {built[2]}"
        elif unpacked := UNPACKED.match(line):
            self.wanted, self.before = len(unpacked[1].split(", ")), self.installed()
        elif FOUND.match(line):
            self.found += 1

    def installed(self) -> int:
        return sum(1 for _ in self.site.glob("*.dist-info"))

    def state(self) -> str:
        if self.wanted:
            return f"unpacked {min(max(self.installed() - self.before, 0), self.wanted)} of {self.wanted}"
        return self.built or (f"found {self.found} of {len(self.locked)}" if self.found else "...")


def lines_of(child: subprocess.Popen) -> queue.Queue:
    """Return a queue of what it prints, line by line, with None at the end."""
    lines: queue.Queue = queue.Queue()

    def read() -> None:
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def run(what: str, log: Path, command: list[str]) -> int:
    """Return the command's exit code."""
    counter, began = Counter(command), time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    screen = (log.parent / ".line").open("w")  # locked by who writes into the terminal's last line

    def say(state: str) -> None:
        try:
            fcntl.flock(screen, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        write(state, "" if TERMINAL else "\n")

    def write(state: str, end: str = "\n") -> None:
        text = f"{what}: {state}, {time.monotonic() - began:.0f} s"
        print(f"\r{text:{WIDTH}}" if TERMINAL else text, end=end, flush=True)

    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines, next_s = lines_of(child), 0.0
    with log.open("w") as kept:
        while True:
            try:
                line = lines.get(timeout=EVERY_S)
            except queue.Empty:
                line = ""
            if line is None:
                break
            kept.write(line)
            counter.read(line)
            if time.monotonic() - began >= next_s:
                say(counter.state())
                next_s = time.monotonic() - began + EVERY_S
    if code := child.wait():
        write("failed")
        print(*log.read_text().splitlines()[-SHOWN_LINES:], f"All of it is in {log}.", sep="\n", file=sys.stderr)
        return code
    write("done")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
