"""Reads text that strangers write, so that nothing they write is an exception or spoils a log; and
names those who were refused. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from urllib.parse import SplitResult, urlsplit


@dataclass(frozen=True, slots=True)
class Refusal:
    """Names somebody who was refused, and why. Its text is the sentence for people, its fields
    are what programs read in the event `refused`. Whoever makes one sees to it that both are
    printable."""

    who: str  # a name, as far as it is known; else ""
    address: str  # HOST:PORT, or HOST
    why: str

    @property
    def caller(self) -> str:
        """The name, as far as it is known, and the address."""
        return f"{self.who} at {self.address}" if self.who else self.address

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the event `refused`."""
        return asdict(self)

    def __str__(self) -> str:
        return f"refused {self.caller}: {self.why}"


def whole_number(text: str, most: int) -> int | None:
    """Return the number 0..`most` that is written in ASCII digits, and in no more of them than
    `most` has; None for all else.

    `str.isdigit` is true of "²", which is no number to `int`, and `int` refuses thousands of
    digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if number <= most else None


def request_target(text: str) -> SplitResult | None:
    """Return path and query of a request; None for what is no address, as "//[" is."""
    try:
        return urlsplit(text)
    except ValueError:
        return None


def printable(text: str, longest: int = 500) -> str:
    """Return `text` on one line, without control characters, cut to `longest` characters."""
    clean = "".join(c if c.isprintable() else " " for c in text[: longest + 1])
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
