"""Programs of any torch model: transformers, whole-number inputs, any batch size; by onnxruntime
and by torch.export."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgegossip import int8
from edgegossip.export import ProgramFile, exporter, to_onnx
from edgegossip.training.data.schema import Sums
from edgegossip.training.model import Standardise
from edgegossip.types import UsageError


class Reader(nn.Module):
    """Classes of sentences, with torch's own transformer."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.words, self.encoder, self.out = nn.Embedding(50, 16), nn.TransformerEncoder(layer, 1), nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.encoder(self.words(ids)).mean(1))
        return found


@pytest.mark.parametrize("suffix", [pytest.param(".onnx", marks=pytest.mark.slow), ".pt2"])
def test_a_transformer_with_whole_number_inputs_of_any_batch_size(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, ids = Reader().eval(), torch.randint(0, 50, (5, 7))
    written = exporter(suffix)(model, ids[:1], tmp_path / f"m{suffix}")  # one example does
    assert written.size_bytes == (tmp_path / f"m{suffix}").stat().st_size
    run = written.runner()
    assert run is not None
    for some in (ids, ids[:1], ids[:4]):
        with torch.inference_mode():
            np.testing.assert_allclose(run(some), model(some).numpy(), atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_to_onnx_takes_a_model_without_int8_layers(tmp_path: Path) -> None:
    """With `data.normalise = "together"` its inputs are as they are stored."""
    torch.manual_seed(0)
    first, x = Standardise((1, 8, 8), 2), 30 * torch.randn(3, 1, 8, 8) + 1000
    flat = x.double().numpy().reshape(-1, 1)
    first.add_board(1, Sums(flat.size, flat.sum(0), np.square(flat).sum(0)), 3.0)
    model = nn.Sequential(first, nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    assert first(x).std().item() == pytest.approx(1.0, abs=0.01)
    size = to_onnx(model, [x], tmp_path / "m.onnx")
    run = ProgramFile(tmp_path / "m.onnx", size).runner()
    assert run is not None
    with torch.inference_mode():
        np.testing.assert_allclose(run(x[:2]), model(x[:2]).numpy(), atol=1e-5)


class Result:
    """What models of transformers give, without that package."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wrapped(nn.Module):
    """A model that gives its outputs in an object."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.give = nn.Linear(6, 3), give

    def forward(self, x: Tensor) -> Any:
        return self.give(self.layer(x))


@pytest.mark.parametrize(
    ("give", "suffix"),
    [(lambda y: OrderedDict(aux=y.sum(), out=y), ".onnx"), (Result, ".pt2")],
    ids=["out after others", "an object with logits"],
)
def test_a_model_that_gives_an_object_is_a_program_of_its_outputs(
    give: Callable[[Tensor], Any], suffix: str, tmp_path: Path
) -> None:
    model, x = Wrapped(give).eval(), torch.randn(4, 6)
    run = exporter(suffix)(model, x, tmp_path / f"m{suffix}").runner()
    assert run is not None
    np.testing.assert_allclose(run(x[:3]), model.layer(x[:3]).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_model_without_one_output_is_refused_and_leaves_no_file(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the model gives a tuple: a file holds one tensor"):
        exporter(suffix)(Wrapped(lambda y: (y, y)).eval(), torch.randn(4, 6), tmp_path / f"m{suffix}")
    assert list(tmp_path.iterdir()) == []


class AsLongAsItTakes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while float(x.abs().sum()) > 1.0:
            x = x / 2
        return x


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_what_no_exporter_can_trace_is_one_sentence_and_no_file(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot hold this model: [A-Z]"):
        exporter(suffix)(AsLongAsItTakes(), torch.ones(2, 3), tmp_path / f"m{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_an_int8_model_has_no_program_of_torchs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of torch's: write it as .onnx"):
        exporter(".pt2")(int8.convert(nn.Sequential(nn.Linear(4, 2))), torch.ones(2, 4), tmp_path / "m.pt2")
