"""lab/results/recording.py: what the film shows is what a terminal would."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

ROOT = Path(__file__).parents[3]


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Any:
    from lab.results import recording

    return recording


class Terminal:
    """Takes what a program writes, as a terminal's driver hands it on."""

    def __init__(self, screen: Any) -> None:
        self.screen = screen

    def write(self, text: str) -> int:
        self.screen.feed(text.replace("\n", "\r\n"))
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def words(screen: Any) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in screen.shown()]


def test_a_live_display_of_rich_ends_as_its_last_state_below_what_was_said(recording: Any) -> None:
    screen = recording.Screen(30, 8)
    console = Console(file=Terminal(screen), force_terminal=True, color_system="truecolor", width=30)  # type: ignore[arg-type]
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        for k in range(3):
            live.update(Text(f"round {k}\nboards {4 - k}"), refresh=True)
            if k == 1:
                console.print(Text("lost board-2", style="bold red"))
    assert words(screen)[:3] == ["lost board-2", "round 2", "boards 2"] and not any(words(screen)[3:])
    [(_, style)] = screen.shown()[0]
    assert style == recording.Style(recording.BASIC[1], True)


def test_long_lines_wrap_and_old_ones_scroll_away(recording: Any) -> None:
    screen = recording.Screen(4, 2)
    screen.feed("abcdef\r\nxy\rz\x1b[38;5;196mq")
    assert words(screen) == ["ef", "zq"] and screen.shown()[1][1][1].color == "#ff0000"


def test_the_film_keeps_times_and_shortens_pauses(recording: Any) -> None:
    writes = [(0.5, "one\r\n"), (9.5, "two\r\n"), (10.0, "three\r\n")]
    film = recording.frames(recording.Recording("true", writes, 0.0, 9.8, "kill"), 40, 5, most_s=1.0)
    at = {
        word: next(f.at_s for f in film if any(word in t for line in f.screen for t, _ in line))
        for word in ("one", "two", "three")
    }
    assert at["one"] == pytest.approx(4 * recording.KEY_S + 0.5)
    assert at["two"] - at["one"] == pytest.approx(1.0, abs=0.26) and at["three"] - at["two"] == pytest.approx(
        0.5, abs=0.26
    )
    hurried = recording.frames(recording.Recording("true", writes, 9.0), 40, 5, most_s=1.0)
    assert hurried[-1].at_s == pytest.approx(film[-1].at_s - 0.5 + 0.5 / 9, abs=0.5)
    assert film[-1].below == "kill" and [f.at_s for f in film] == sorted(f.at_s for f in film)


def test_the_picture_is_whole_and_moves_over_every_screen(recording: Any) -> None:
    film = recording.frames(recording.Recording("true", [(0.5, "<a & b>\r\n")], 0.0, 0.7, "kill 1"), 40, 5, most_s=1.0)
    picture = recording.svg(film, 40, 5, "a film")
    tree = ET.fromstring(picture)
    names = {one.get("id") for one in tree.iter("{http://www.w3.org/2000/svg}g")}
    assert {use.get("href", "")[1:] for use in tree.iter("{http://www.w3.org/2000/svg}use")} <= names
    assert len(re.findall(r"%\{transform", picture)) == len(film) + 1 and "&lt;a &amp; b&gt;" in picture


def test_the_committed_recording_shows_a_board_lost_and_back_in_about_15_s() -> None:
    text = (ROOT / "docs" / "images" / "recording.svg").read_text()
    shown = re.sub(r"<[^>]+>", "", text[text.index("<defs>") :])
    assert "lost board-2" in shown and "edgegossip kill board-2" in shown and "started again" in shown
    assert 10 < float(re.search(r"film ([\d.]+)s", text)[1]) < 22  # type: ignore[index]
    assert len(text) < 300_000 and "http" not in text.replace("http://www.w3.org/2000/svg", "")
