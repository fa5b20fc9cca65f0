"""lab/results/speed_up.py: the picture that the README begins with has the committed figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def speed_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("matplotlib")
    from lab.results import speed_up

    return speed_up


def labels(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())


def test_the_committed_picture_is_what_the_script_draws(speed_up: Any, tmp_path: Path) -> None:
    speed_up.draw(speed_up.speed_ups(), tmp_path / "new.svg")
    assert labels(tmp_path / "new.svg") == labels(ROOT / "docs/images/speed-up.svg")
    assert "7.7 times: 4 bits a value, to two neighbours only" in labels(tmp_path / "new.svg")


def test_other_results_make_another_picture(speed_up: Any, tmp_path: Path) -> None:
    head, rows = ["scheme", "boards", "speed-up"], [[name, n, n] for name in speed_up.SHOWN for n in ("2", "18")]
    (tmp_path / "scale.json").write_text(json.dumps({"tables": [{"head": head, "rows": rows}]}))
    speed_up.draw(speed_up.speed_ups(tmp_path / "scale.json"), tmp_path / "new.svg")
    assert any("18.0 times" in label for label in labels(tmp_path / "new.svg"))
