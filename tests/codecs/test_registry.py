"""The registry: names, parameters, wire ids and what it says when they are wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.co3 import Co3Grid
from edgegossip.codecs.elastiquant import ElastiQuant
from edgegossip.codecs.floats import Fp32
from edgegossip.codecs.lowrank import Atomo, PowerSgd
from edgegossip.codecs.registry import Family, Param, Registry, preset
from edgegossip.codecs.sign import SignSgd, TernGrad
from edgegossip.codecs.sparse import Dgc, RandK, TopK
from edgegossip.codecs.sparseloco import SparseLoCo
from edgegossip.codecs.stepped import Dither
from edgegossip.codecs.uniform import ElastiCl, Qsgd
from edgegossip.types import ConfigError, DecodeError


def test_the_list_is_that_of_the_files() -> None:
    """Every family of every file, in the files' own order and with their ids; a module that is not
    listed has none."""
    modules = [import_module(f"edgegossip.codecs.{m.name}") for m in iter_modules(codecs.__path__)]
    with_families = {m.__name__.rpartition(".")[2]: m for m in modules if hasattr(m, "FAMILIES")}
    assert set(with_families) == set(codecs.FILES)
    built = [family for file in codecs.FILES for family in with_families[file].FAMILIES]
    assert tuple(family.name for family in built) == codecs.names()
    on_the_wire = [(family.wire_id, family) for family in built if family.wire_id is not None]
    assert len(dict(on_the_wire)) == len(on_the_wire) and dict(on_the_wire) == dict(codecs.REGISTRY.by_wire_id)
    assert all(
        tuple(f.name for f in with_families[file].FAMILIES) == tuple(names) for file, names in codecs.FILES.items()
    )


def test_only_the_file_that_is_asked_for_is_imported() -> None:
    code = (
        "import sys; from edgegossip import codecs; codecs.get('minmax8'); codecs.from_wire(1, b'');"
        "print(sorted(m.rpartition('.')[2] for m in sys.modules if m.rpartition('.')[2] in codecs.FILES))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['floats', 'minmax']"


def test_presets_are_families_with_other_defaults() -> None:
    assert codecs.get("4-bit-elastiquant") == codecs.get("elastiquant", bits=4, stage="raw")
    assert codecs.get("8-bit-elastiquant", bucket=64) == codecs.get("elastiquant", bits=8, stage="raw", bucket=64)
    assert codecs.get("e-elastiquant") == codecs.get("elastiquant", bits=4, stage="huffman")
    assert codecs.get("qsgd-v") == codecs.get("qsgd-inf", bits=4, stage="raw")
    with pytest.raises(ValueError, match="^preset x: elastiquant has no parameters \\['width'\\]$"):
        preset("x", codecs.REGISTRY.families["elastiquant"], "", width=3)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("minmax", {}, "there is no codec 'minmax'; did you mean minmax8?; valid: "),
        ("zzz", {}, "there is no codec 'zzz'; valid: fp32, fp16, bf16, minmax8, qsgd"),
        ("fp32", {"bits": 4}, "codec fp32 has no parameter 'bits'; it has none"),
    ],
)
def test_unknown_names(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        codecs.get(name, **params)


@pytest.mark.parametrize(
    ("codec_id", "params", "message"),
    [
        (0, b"", "unknown codec id 0; this build knows 1 (fp32), 2 (fp16), 3 (minmax8)"),
        (1, b"x", "fp32 has no wire parameters, the frame carries 1 bytes of them"),
        (3, bytes(513), "513 bytes of codec parameters exceed the limit of 512"),
    ],
)
def test_bad_bytes_from_the_wire(codec_id: int, params: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}"):
        codecs.from_wire(codec_id, params)


class Recorder(Fp32):
    """A codec that remembers what it was made with."""

    def __init__(self, **params: Any) -> None:
        object.__setattr__(self, "params", params)


PARAMS = (
    Param("bits", 4, "bits a value", low=2, high=8),
    Param("ratio", 0.5, "ratio of levels", low=0.0, high=1.0),
    Param("stage", "raw", "entropy coder", choices=("raw", "huffman")),
    Param("nesterov", False, "form of momentum"),
    Param("seed", 1, "any", low=0),
)
REGISTRY = Registry({"test": Family("test", Recorder, "a test", PARAMS)}, {})


def made(**params: Any) -> dict[str, Any]:
    return REGISTRY.get("test", params).params  # type: ignore[attr-defined, no-any-return]


def test_parameters_are_filled_in_and_converted() -> None:
    assert made() == {"bits": 4, "ratio": 0.5, "stage": "raw", "nesterov": False, "seed": 1}
    given = made(bits=8, ratio=1, stage="huffman", nesterov=True, seed=10**30)
    assert given == {"bits": 8, "ratio": 1.0, "stage": "huffman", "nesterov": True, "seed": 10**30}
    assert type(given["ratio"]) is float


def test_numbers_of_numpy_are_numbers() -> None:
    given = made(bits=np.int64(8), ratio=np.float32(0.25), seed=np.uint8(3))
    assert given["bits"] == 8 and given["ratio"] == 0.25 and given["seed"] == 3
    assert (type(given["bits"]), type(given["ratio"]), type(given["seed"])) == (int, float, int)
    assert made(ratio=np.int32(1))["ratio"] == 1.0
    codec = codecs.get("elastiquant", levels=[np.float32(0), np.float64(0.5), np.int8(1)])
    assert codec == codecs.get("elastiquant", levels=[0.0, 0.5, 1.0])


@pytest.mark.parametrize("value", [True, np.True_, np.float32(4), 4.5, "4", None, 4j])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="^codec test: bits = .* is not a whole number$"):
        made(bits=value)


@pytest.mark.parametrize("value", [True, np.True_, "4", None, 4j])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="^codec test: ratio = .* is not a number$"):
        made(ratio=value)
    with pytest.raises(ConfigError, match="is not a list of numbers$"):
        codecs.get("elastiquant", levels=[0.0, value, 1.0])


@pytest.mark.parametrize("digits", [400, 10_000])
def test_numbers_beyond_any_float(digits: int) -> None:
    huge = 10**digits
    with pytest.raises(ConfigError, match="^codec topk: ratio = .* is outside 1e-09 to 1.0$"):
        codecs.get("topk", ratio=huge)
    with pytest.raises(ConfigError, match="^codec elastiquant: levels = .* is outside 0.0 to 1.0$"):
        codecs.get("elastiquant", levels=[0, huge])
    with pytest.raises(ConfigError, match="^codec dgc: clip = .* is not a number that a float64 holds$"):
        codecs.get("dgc", clip=huge)
    assert made(seed=huge)["seed"] == huge


DIRECT = [
    (TopK, {"ratio": 5.0}, "codec topk: ratio = 5.0 is outside 1e-09 to 1.0"),
    (RandK, {"unbiased": 1}, "codec randk: unbiased = 1 is not true or false"),
    (Dgc, {"clip": float("nan")}, "codec dgc: clip = nan is below 0.0"),
    (Atomo, {"rank": 0}, "codec atomo: rank = 0 is outside 1 to 64"),
    (PowerSgd, {"values": "bf16"}, "codec powersgd: values = 'bf16' is not one of fp32, fp16"),
    (Qsgd, {"bits": 17}, "codec qsgd: bits = 17 is outside 2 to 16"),
    (ElastiQuant, {"bits": 9}, "codec elastiquant: bits = 9 is outside 2 to 8"),
    (ElastiCl, {"s0": 0}, "codec elasticl: s0 = 0 is outside 1 to 32767"),
    (Co3Grid, {"stage": "best"}, "codec co3: stage = 'best' is not one of raw"),
    (TernGrad, {"clip": -1.0}, "codec terngrad: clip = -1.0 is outside 0.0 to 1000000.0"),
    (SparseLoCo, {"chunk": 0}, "codec sparseloco: chunk = 0 is outside 1 to 16777216"),
    (Dither, {"error": 17.0}, "codec dither: error = 17.0 is outside 0.0 to 16.0"),
    (SignSgd, {"stage": "huffman"}, "codec signsgd: stage = 'huffman' is not one of raw, zstd, auto"),
]


@pytest.mark.parametrize(("make", "params", "message"), DIRECT, ids=str)
def test_codecs_made_directly_refuse_what_get_refuses(make: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        make(**params)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        codecs.get(make.name, **params)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bit", 4, "codec test has no parameter 'bit'; did you mean bits?; valid: bits, ratio, stage, nesterov, seed"),
        ("bits", 1, "codec test: bits = 1 is outside 2 to 8"),
        ("ratio", float("nan"), "codec test: ratio = nan is outside 0.0 to 1.0"),
        ("stage", "hufman", "codec test: stage = 'hufman' is not one of raw, huffman; did you mean huffman?"),
        ("stage", 3, "codec test: stage = 3 is not a word"),
        ("nesterov", 1, "codec test: nesterov = 1 is not true or false"),
        ("seed", -1, "codec test: seed = -1 is below 0"),
    ],
)
def test_bad_parameters(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        made(**{key: value})
