"""Golden vectors: the checked-in bytes of every codec, on every instruction set that this machine
has."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, native
from edgegossip.layout import Layout, TensorSpec

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json")) if path.stem in codecs.names()
}


def test_every_wire_format_has_at_least_ten_golden_vectors() -> None:
    on_the_wire = {f.name for f in codecs.REGISTRY.by_wire_id.values()}
    counts = {name: len(cases) for name, cases in CASES.items()}
    assert counts.keys() == on_the_wire
    assert min(counts.values()) >= 10, counts


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every instruction set in turn, as a user would choose it."""
    for isa in native.available_isas():
        monkeypatch.setenv("EDGEGOSSIP_ISA", isa)
        for case in CASES[name]:
            check(name, case, f"{case['case']} on {isa}")


def check(name: str, case: dict[str, Any], what: str) -> None:
    layout = Layout.of(TensorSpec(f"t{k}", tuple(shape)) for k, shape in enumerate(case["shapes"]))
    codec = codecs.get(name, **case.get("params", {}))
    if "decode_only" not in case:
        x = np.frombuffer(bytes.fromhex(case["x"]), "<f4").astype(np.float32)
        body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(key=1, round=0))
        assert bytes(body).hex() == case["body"], what
    decoded = codecs.from_wire(codec.wire_id, codec.wire_params()).decode(bytes.fromhex(case["body"]), layout)
    values = decoded.astype("<f4").tobytes()
    if "decoded_sha256" in case:
        assert hashlib.sha256(values).hexdigest() == case["decoded_sha256"], what
    else:
        assert values.hex() == case["decoded"], what
