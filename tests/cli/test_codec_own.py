"""`edgegossip codec verify module:function`: the receiver is another process, and no mistake of a
user's codec is a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

OWN = """
import numpy as np
from edgegossip import codecs
from edgegossip.codecs.claims import Claims
from edgegossip.types import DecodeError

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
def good(): return codecs.get("fp32")
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_codecs.py").write_text(OWN)
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)")
    (tmp_path / "pickle.py").write_text("raise ImportError('a user may call a file that')")
    monkeypatch.chdir(tmp_path)
    for module in ("their_codecs", "leaving"):
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["token"], "same: a receiver in another process fails with edgegossip.types.DecodeError: no token"),
        (
            ["token", "--params", "place=module"],
            "a receiver in another process fails with edgegossip.types.DecodeError",
        ),
        (["text"], "variance='0.2', entropy_bits=None): unbiased is True, False or None, the others are finite"),
        (["exits"], "encodes: SystemExit: 0: a codec must not end the process"),
    ],
)
def test_faults_are_reported(command: Command, arguments: list[str], said: str) -> None:
    code, out, err = command("codec", "verify", f"their_codecs:{arguments[0]}", *arguments[1:], "--size", "256")
    assert code == 6 and said in out and not err


def test_a_correct_one_passes(command: Command) -> None:
    assert command("codec", "verify", "their_codecs:good", "--size", "256", "--draws", "4")[0] == 0


@pytest.mark.parametrize("name", ["their_codecs:leaves", "leaving:build"])
def test_a_module_or_function_that_ends_the_process(command: Command, name: str) -> None:
    code, out, err = command("codec", "verify", name)
    assert code == 2 and not out and f"{name} ended the process (SystemExit: 0)" in err
