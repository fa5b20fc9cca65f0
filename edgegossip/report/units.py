"""Numbers as people read them. Units are decimal, as links and disks count: 1 kB is 1000 bytes."""

from __future__ import annotations

from unicodedata import category, east_asian_width

UNKNOWN = "-"


def bytes_text(size_bytes: float | None) -> str:
    """Return "812 B", "1.25 kB", "34.6 MB": three significant digits."""
    if size_bytes is None:
        return UNKNOWN
    value, units = float(size_bytes), ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if abs(value) < 999.5 or unit == units[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{_three(value)} {unit}"
        value /= 1000
    raise AssertionError  # the last unit returns


def seconds_text(seconds: float | None) -> str:
    """Return "0.034 s", "12.3 s", "2 min 05 s", "3 h 20 min"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds:.3f} s"
    if seconds < 119.5:
        return f"{_three(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def brief_text(seconds: float | None) -> str:
    """Return the same for what usually lasts much less than a second: "340 us", "3.41 ms"."""
    if seconds is None or not 0 < seconds < 0.9995:
        return UNKNOWN if seconds is None else seconds_text(seconds) if seconds else "0 s"
    return f"{_three(1e3 * seconds)} ms" if seconds >= 0.9995e-3 else f"{1e6 * seconds:.0f} us"


def number_text(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, or "-"; with an exponent when it is huge."""
    if value is None:
        return UNKNOWN
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes: marks that combine with the character
    before take none, characters of East Asia two."""
    if text.isascii():
        return len(text)
    marks = ("Mn", "Me")
    return sum(1 + (east_asian_width(c) in "WF") for c in text if category(c) not in marks)


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Return the text with so many spaces that it takes these columns, at the left or the right."""
    spaces = " " * (columns - width(text))
    return spaces + text if right else text + spaces


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
