"""Attack frames: each file of attacks/ is refused with the sentence that errors.json has for it (a
final * stands for any rest), and changes nothing. What was refused once stays refused: files are
added, made with `raw_frame`, and never changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from edgegossip.types import PeerError
from tests.conformance.pipeline import LAYOUT, aux_entry, raw_frame, receive

FOLDER = Path(__file__).parent / "attacks"
ERRORS: dict[str, str] = json.loads((FOLDER / "errors.json").read_text())


def test_every_file_has_its_sentence() -> None:
    assert {p.stem for p in FOLDER.glob("*.bin")} == set(ERRORS)
    assert len(ERRORS) >= 40


def test_the_frame_that_attacks_are_made_from_is_good() -> None:
    """Otherwise all of them could be refused for one reason that they share."""
    frame, x = receive(raw_frame(aux=aux_entry(1, 0.5)))
    assert frame.aux == {1: 0.5}
    assert x.tolist() == [0.0] * LAYOUT.size


def test_attacks_are_refused() -> None:
    for name, wanted in ERRORS.items():
        out, data = np.full(LAYOUT.size, 7, np.float32), (FOLDER / f"{name}.bin").read_bytes()
        pattern = re.escape(wanted.removesuffix("*")) + (".*" if wanted.endswith("*") else "")
        for arguments in ((out, 0.5), ()):
            with pytest.raises(PeerError) as refused:
                receive(data, *arguments)
            assert re.fullmatch(pattern, str(refused.value)), f"{name}: {refused.value}"
        assert (out == 7).all(), name
