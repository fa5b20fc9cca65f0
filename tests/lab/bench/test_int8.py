"""`python -m lab.bench int8`: the row that scripts read, and what its figures count."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from edgegossip import native
from edgegossip.recipe import ModelSection
from edgegossip.types import ConfigError
from lab.bench import int8
from lab.bench.__main__ import bench

FIELDS = [
    "model",
    "batch",
    "threads",
    "dw",
    "isa",
    "step_ms",
    "fp32_batchnorm_ms",
    "fp32_evonorm_ms",
    "speedup_vs_batchnorm",
    "speedup_vs_evonorm",
    "saved_bytes",
    "fp32_saved_bytes",
    "peak_bytes",
    "fp32_peak_bytes",
]


def test_rows_have_the_published_fields(monkeypatch):
    monkeypatch.setattr(int8, "peak_bytes", lambda *_: None)
    before = torch.get_num_threads()
    asked = ["int8", "--model", "cnn:channels=[4];hidden=8", "--batch", "4", "--dw", "8", "--repeat", "1", "--json"]
    done = CliRunner().invoke(bench, asked, standalone_mode=False)
    assert done.exception is None, done.exception
    (row,) = json.loads(done.output)["rows"]
    assert set(FIELDS) <= set(row)
    assert row["step_ms"] > 0 and row["speedup_vs_batchnorm"] == row["fp32_batchnorm_ms"] / row["step_ms"]
    assert torch.get_num_threads() == before


def test_an_unknown_instruction_set_is_named_with_those_that_there_are():
    with pytest.raises(ConfigError, match="--isa sse9: this machine has portable"):
        CliRunner().invoke(bench, ["int8", "--isa", "sse9"], standalone_mode=False, catch_exceptions=False)


def test_an_unknown_model_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="resnet20"):
        CliRunner().invoke(bench, ["int8", "--model", "resnet2"], standalone_mode=False, catch_exceptions=False)


def test_a_model_comes_with_its_parameters():
    assert int8.section_of("mlp:hidden=[512,1024]", "batchnorm") == ModelSection(
        name="mlp", norm="batchnorm", params={"hidden": [512, 1024]}
    )
    assert int8.section_of("cnn:channels=[8];hidden=16").params == {"channels": [8], "hidden": 16}
    for wrong in ("mlp:hiden=[8]", "resnet20:depth=3", "mlp:hidden"):
        with pytest.raises(ConfigError):
            int8.training_of("int8", wrong, 4, 8)


def test_saved_bytes_of_resnet20_are_two_a_value_and_a_quarter_of_fp32s():
    ours, theirs = (int8.saved_bytes(int8.training_of(v, "resnet20", 4, 16)) for v in ("int8", "batchnorm"))
    values = 7 * 16 * 1024 + 6 * 32 * 256 + 6 * 64 * 64  # outputs of the convolutions, and as many of the norms
    assert 1.9 * 4 * values < ours < 2.1 * 4 * values
    assert theirs > 3.9 * ours


def test_peak_memory_is_measured_where_the_kernel_tells():
    found = int8.peak_of_this_process("int8", "cnn", 16, torch.get_num_threads(), 16)
    assert found is None or 0 <= found < 2**30


@pytest.mark.slow  # a process that loads torch anew
def test_predictions_have_rows_of_their_own_and_torch_is_held_to_avx2_as_the_kernels_are():
    isa = "avx2" if "avx2" in native.available_isas() else "portable"
    command = [sys.executable, "-m", "lab.bench", "int8", "--inference", "--isa", isa]
    asked = ["--model", "mlp:hidden=[8]", "--batch", "4", "--repeat", "1", "--json"]
    document = json.loads(subprocess.run([*command, *asked], capture_output=True, check=True).stdout)
    (row,) = document["rows"]
    assert row["isa"] == isa and (document["torch_isa"] == "AVX2" or isa == "portable")
    assert row["predict_ms"] > 0 and row["speedup_vs_batchnorm"] == row["fp32_batchnorm_ms"] / row["predict_ms"]
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        assert row["onnx_int8_ms"] > 0 and row["onnx_fp32_ms"] > 0
    else:
        assert row["onnx_int8_ms"] is None
