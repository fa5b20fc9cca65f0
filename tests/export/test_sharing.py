"""Layers with several names, and layers that a pass calls several times: the twin and the file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.export import to_onnx
from edgegossip.int8 import onnx_file, qdq
from edgegossip.types import UsageError


def error(x: np.ndarray, of: np.ndarray) -> float:
    return float(np.linalg.norm(x - of) / np.linalg.norm(of))


def conv() -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1)


def head() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)]


def two_names_of_a_block() -> nn.Module:
    block = nn.Sequential(conv(), nn.ReLU(), conv())
    return nn.Sequential(block, nn.ReLU(), block, *head())


def a_shared_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 16), relu, nn.Linear(16, 16), relu, nn.Linear(16, 5))


def tied_weights() -> nn.Module:
    first, second = conv(), conv()
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second, *head())


class CalledThrice(nn.Module):
    """The outputs of its calls differ by a factor of ten each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = conv(), nn.Sequential(*head())
        self.conv.weight.data *= 0.1

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.conv(x)
        y: Tensor = self.head(x)
        return y


SHARING = [two_names_of_a_block, a_shared_relu, tied_weights, CalledThrice]


@pytest.mark.parametrize("build", SHARING)
def test_layers_that_are_used_twice_are_exported(build, tmp_path: Path):
    torch.manual_seed(0)
    model, x = int8.convert(build()).eval(), torch.randn(64, 4, 8, 8)
    size = to_onnx(model, [x[:32], x[32:]], tmp_path / "m.onnx")
    assert size == (tmp_path / "m.onnx").stat().st_size
    run = onnx_file.runner(tmp_path / "m.onnx")
    assert run is not None
    with torch.no_grad():
        ours, twin = model(x).numpy(), qdq.qdq_model(model, [x])(x).numpy()
    assert error(twin, ours) < 0.02
    assert error(run(x), ours) < 0.02
    # Each weight is stored as int8, none as float32.
    stored = [onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m.onnx").graph.initializer]
    assert {values.dtype for values in stored if values.ndim > 1} == {np.dtype(np.int8)}


class TableTwice(nn.Module):
    """A table that is called twice, and whose values are the last layer's weights, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.last = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)
        self.last.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.last(F.relu(self.hidden(self.table(ids) + self.table(ids.flip(1)))).mean(1))
        return y


def test_a_table_that_is_called_twice_is_exported(tmp_path: Path):
    torch.manual_seed(0)
    model, ids = int8.convert(TableTwice()).eval(), torch.randint(0, 20, (64, 5))
    to_onnx(model, [ids], tmp_path / "m.onnx")
    run = onnx_file.runner(tmp_path / "m.onnx")
    assert run is not None
    with torch.no_grad():
        assert error(run(ids), model(ids).numpy()) < 0.03


@pytest.mark.filterwarnings("ignore::edgegossip.int8.ConversionNotice")
@pytest.mark.parametrize("inplace", [False, True])
def test_what_an_activation_wrote_in_place_is_quantised_anew(inplace: bool, tmp_path: Path):
    torch.manual_seed(0)
    model = int8.convert(nn.Sequential(conv(), nn.ReLU6(inplace=inplace), conv(), *head())).eval()
    to_onnx(model, [torch.randn(8, 4, 8, 8)], tmp_path / "m.onnx")
    graph = onnx.load(tmp_path / "m.onnx").graph
    made_by = {name: node.op_type for node in graph.node for name in node.output}
    assert [made_by[n.input[0]] for n in graph.node if n.op_type == "Conv"] == ["DequantizeLinear"] * 2


class AsItGoes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if len(x) > 2:
            y = self.linear(y)
        return self.other(y) if len(x) > 4 else y


def test_a_way_through_the_layers_that_no_example_took_is_refused():
    twin = qdq.qdq_model(int8.convert(AsItGoes()), [torch.ones(2, 4)])
    for _ in range(2):  # a pass that failed leaves nothing behind
        with pytest.raises(UsageError, match="'linear' is called 2 times.*1 times in those with the examples"):
            twin(torch.ones(3, 4))
    whole, part = twin(torch.ones(2, 4)), twin.linear(torch.ones(2, 4))
    assert torch.equal(whole, part)
    twin = qdq.qdq_model(int8.convert(AsItGoes()), [torch.ones(2, 4), torch.ones(3, 4)])
    assert [len(twin(torch.ones(n, 4))) for n in (2, 3, 1)] == [2, 3, 1]
    with pytest.raises(UsageError, match="'other' is called 1 times"):
        twin(torch.ones(5, 4))
    with pytest.raises(UsageError, match="call the whole QDQ model"):
        twin.linear(torch.ones(2, 4))
