"""Text from the wire, made fit for a log line."""

from __future__ import annotations


def printable(text: str, longest: int = 200) -> str:
    """`text` on one line, without control characters, cut to `longest` characters."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: longest + 1])
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
