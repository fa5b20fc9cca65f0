"""`edgegossip codec`: listing, verifying a codec by name and a user's own. The receiver is another
process, and no mistake of a user's codec is a crash."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgegossip import codecs
from tests.cli.conftest import Command

OWN = """
import numpy as np
from edgegossip import codecs
from edgegossip.codecs.claims import Claims
from edgegossip.types import DecodeError

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

KEPT = []

class Token:
    name, wire_id = "token", 901
    inner = codecs.get("fp32")
    def __init__(self, place): self.kept = KEPT if place == "module" else []
    def wire_params(self): return b""
    def init(self, layout): return layout
    def encode(self, x, state, ctx):
        self.inner.encode(x, state, ctx)
        self.kept[:] = [x.copy()]
        return b"send", state
    def decode(self, body, layout, out=None, weight=None):
        if bytes(body) != b"send" or not self.kept: raise DecodeError("no token")
        return self.inner.decode(self.kept[0].tobytes(), layout, out, weight)

class Text(Token):
    def claims(self, x, layout): return Claims(True, "0.2")

class Exits(Token):
    def encode(self, x, state, ctx): raise SystemExit(0)

def token(place="object"): return Token(place)
def text(): return Text("object")
def exits(): return Exits("object")
def leaves(): raise SystemExit(0)
def build(factor=1.0): return Own(factor)
def nothing(): return 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_codecs.py").write_text(OWN)
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)")
    (tmp_path / "pickle.py").write_text("raise ImportError('a user may call a file that')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("my_codecs", "leaving"):
        monkeypatch.delitem(sys.modules, module, raising=False)


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
    code, out, _ = command("codec", "verify", "--size", "4096", "--draws", "24")
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


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["token"], "same: a receiver in another process fails with edgegossip.types.DecodeError: no token"),
        (["token", "--params", "place=module"], "in another process fails with edgegossip.types.DecodeError"),
        (["text"], "variance='0.2', entropy_bits=None): unbiased is True, False or None, the others are finite"),
        (["exits"], "encodes: SystemExit: 0: a codec must not end the process"),
    ],
)
def test_faults_are_reported(command: Command, arguments: list[str], said: str) -> None:
    code, out, err = command("codec", "verify", f"my_codecs:{arguments[0]}", *arguments[1:], "--size", "256")
    assert code == 6 and said in out and not err


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["my_codecs:leaves", "leaving:build"])
def test_a_module_or_function_that_ends_the_process(command: Command, name: str) -> None:
    code, out, err = command("codec", "verify", name)
    assert code == 2 and not out and f"{name} ended the process (SystemExit: 0)" in err
