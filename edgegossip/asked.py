"""What strangers write that has to be a number or a path, read so that nothing they write is an exception. Pure."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def whole_number(text: str, most: int) -> int | None:
    """The number 0..`most` that is written in ASCII digits, and in no more of them than `most` has; None for all else.
    `str.isdigit` is true of "²", which is no number to `int`, and `int` refuses thousands of digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if number <= most else None


def target_of(text: str) -> SplitResult | None:
    """Path and query of a request; None for what is no address, as "//[" is."""
    try:
        return urlsplit(text)
    except ValueError:
        return None
