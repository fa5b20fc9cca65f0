"""`to_onnx` and `qdq_model`, as a user of plain PyTorch meets them."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edgegossip import int8
from edgegossip.export import to_onnx
from edgegossip.int8 import qdq
from edgegossip.types import HostError, UsageError

DOCS = (Path(__file__).parents[2] / "docs" / "int8.md").read_text()


def error(x: np.ndarray, of: np.ndarray) -> float:
    return float(np.linalg.norm(x - of) / np.linalg.norm(of))


def test_every_part_of_the_model_keeps_its_mode():
    model = int8.convert(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(), nn.Linear(4, 2)))).train()
    model[1].eval()
    twin = qdq.qdq_model(model, [torch.ones(2, 4)])
    assert [m.training for m in model.modules()] == [True, True, False, False, False]
    assert not any(m.training for m in twin.modules())
    with pytest.raises(UsageError):  # on the way
        qdq.qdq_model(model, [torch.ones(2, 4), [torch.ones(2, 4)]])
    assert [m.training for m in model.modules()] == [True, True, False, False, False]


def test_batches_with_labels_and_no_batches_are_refused(tmp_path: Path):
    model = int8.convert(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="not a tuple: leave out labels"):
        to_onnx(model, [(torch.ones(1, 2), torch.ones(1))], tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="no examples"):
        to_onnx(model, [], tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_where_onnx_is_not_installed_what_to_type_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "edgegossip.int8.onnx_file", raising=False)
    monkeypatch.delattr("edgegossip.int8.onnx_file", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(HostError, match=r"needs the package onnx: pip install onnx onnxruntime onnxscript"):
        to_onnx(int8.convert(nn.Linear(2, 2)), [torch.ones(1, 2)], tmp_path / "m.onnx")


def test_what_the_documentation_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    example = DOCS.split("## Inference elsewhere")[1].split("```python\n")[1].split("```")[0]
    model, x = int8.convert(nn.Sequential(nn.Flatten(), nn.Linear(256, 5))).eval(), torch.randn(8, 4, 8, 8)
    names = {"model": model, "batches": [x], "x": x}
    exec(example, names)
    assert names["size_bytes"] == (tmp_path / "model.onnx").stat().st_size
    with torch.no_grad():
        assert error(names["logits"], model(x).numpy()) < 0.02
