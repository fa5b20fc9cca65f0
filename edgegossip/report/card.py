"""What a notebook shows of a result: a small piece of HTML in the notebook's own colours, without
scripts or requests."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

_NUMBER = "text-align: right; font-variant-numeric: tabular-nums; padding: 1px 8px"
_WORD = "text-align: left; padding: 1px 8px"


def html_card(
    title: str,
    lines: Sequence[str],
    table: Sequence[Sequence[str]],
    *,
    png: bytes | None = None,
    alt: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Return a title, lines below it, a table, whose first row is its head and whose first column
    has names, a picture and notes. Everything but the picture is text, and is escaped."""
    head, *rows = table
    parts = [f"<strong>{escape(title)}</strong>", *(f"<div>{escape(line)}</div>" for line in lines)]
    cells = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    parts.append(
        f'<table style="margin: 6px 0"><thead><tr>{_cells("th", head)}</tr></thead><tbody>{cells}</tbody></table>'
    )
    if png is not None:
        source = f"data:image/png;base64,{b64encode(png).decode()}"
        parts.append(f'<img alt="{escape(alt)}" src="{source}" style="width: 100%; max-width: 760px">')
    parts += [f'<div style="opacity: 0.75">{escape(note)}</div>' for note in notes]
    return f"<div>{''.join(parts)}</div>"


def _cells(tag: str, row: Sequence[str]) -> str:
    return "".join(f'<{tag} style="{_NUMBER if k else _WORD}">{escape(cell)}</{tag}>' for k, cell in enumerate(row))
