"""`bench codecs`: the JSON document, the options, the errors. Nothing here judges a speed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from edgegossip import codecs, native
from edgegossip.types import ConfigError, DataError
from lab.bench import run_codecs
from lab.bench.__main__ import TORCH_WITH_AVX2, bench
from lab.bench.cases import Case, default_cases, description, parse_case, parse_cases
from lab.bench.codecs import Settings, measure, numpy_elias
from lab.bench.inputs import synthetic
from lab.bench.timing import Times

QUICK = "--repeat 1 --min-seconds 0 --no-compile"
FIELDS = [
    "codec",
    "stage",
    "input",
    "n",
    "bits_per_value",
    "entropy_bits",
    "relative_error",
    "encode_mb_s",
    "decode_mb_s",
    "encode_vs_memcpy",
    "decode_vs_memcpy",
    "encode_vs_torch",
    "isa",
]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    """The command sets environment variables of the kernels and torch; they go with the test."""
    for name in ("EDGEGOSSIP_ISA", "EDGEGOSSIP_THREADS", *TORCH_WITH_AVX2):
        monkeypatch.setenv(name, "")


def invoke(words, *more):
    """Run the command as it is typed; `more` words may have spaces in them."""
    return CliRunner().invoke(bench, ["codecs", *words.split(), *more], catch_exceptions=False, standalone_mode=False)


def test_json_document():
    done = invoke(
        f"--codec minmax8 --codec fp16 --size 3000 --size 4kB {QUICK} --json --set model.params.hidden=[16] --steps 3"
    )
    document = json.loads(done.stdout)
    assert done.return_value == 0
    rows = document["rows"]
    assert [(r["codec"], r["input"], r["n"]) for r in rows] == [
        (codec, source, n)
        for n in (3000, 1000)
        for source in ("synthetic", "gradient")
        for codec in ("minmax8", "fp16")
    ]
    for row in rows:
        assert list(row)[: len(FIELDS)] == FIELDS
        assert row["isa"] == native.isa() == document["machine"]["isa"]
        assert row["stage"] is None and row["entropy_bits"] is None
        assert row["encode_mb_s"] > 0 and row["decode_vs_memcpy"] > 0 and row["encode_vs_torch"] > 0
    assert rows[1]["bits_per_value"] == 16 and 0 < rows[1]["relative_error"] < 1e-3
    assert document["machine"]["packages"]["numpy"] == np.__version__ and document["repeat"] == 1


@pytest.mark.slow  # times them all
def test_every_codec_of_the_default_list_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["lab/bench/__main__.py", "codecs", "--check", "a b"]
    )  # what the command is called with
    done = invoke(f"--input synthetic --size 6000 {QUICK} --json --check --save", str(tmp_path))
    document = json.loads(done.stdout)
    wanted = [(case.label, stage) for case in default_cases() for stage in case.coders or (None,)]
    assert [(r["codec"], r["stage"]) for r in document["rows"]] == wanted
    for row in document["rows"]:
        assert row["encode_vs_torch"] > 0, f"{row['codec']} has no rival"
        tuned = row["family"] in ("qsgd", "qsgd-inf", "elastiquant", "elasticl", "terngrad", "eden")
        assert (row["encode_vs_torch_tuned"] is not None) == tuned
        assert (row["entropy_bits"] is not None) == (row["stage"] is not None)
        assert row["bits_per_value"] > 0
    assert done.return_value == (6 if any(c["holds"] is False for c in document["checks"]) else 0)
    assert json.loads((tmp_path / "codecs.json").read_text()) == document
    text = (tmp_path / "codecs.md").read_text()
    assert document["command"] == "python -m lab.bench codecs --check 'a b'"
    assert f"\n$ {document['command']}\n" in text
    assert text.count("\n| ") == len(document["rows"]) + 2 and "## Targets" in text


@pytest.mark.parametrize("isa", native.available_isas())
def test_isa_and_threads_reach_the_kernels(isa):
    done = invoke(f"--codec fp16 --input synthetic --size 64 {QUICK} --isa {isa} --threads 2 --json --no-rivals")
    assert json.loads(done.stdout)["rows"][0]["isa"] == isa


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--codec minmax9", "did you mean minmax8"),
        ("--codec fp16:bits=3", "fp16 has no parameter 'bits'"),
        ("--codec fp16:bits", "NAME:key=value"),
        ("--codec qsgd:bits=4,bits=5", "qsgd:bits=4,bits=5: bits is given twice"),
        ("--set foo=1 --input synthetic", "--set foo=1 changes the recipe behind --input gradient"),
        ("--codec signsgd --stage huffman", "--stage huffman: none of these codecs has it"),
        ("--isa avx9", "this machine has"),
        ("--size many", "--size many"),
        ("--input nowhere.npz", "nowhere.npz"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ConfigError, match=message):
        invoke(arguments)


def test_dump_makes_an_input(tmp_path):
    file = tmp_path / "g.npz"
    run = ["dump", str(file), "--set", "model.params.hidden=[16]", "--steps", "2"]
    done = CliRunner().invoke(bench, run, catch_exceptions=False, standalone_mode=False)
    assert "values" in done.stdout
    done = invoke(f"--codec fp16 --size 500 {QUICK} --json --input", str(file))
    assert [(r["input"], r["n"]) for r in json.loads(done.stdout)["rows"]] == [("g", 500)]
    file.write_bytes(b"")
    with pytest.raises(DataError):
        invoke("--codec fp16 --size 500 --input", str(file))


def test_coders_of_a_quantised_codec_share_one_entropy():
    data = synthetic(20_000, seed=2)
    rows = measure(Case("qsgd", {"bits": 4, "bucket": 512}, ("raw", "elias")), data, Settings(repeat=1))
    assert [row["stage"] for row in rows] == ["raw", "elias"]
    assert rows[0]["entropy_bits"] == rows[1]["entropy_bits"]
    assert 0.5 < rows[0]["entropy_bits"] < rows[0]["entropy_global_bits"] + 0.5 < rows[0]["bits_per_value"]
    assert rows[0]["family"] == "qsgd" and rows[0]["bits"] == 4 and 0 < rows[0]["relative_error"] < 1
    assert rows[0]["encode_vs_numpy"] is None and rows[1]["encode_vs_numpy"] > 0 and rows[1]["decode_vs_numpy"] > 0
    assert "x numpy" in run_codecs.line(rows[1]) and "x numpy" not in run_codecs.line(rows[0])
    assert rows[0]["encode_mb_s"] / rows[0]["memcpy_mb_s"] == pytest.approx(rows[0]["encode_vs_memcpy"])  # of one round
    assert rows[0]["encode_mb_s"] / rows[0]["torch_encode_mb_s"] == pytest.approx(rows[0]["encode_vs_torch"])


def test_numpy_rival_only_where_it_does_the_same():
    assert numpy_elias("qsgd", {"bits": 4, "bucket": 512}).s == 7
    assert numpy_elias("elastiquant", {"bits": 4, "bucket": 512}).levels[1] == 2**-6
    for name, params in (("qsgd", {"bits": 4, "bucket": 0}), ("co3", {}), ("elastiquant", {"bits": 4, "bucket": 1024})):
        assert numpy_elias(name, params) is None


def test_description_looks_inside_error_feedback():
    name, params = description(codecs.error_feedback(codecs.get("topk", ratio=0.25), 0.9))
    assert name == "topk" and (params["ratio"], params["feedback"]) == (0.25, 0.9)


def test_cases():
    wrappers = {"auto", "error-feedback", "per-tensor", "small-tensors"}
    assert {case.name for case in default_cases()} == set(codecs.names()) - wrappers
    assert all(case.build(case.coders[0] if case.coders else None) for case in default_cases())
    assert parse_case("fp16").coders == () and parse_cases(["fp16"], ["raw"])[0].coders == ()
    assert description(codecs.get("fp16"))[0] == "fp16"


def test_every_coder_has_a_memcpy_of_its_own_between_encoding_and_decoding(monkeypatch):
    """Ratios are of pairs of one round, and rows tell how far memcpy's times lie apart."""
    seen = {}

    def fake(work, repeat, slow, **options):
        seen["work"], seen["slow"] = list(work), slow
        seconds = {name: [1.0, 1.0, 1.0] for name in work}
        seconds |= {"memcpy raw": [2.0, 4.0, 8.0], "encode raw": [1.0, 2.0, 16.0], "memcpy huffman": [3.0, 3.0, 3.0]}
        return Times(3, seconds)

    monkeypatch.setattr("lab.bench.codecs.in_turn", fake)
    data = synthetic(1000, 1)
    raw, huffman = measure(Case("qsgd", {}, ("raw", "huffman")), data, Settings(3, rivals=False))
    group = ("encode", "memcpy", "decode", "add")
    assert seen["work"] == [f"{what} {stage}" for stage in ("raw", "huffman") for what in group] and not seen["slow"]
    assert (raw["encode_vs_memcpy"], raw["decode_vs_memcpy"], raw["rounds"]) == (2.0, 4.0, 3)
    assert huffman["encode_vs_memcpy"] == huffman["decode_vs_memcpy"] == 3.0
    speeds = [raw[f"memcpy_{which}mb_s"] for which in ("q1_", "", "q3_")]
    assert speeds == pytest.approx([4e-3 / seconds for seconds in (6.0, 4.0, 3.0)])
    assert raw["encode_mb_s"] == pytest.approx(4e-3 / 2)
