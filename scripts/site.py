#!/usr/bin/env python3
"""Gather pages of docs/ and lab/ in build/pages, of which `make docs` builds the site.

docs/ becomes the top, and lab/ a folder in it. Links are those of the repository, so that they work
there too; here they follow their pages."""

from __future__ import annotations

import os.path
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SUFFIXES = {".md", ".json", ".toml", ".png"}  # of lab/, what pages show and link


def sources() -> list[Path]:
    """Return files to gather, relative to the repository."""
    docs, lab = ((ROOT / house).rglob("*.*") for house in ("docs", "lab"))
    return [path.relative_to(ROOT) for path in [*docs, *(path for path in lab if path.suffix in SUFFIXES)]]


def place(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    return path.removeprefix("docs/")


def linked(page: Path, text: str, known: set[str]) -> str:
    """Return a page with its links to other gathered files as they are in the site."""

    def moved(link: re.Match[str]) -> str:
        target = os.path.normpath(page.parent / link[1])
        if target not in known:
            return link[0]
        return f"]({os.path.relpath(place(target), os.path.dirname(place(str(page))) or '.')}{link[2]})"

    return re.sub(r"\]\(([^)#\s:]+)((?:#[^)\s]*)?)\)", moved, text)


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    found = sources()
    known = set(map(str, found))
    for path in found:
        copy = PAGES / place(str(path))
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(linked(path, (ROOT / path).read_text(encoding="utf-8"), known), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, copy)


if __name__ == "__main__":
    main()
