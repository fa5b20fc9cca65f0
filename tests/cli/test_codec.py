"""`edgegossip codec`: listing, verifying a codec by name and a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgegossip import codecs
from edgegossip.cli.codec import codec
from tests.cli.conftest import Command

OWN = """
import numpy as np
from edgegossip import codecs
from edgegossip.codecs.claims import Claims

class Own:
    name, wire_id = "own", 900
    def __init__(self, factor): self.factor, self.inner = factor, codecs.get("fp32")
    def claims(self, x, layout): return Claims(unbiased=True)
    def wire_params(self): return b""
    def init(self, layout): return layout
    def encode(self, x, state, ctx): return self.inner.encode(x, state, ctx)
    def decode(self, body, layout, out=None, weight=None):
        with np.errstate(all="ignore"):
            y = self.inner.decode(body, layout) * np.float32(self.factor)
        if out is None: return y
        out[:] = y if weight is None else out + np.float32(weight) * y
        return out

def build(factor=1.0): return Own(factor)
def nothing(): return 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_codecs.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_codecs", raising=False)


def test_the_list_has_every_codec(command: Command) -> None:
    code, out, _ = command("codec", "list", "--json")
    rows = json.loads(out)
    assert code == 0 and [row["name"] for row in rows] == list(codecs.names())
    for row in rows:
        family = codecs.REGISTRY.families[row["name"]]
        assert [p["name"] for p in row["params"]] == [p.name for p in family.params]
        assert all("default" in p and "help" in p for p in row["params"])
    code, out, _ = command("codec", "list")
    assert code == 0 and all(f"{name}: " in out for name in codecs.names())


def test_verify_by_name(command: Command) -> None:
    code, out, _ = command("codec", "verify", "fp16", "--size", "1000", "--draws", "4", "--json")
    document = json.loads(out)
    assert code == 0 and document["size"] == 1000 and document["draws"] == 4
    (report,) = document["codecs"]
    assert report["codec"] == "fp16" and report["passed"] and report["bits_per_value"] == 16
    assert {check["name"] for check in report["checks"]} == {"gain", "bias", "variance", "size", "same", "refuses"}
    code, out, _ = command("codec", "verify", "fp32", "--size", "64")
    assert code == 0 and out.splitlines()[1].split()[:2] == ["fp32", "32"] and out.rstrip().endswith("ok")


def test_verify_all(command: Command) -> None:
    code, out, _ = command("codec", "verify", "--size", "4096", "--draws", "16")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:]] == list(codecs.names())


@pytest.mark.usefixtures("own")
def test_verify_ones_own(command: Command) -> None:
    assert command("codec", "verify", "my_codecs:build", "--size", "256")[0] == 0
    code, out, _ = command("codec", "verify", "my_codecs:build", "--params", "factor=1.5", "--size", "256")
    assert code == 6 and "FAILED" in out and "my_codecs:build: gain: 1.5 is off 1 by more than" in out
    code, out, _ = command("codec", "verify", "my_codecs:build", "--params", "factor=inf", "--size", "256", "--json")
    assert code == 6 and not json.loads(out)["codecs"][0]["passed"]
    code, out, _ = command("codec", "verify", "my_codecs:build", "--params", "factor=1e30", "--size", "256", "--json")
    assert code == 6 and json.loads(out)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing-like-it"], "there is no codec 'nothing-like-it'"),
        (["fp32", "--params", "bits=4"], "codec fp32 has no parameter 'bits'"),
        (["fp32", "--params", "bits"], "write it as key=value"),
        (["--params", "bits=4"], "--params belong to one codec"),
        (["my_codecs:nothing"], "my_codecs:nothing returned int, which is no codec: it lacks name, wire_id"),
        (["my_codecs:buidl"], "my_codecs:build"),
        (["my_codecs:build", "--params", "factory=word"], "my_codecs:build failed: TypeError"),
        (["fp32", "--size", "63"], "63"),
    ],
)
def test_mistakes(command: Command, arguments: list[str], said: str) -> None:
    code, out, err = command("codec", "verify", *arguments)
    assert code == 2 and said in err and not out


def test_the_group_has_both() -> None:
    assert set(codec.commands) == {"list", "verify"}
