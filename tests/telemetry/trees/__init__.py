"""Recorded file trees: see README.md."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def plant(name: str, root: Path) -> Path:
    """Write the tree of that name under `root`, which stands in for "/"; returns `root`."""
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        path, content = line.split("\t")
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    return root
