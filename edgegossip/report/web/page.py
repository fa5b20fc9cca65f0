"""The page of one or several runs as one self-contained file, without network requests: a
Content-Security-Policy in it says so to the browser."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from edgegossip.files import write_atomic
from edgegossip.report.progress import ALARMS
from edgegossip.report.style import DARK, LIGHT, SERIES, SERIES_DARK, places
from edgegossip.report.web.view import RunView
from edgegossip.version import VERSION

SCRIPTS = (
    "data.js",
    "format.js",
    "state.js",
    "chart.js",
    "export.js",
    "bars.js",
    "learning.js",
    "gantt.js",
    "links.js",
    "rates.js",
    "compare.js",
    "across.js",
    "events.js",
    "head.js",
    "controls.js",
    "app.js",
    "start.js",
)
STYLES = ("page.css",)
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src {connect}"
)


def write_page(folders: Sequence[Path], path: Path) -> Path:
    """Write the page of these run folders to `path`, whole or not at all. Raises DataError for a
    folder that is none, HostError when it cannot be written."""
    views = [RunView(Path(folder)) for folder in folders]
    for view in views:
        view.read()
    return page_of(views, path)


def page_of(views: Sequence[RunView], path: Path) -> Path:
    """Write the page of runs that have been read."""
    write_atomic(path, page(views).encode())
    return path


def page(views: Sequence[RunView], *, live: bool = False) -> str:
    """Return the page's text. A live one has no data in it: it asks the server that it came
    from."""
    title = views[0].data.name if len(views) == 1 else f"{len(views)} runs"
    made = {
        "made": datetime.now().isoformat(sep=" ", timespec="minutes"),
        "version": VERSION,
        "live": live,
        "alarms": sorted({*ALARMS, "error"}),
        "runs": [v.data.name for v in views],
        "places": places(v.scheme for v in views),
        "series": {"light": SERIES, "dark": SERIES_DARK},
    }
    scripts = ['"use strict";', _read("uPlot.iife.min.js"), *map(_read, SCRIPTS)]
    styles = [_read("uPlot.min.css"), _colors(":root", LIGHT), _colors(':root[data-theme="dark"]', DARK)]
    parts = [f"<style>{''.join([*styles, *map(_read, STYLES)])}</style>", _read("body.html")]
    parts.append(_json("page-made", made))
    packs = [] if live else [view.whole() for view in views]
    parts += [_blob("run-data", first) for first, _ in packs]
    # It begins to draw while the browser still reads the rest.
    parts.append(f"<script>{chr(10).join(scripts)}</script>")
    parts += [_blob("run-rest", rest) for _, rest in packs]
    policy = _POLICY.format(connect="'self'" if live else "'none'")
    return _read("head.html").format(
        title=html.escape(title), policy=policy, licence=_read("uPlot.LICENSE"), body="\n".join(parts)
    )


def _read(name: str) -> str:
    return (files("edgegossip.report.web") / "static" / name).read_text("utf-8")


def _colors(selector: str, theme: Mapping[str, str]) -> str:
    return f"{selector} {{ {' '.join(f'--{name}: {color};' for name, color in theme.items())} }}\n"


def _json(name: str, document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _blob(kind: str, data: bytes) -> str:
    return f'<script type="application/octet-stream" class="{kind}">{base64.b64encode(data).decode()}</script>'
