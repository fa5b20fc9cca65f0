"""Layout: one order, one flat vector, one hash."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.layout import MAX_VALUES, Layout, TensorSpec
from edgegossip.types import UsageError

SMALL = Layout.of(
    [
        TensorSpec("conv.weight", (2, 3)),
        TensorSpec("bn.mean", (4,), trainable=False),
        TensorSpec("conv.bias", ()),
        TensorSpec("empty", (0, 5)),
    ]
)

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
layouts = st.lists(st.tuples(shapes, st.booleans()), min_size=1, max_size=6).map(
    lambda specs: Layout.of(TensorSpec(f"t{k}", shape, trainable) for k, (shape, trainable) in enumerate(specs))
)


def test_trainable_tensors_come_first_and_keep_their_order() -> None:
    assert [t.name for t in SMALL.tensors] == ["conv.weight", "conv.bias", "empty", "bn.mean"]
    assert SMALL.offsets.tolist() == [0, 6, 7, 7, 11]
    assert (SMALL.size, SMALL.trainable_size) == (11, 7)


def test_columns_are_the_values_of_a_row() -> None:
    shapes = (3, 4), (2, 3, 5), (7,), (), (0, 2), (2, 0)
    layout = Layout.of(TensorSpec(f"t{k}", shape) for k, shape in enumerate(shapes))
    assert layout.columns.tolist() == [4, 15, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        layout.columns[0] = 1


def test_views_share_memory_and_have_the_tensors_shapes() -> None:
    vec = np.arange(11, dtype=np.float32)
    views = SMALL.views(vec)
    assert {n: v.shape for n, v in views.items()} == {
        "conv.weight": (2, 3),
        "conv.bias": (),
        "empty": (0, 5),
        "bn.mean": (4,),
    }
    views["conv.weight"][1, 2] = 50
    views["conv.bias"][...] = 60
    assert vec.tolist() == [0, 1, 2, 3, 4, 50, 60, 7, 8, 9, 10]
    assert all(np.shares_memory(v, vec) for v in views.values() if v.size)


@given(layouts)
def test_flatten_undoes_views_and_copies(layout: Layout) -> None:
    vec = np.arange(layout.size, dtype=np.float32)
    again = layout.flatten(layout.views(vec))
    np.testing.assert_array_equal(again, vec)
    assert not np.shares_memory(again, vec)
    assert int(layout.offsets[-1]) == layout.size
    assert [t.trainable for t in layout.tensors] == sorted((t.trainable for t in layout.tensors), reverse=True)


def test_flatten_converts_real_numbers() -> None:
    layout = Layout.of([TensorSpec("w", (2,))])
    for dtype in (np.float64, np.float16, np.int64, np.bool_):
        assert layout.flatten({"w": np.array([0, 1], dtype)}).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "tensors of the layout are missing: v, w"),
        (
            {"w": np.zeros(2), "v": np.zeros(1), "x": np.zeros(1), "a": np.zeros(1)},
            "tensors are not in the layout: a, x",
        ),
        ({"w": np.zeros((2, 1)), "v": np.zeros(1)}, "tensor w has shape (2, 1), the layout says (2,)"),
        ({"w": np.zeros(2, complex), "v": np.zeros(1)}, "tensor w holds complex128, which does not convert to float32"),
    ],
)
def test_flatten_names_what_does_not_fit(arrays: dict[str, np.ndarray], message: str) -> None:
    layout = Layout.of([TensorSpec("w", (2,)), TensorSpec("v", (1,))])
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        layout.flatten(arrays)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "a model needs at least one tensor; this one has none"),
        ([TensorSpec("", (1,))], "tensor name '' is empty or not printable"),
        ([TensorSpec("a\t1\tp\nb", (1,))], "tensor name 'a\\t1\\tp\\nb' is empty or not printable"),
        ([TensorSpec("a", (1,)), TensorSpec("a", (2,))], "two tensors are named a"),
        ([TensorSpec("a", (2, -1))], "tensor a has shape (2, -1); dimensions are whole numbers from 0"),
        ([TensorSpec("a", (2.0,))], "tensor a has shape (2.0,); dimensions are whole numbers from 0"),  # type: ignore[arg-type]
        (
            [TensorSpec("a", (2**16, 2**16))],
            f"a model of {2**32} values is larger than the {MAX_VALUES} that one vector holds",
        ),
    ],
)
def test_bad_models_are_refused(specs: list[TensorSpec], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Layout.of(specs)


def test_the_largest_model_is_accepted_without_allocating_it() -> None:
    assert Layout.of([TensorSpec("a", (MAX_VALUES,))]).size == MAX_VALUES


@pytest.mark.parametrize(
    ("vec", "message"),
    [
        (np.zeros(10, np.float32), "expected a float32[11], got float32[10]"),
        (np.zeros(11), "expected a float32[11], got float64[11]"),
        (np.zeros((11, 1), np.float32), "expected a float32[11], got float32[11, 1]"),
        (np.zeros(22, np.float32)[::2], "the float32[11] is not one contiguous, aligned piece of memory"),
        (np.zeros(45, np.uint8)[1:].view(np.float32), "the float32[11] is not one contiguous, aligned piece of memory"),
    ],
)
def test_check_refuses_other_vectors(vec: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        SMALL.views(vec)


def test_hash_is_stable() -> None:
    """Boards of different releases compare this number: it must never change for the same model.
    Expected values are from the shell: printf 'conv.weight\\t2x3\\tp\\n...' | sha256sum."""
    assert SMALL.hash == 0x2D419170961A8334
    assert Layout.of([TensorSpec("größe", (1,))]).hash == 0x9A8EE7778D3071F2


@pytest.mark.parametrize(
    "specs",
    [
        [TensorSpec("w", (3, 2)), TensorSpec("b", (2,))],
        [TensorSpec("w", (2, 3)), TensorSpec("c", (2,))],
        [TensorSpec("b", (2,)), TensorSpec("w", (2, 3))],
        [TensorSpec("w", (2, 3)), TensorSpec("b", (2,), trainable=False)],
        [TensorSpec("w", (2, 3)), TensorSpec("b", (2, 1))],
        [TensorSpec("w", (2, 3))],
    ],
)
def test_hash_tells_models_apart(specs: list[TensorSpec]) -> None:
    ours = Layout.of([TensorSpec("w", (2, 3)), TensorSpec("b", (2,))])
    assert Layout.of(specs).hash != ours.hash
    assert ours.hash == Layout.of([TensorSpec("w", (2, 3)), TensorSpec("b", (2,))]).hash
