#!/usr/bin/env python3
"""Record what a terminal shows while a board is killed and comes back, as an animated SVG.

    python -m lab.results.recording [-o docs/images/recording.svg] [--rounds 300]

The command is run in a pseudo-terminal. What it writes is kept with its times, a small terminal
emulator makes screens of it, and CSS plays them: no script, no service. One of the boards is
killed; the line below the screen shows the command that does it.
Nothing is faster or slower than it was, with two exceptions: the start, in which boards load
PyTorch, takes `--start` seconds at most, and so long a pause in which nothing changes.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fcntl import ioctl
from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGE = Path(__file__).resolve().parents[2] / "docs" / "images" / "recording.svg"
KEY_S = 0.02  # between two letters that are typed
READ_S = 2.5  # the last screen stays so long before the film begins anew
MOST_PER_SECOND = 4

# --- what happened -------------------------------------------------------------------------------


@dataclass
class Recording:
    """What a command wrote, with seconds since it was started; when it was on its way; when a board
    was killed, and how."""

    command: str
    writes: list[tuple[float, str]]
    started_s: float = 0.0
    kill_s: float = 0.0
    kill: str = ""


def record(command: str, columns: int, rows: int, victim: str, started: str, delay_s: float) -> Recording:
    """Run a command in a terminal of that size. It is on its way when it has shown the word
    `started`; `delay_s` later board `victim` of the newest run is killed."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    start = time.monotonic()
    process = subprocess.Popen(
        shlex.split(command), stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    made = Recording(command, [])
    while (data := _read(ours)) is not None:
        now = time.monotonic() - start
        if data:
            made.writes.append((now, data.decode(errors="replace")))
            if not made.started_s and started in made.writes[-1][1]:
                made.started_s = now
        if made.started_s and now >= made.started_s + delay_s and not made.kill:
            made.kill_s, made.kill = now, f"edgegossip kill {victim}"
            subprocess.run(shlex.split(made.kill), check=True, stdout=subprocess.DEVNULL)
    if process.wait():
        raise SystemExit(f"{command} ended with {process.returncode}")
    return made


def _read(terminal: int) -> bytes | None:
    """What comes within 50 ms; None at the end."""
    if not select.select([terminal], [], [], 0.05)[0]:
        return b""
    try:
        return os.read(terminal, 65_536) or None
    except OSError:  # Linux's way to say that nobody has the other end
        return None


# --- what a terminal shows of it -----------------------------------------------------------------


class Style(NamedTuple):
    """How a character looks."""

    color: str = ""
    is_bold: bool = False
    is_dim: bool = False


Line = list[tuple[str, Style]]
BASIC = ("#3b4252", "#e5534b", "#57ab5a", "#daaa3f", "#539bf5", "#b083f0", "#39c5cf", "#cdd9e5")
BRIGHT = ("#768390", "#ff938a", "#6bc46d", "#eac55f", "#6cb6ff", "#dcbdfb", "#56d4dd", "#ffffff")
_PIECES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b.|([\r\n])|([^\x1b\r\n\x00-\x08]+)")


@dataclass
class Screen:
    """A terminal that knows what rich and click send: text, line ends, colours, moves up,
    erasing."""

    columns: int
    rows: int
    lines: list[Line] = field(default_factory=lambda: [[]])
    at: tuple[int, int] = (0, 0)  # line, column
    style: Style = Style()

    def feed(self, text: str) -> None:
        """Take what was written, in pieces that end anywhere but within a control sequence."""
        for match in _PIECES.finditer(text):
            arguments, final, end, plain = match.groups()
            row, column = self.at
            if plain:
                self._print(plain)
            elif end == "\r":
                self.at = (row, 0)
            elif end == "\n":
                self.at = (row + 1, column)  # the terminal's driver has sent \r before it
                self._grow()
            elif final == "A":
                self.at = (max(0, row - int(arguments or 1)), column)
            elif final == "K":
                kept = self.lines[row][:column] if arguments in ("", "0") else []
                self.lines[row] = kept
            elif final == "m":
                self._color([int(part or 0) for part in arguments.split(";")])

    def shown(self) -> tuple[tuple[tuple[str, Style], ...], ...]:
        """The last lines that fit, each as pieces of one style."""
        return tuple(tuple(_pieces(line)) for line in self.lines[-self.rows :])

    def _print(self, text: str) -> None:
        for character in text:
            row, column = self.at
            if column >= self.columns:
                row, column = row + 1, 0
            self.at = (row, column)
            self._grow()
            line = self.lines[row]
            line += [(" ", Style())] * (column + 1 - len(line))
            line[column] = (character, self.style)
            self.at = (row, column + 1)

    def _grow(self) -> None:
        self.lines += [[] for _ in range(self.at[0] + 1 - len(self.lines))]

    def _color(self, codes: list[int]) -> None:
        while codes:
            code = codes.pop(0)
            if code == 0:
                self.style = Style()
            elif code in (1, 2):
                self.style = self.style._replace(**{"is_bold" if code == 1 else "is_dim": True})
            elif code == 22:
                self.style = self.style._replace(is_bold=False, is_dim=False)
            elif 30 <= code <= 37 or 90 <= code <= 97:
                self.style = self.style._replace(color=BASIC[code - 30] if code < 90 else BRIGHT[code - 90])
            elif code == 38 and codes[:1] == [2]:
                self.style = self.style._replace(color="#{:02x}{:02x}{:02x}".format(*codes[1:4]))
                del codes[:4]
            elif code == 38 and codes[:1] == [5]:
                self.style = self.style._replace(color=_of_256(codes[1]))
                del codes[:2]
            elif code == 39:
                self.style = self.style._replace(color="")


def _of_256(number: int) -> str:
    if number < 16:
        return (*BASIC, *BRIGHT)[number]
    if number >= 232:
        return "#{0:02x}{0:02x}{0:02x}".format(8 + 10 * (number - 232))
    levels = (0, 95, 135, 175, 215, 255)
    return "#{:02x}{:02x}{:02x}".format(*(levels[(number - 16) // step % 6] for step in (36, 6, 1)))


def _pieces(line: Line) -> Iterator[tuple[str, Style]]:
    text, style = "", Style()
    for character, own in line:
        if text and own != style:
            yield text, style
            text = ""
        text, style = text + character, own
    if text:
        yield text, style


# --- the film ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A screen from one moment on, and what is typed below it in the second terminal."""

    at_s: float
    screen: tuple[tuple[tuple[str, Style], ...], ...]
    below: str


def frames(recording: Recording, columns: int, rows: int, most_s: float) -> list[Frame]:
    """Make the film: the command is typed, then come its screens, at most a few a second. Neither
    the start nor a pause takes longer than `most_s`."""
    screen, made, clock = Screen(columns, rows), [], 0.0
    screen.feed("\x1b[1;32m$\x1b[0m ")
    for letter in recording.command:
        screen.feed(letter)
        clock += KEY_S
        made.append(Frame(clock, screen.shown(), ""))
    screen.feed("\r\n")
    typing = len(recording.kill) * KEY_S
    marks = [(recording.kill_s - typing + k * KEY_S, recording.kill[: k + 1]) for k in range(len(recording.kill))]
    happened: list[tuple[float, str, str | None]] = [(at, text, None) for at, text in recording.writes]
    happened += [(at, "", typed) for at, typed in marks]
    hurry = min(1.0, most_s / recording.started_s) if recording.started_s else 1.0
    below, last = "", 0.0
    for at, text, typed in sorted(happened, key=lambda one: one[0]):
        clock += (at - last) * hurry if at <= recording.started_s else min(at - last, most_s)
        last = at
        screen.feed(text)
        below = below if typed is None else typed
        made.append(Frame(clock, screen.shown(), below))
    return _thinned(made)


def _thinned(film: Sequence[Frame]) -> list[Frame]:
    """Only what changed, and of a burst its last; letters that are typed come one by one."""
    kept: list[Frame] = []
    for frame in film:
        if kept and (frame.screen, frame.below) == (kept[-1].screen, kept[-1].below):
            continue
        is_output = kept and len(frame.screen) > 1 and frame.below == kept[-1].below
        if is_output and frame.at_s - kept[-1].at_s < 1 / MOST_PER_SECOND and len(kept[-1].screen) > 1:
            frame = Frame(kept[-1].at_s, frame.screen, frame.below)
            kept.pop()
        kept.append(frame)
    return kept


FONT, LEADING, EDGE, BAR = 14, 19, 16, 34  # pixels
LETTER = 0.602 * FONT  # the width of nearly every monospaced font


def svg(film: Sequence[Frame], columns: int, rows: int, title: str) -> str:
    """Return the film as one SVG: its screens stand below each other, and a window moves over them.
    Where motion is not wanted the last screen stands still."""
    width, height = round(columns * LETTER) + 2 * EDGE, BAR + (rows + 2) * LEADING + 2 * EDGE
    seconds = film[-1].at_s + READ_S
    names: dict[str, str] = {}
    strip = "".join(_screen(frame, k * height, rows, names) for k, frame in enumerate(film))
    moves = "".join(
        f"{100 * frame.at_s / seconds:.3f}%{{transform:translateY(-{k * height}px)}}" for k, frame in enumerate(film)
    )
    first = "0%{transform:translateY(0)}"
    still = f"transform:translateY(-{(len(film) - 1) * height}px)"
    defined = "".join(f'<g id="{name}">{text}</g>' for text, name in names.items())
    dots = "".join(
        f'<circle cx="{20 + 20 * k}" cy="17" r="6" fill="{c}"/>'
        for k, c in enumerate(("#e5534b", "#daaa3f", "#57ab5a"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>'
        f"text{{font:{FONT}px ui-monospace,Menlo,'DejaVu Sans Mono','Liberation Mono',monospace;fill:#cdd9e5;"
        "white-space:pre}.b{font-weight:bold}.d{opacity:.65}"
        f"@keyframes film{{{first}{moves}}}#film{{{still};animation:film {seconds:.2f}s step-end infinite}}"
        f"@media (prefers-reduced-motion:reduce){{#film{{animation:none}}}}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>{dots}<defs>{defined}</defs>'
        f'<svg y="{BAR}" width="{width}" height="{height - BAR}"><g id="film">{strip}</g></svg></svg>\n'
    )


def _screen(frame: Frame, top: int, rows: int, names: dict[str, str]) -> str:
    """One screen; a line that was seen before is only referred to."""
    lines = [(k, line) for k, line in enumerate(frame.screen) if line]
    if frame.below:
        lines.append((rows + 1, (("second terminal$ ", Style(BASIC[2], True)), (frame.below, Style()))))
    uses = []
    for row, line in lines:
        text = _text(line)
        name = names.setdefault(text, f"l{len(names)}")
        uses.append(f'<use href="#{name}" y="{EDGE + FONT + row * LEADING + top}"/>')
    return "".join(uses)


def _text(line: Sequence[tuple[str, Style]]) -> str:
    parts, column = [], 0
    for text, style in line:
        if text.strip():
            kind = " ".join(name for name, on in (("b", style.is_bold), ("d", style.is_dim)) if on)
            look = (f' class="{kind}"' if kind else "") + (f' style="fill:{style.color}"' if style.color else "")
            at, long = EDGE + column * LETTER, len(text) * LETTER
            parts.append(f'<text x="{at:.1f}" textLength="{long:.1f}"{look}>{escape(text)}</text>')
        column += len(text)
    return "".join(parts)


def main() -> None:
    """Record, and write the SVG."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=IMAGE)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--start", type=float, default=1.5, help="seconds that the start, or a pause, takes at most")
    options = parser.parse_args()
    command = f"edgegossip run quickstart-gossip --set run.rounds={options.rounds} --set network.restarts=1"
    with tempfile.TemporaryDirectory() as folder:
        back = os.getcwd()
        os.chdir(folder)  # its run folder is not kept
        made = record(command, options.columns, options.rows, "board-2", "training", 1.0)
        os.chdir(back)
    film = frames(made, options.columns, options.rows, options.start)
    options.output.write_text(svg(film, options.columns, options.rows, "A board is killed and comes back"))
    print(
        f"{options.output}: {film[-1].at_s:.1f} s, {len(film)} screens, {options.output.stat().st_size / 1000:.0f} kB"
    )


if __name__ == "__main__":
    main()
