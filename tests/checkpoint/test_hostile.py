"""What comes from a disk is not believed: whatever its bytes, they make a DataError with a
sentence, or a value of the right types."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from edgegossip import codecs, gossip
from edgegossip.checkpoint.format import from_bytes, pieces, to_bytes
from edgegossip.checkpoint.registry import RunContext, check_structure, fits
from edgegossip.codecs.levels import LevelRule
from edgegossip.frame import Kind
from edgegossip.gossip import topologies
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.state import Reliance
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DataError, LocalUpdate, UsageError

LAYOUT = Layout.of([TensorSpec("w", (6, 5)), TensorSpec("b", (5,))])
HEAD = struct.Struct("<8sHHQ")


@dataclass(frozen=True)
class Ours:
    a: int


def view_of(algorithm: str, codec: str = "error-feedback") -> NodeView:
    topology = topologies.get("complete", 3)
    return NodeView("a", ("a", "b", "c"), topology, LAYOUT, codecs.get(codec), b"r" * 16, 1, 9.0, boot=7)


def stepped(algorithm: str, codec: str = "error-feedback") -> tuple[Any, NodeView]:
    view, chosen = view_of(algorithm, codec), gossip.get(algorithm)
    state, _ = chosen.start(chosen.init(np.ones(LAYOUT.size, np.float32), view))
    return chosen.step(state, LocalUpdate(np.full(LAYOUT.size, 0.1, np.float32), 0.1, 1.0, 1, 1))[0], view


def with_document(file: bytes, document: bytes) -> bytes:
    """A whole file with another document, and the right sums."""
    size = HEAD.unpack_from(file)[3]
    head = HEAD.pack(*HEAD.unpack_from(file)[:3], len(document)) + document
    return head + struct.pack("<I", zlib.crc32(head)) + file[HEAD.size + size + 4 :]


def document_of(file: bytes) -> bytes:
    return file[HEAD.size : HEAD.size + HEAD.unpack_from(file)[3]]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.just(1000).map(bytes)
    | st.just(500).map(lambda size: memoryview(bytes(size))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=4)
        | st.dictionaries(st.integers(), inner, max_size=4).map(MappingProxyType)
        | st.frozensets(st.integers(), max_size=1)
    ),
    max_leaves=15,
)


@settings(max_examples=80)
@given(VALUES)
def test_values_come_back_exactly(value: Any) -> None:
    data = to_bytes(value)
    back = from_bytes(data)
    assert to_bytes(back) == data
    assert type(back) is type(value) or isinstance(value, memoryview)
    assert repr(back) == repr(value) or "memory" in repr(value)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)])
def test_arrays_come_back_exactly(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 100, shape).astype(dtype)
    for kept in (array, array.T, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        back = from_bytes(to_bytes(kept))
        assert back.dtype == kept.dtype.newbyteorder("=") and back.shape == kept.shape and np.array_equal(back, kept)


def test_not_a_number_keeps_its_bits_and_what_is_shared_stays_shared() -> None:
    odd = np.array([0x7FC00001, 0xFF800000, 0x80000000], np.uint32).view(np.float32)
    value = {"a": odd, "b": (odd, odd), "c": np.ones(3, np.float32)}
    data = to_bytes(value)
    back = from_bytes(data)
    assert back["a"].tobytes() == odd.tobytes() and back["b"][0] is back["b"][1] is back["a"] and len(data) < 400


def test_large_arrays_are_views_all_the_way() -> None:
    array = np.zeros(2_000_000, np.float32)
    tracemalloc.start()
    total = sum(len(piece) for piece in pieces({}, {"x": array, "again": array}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert array.nbytes < total < array.nbytes + 1000 and peak < 100_000


def test_a_field_with_a_default_may_be_missing_and_one_that_is_not_known_is_refused() -> None:
    file = to_bytes(LevelRule(16, 0.1, 2.0))
    name, fields = json.loads(document_of(file))[1][1:]

    def read(fields: dict[str, Any]) -> Any:
        return from_bytes(with_document(file, json.dumps([["dict"], ["object", name, fields], []]).encode()))

    assert read(fields) == LevelRule(16, 0.1, 2.0)
    with pytest.raises(DataError, match="its .*LevelRule has a field 'later', which this version of edgegossip does"):
        read({**fields, "later": 1})
    view = view_of("dpsgd")
    of_a_run = document_of(to_bytes(view)).replace(b'"boot"', b'"later"')
    with pytest.raises(DataError, match="NodeView with an unknown field 'later'"):
        from_bytes(with_document(to_bytes(view), of_a_run))
    with pytest.raises(DataError, match="its .*LevelRule has no s0: it was written by another version"):
        read({key: value for key, value in fields.items() if key != "s0"})
    with pytest.raises(DataError, match="LevelRule whose s0 is a str, not int"):
        read({**fields, "s0": "16"})


def test_only_states_can_be_written_or_read() -> None:
    assert from_bytes(to_bytes([LevelRule(16, 0.1, 2.0), Kind.MODEL])) == [LevelRule(16, 0.1, 2.0), Kind.MODEL]
    with pytest.raises(UsageError, match=r"the state\[0\] is a .*:Ours, which no checkpoint keeps"):
        to_bytes([Ours(3)])
    with pytest.raises(UsageError, match="whose missed is a str, not int"):
        to_bytes(Reliance("1"))  # type: ignore[arg-type]
    for value in (np.float64(1.0), np.array(["x"]), lambda: 0, 1j, 10**5000):
        with pytest.raises(UsageError, match="the state"):
            to_bytes(value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="no checkpoint keeps the state"):
        to_bytes(endless)


@pytest.mark.parametrize(
    "name", ["os:system", "edgegossip.recipe:Recipe", "edgegossip.gossip.base:derive_key", "x", ":"]
)
def test_a_file_names_no_class_that_is_no_state(name: str) -> None:
    document = json.dumps([["dict"], ["object", name, {}], []]).encode()
    with pytest.raises(DataError, match="which this version of edgegossip does not know|which no checkpoint keeps|can"):
        from_bytes(with_document(to_bytes(None), document))


@pytest.mark.parametrize("algorithm", ["choco-sgd", "quant-sgp", "ad-psgd"])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_document_with_any_bytes_changed_is_refused_or_of_the_right_types(
    algorithm: str, data: st.DataObject
) -> None:
    """With the right sums, so nothing but the checks of names, types and sizes stands in the
    way."""
    state, view = stepped(algorithm)
    file = to_bytes(state)
    document = bytearray(document_of(file))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(document) - 1))
        document[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    back, problem = None, ""
    try:
        back = from_bytes(with_document(file, bytes(document)), RunContext.of(view))
        check_structure(back, gossip.get(algorithm).init(np.ones(LAYOUT.size, np.float32), view), LAYOUT)
    except DataError as error:
        back, problem = None, str(error)
    assert problem or type(back) is type(state)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'[["dict"],["tuple",{}],[]]',
        b'[["dict"],["dict",1],[]]',
        b'[["dict"],["blob",0],[]]',
        b'[["dict"],["bytes","\\u1234"],[]]',
        b'[["dict"],["array",0,"<f4",[0]],[]]',
        b'[["dict"],null,[-1]]',
        b'[["dict"],null,[1000000000000]]',
    ],
)
def test_claims_are_held_against_what_is_there(document: bytes) -> None:
    with pytest.raises(DataError):
        from_bytes(with_document(to_bytes(None), document))


@pytest.mark.parametrize("claim", [[2**40], [0, 2**40], [-2, -2], [4.0], [True, 4], ["4"], [127] * 8])
def test_a_shape_that_does_not_fit_is_refused_before_it_is_allocated(claim: list[Any]) -> None:
    file = to_bytes(np.zeros(4, np.float32))
    with pytest.raises(DataError):
        from_bytes(with_document(file, json.dumps([["dict"], ["array", 0, "<f4", claim], [16]]).encode()))


@pytest.mark.parametrize("second", [["blob", 0], ["array", 0, "<i4", [4]], ["array", 0, "<f4", [2, 2]]])
def test_a_blob_is_one_thing(second: list[Any]) -> None:
    file = to_bytes(np.zeros(4, np.float32))
    document = json.dumps([["dict"], ["tuple", ["array", 0, "<f4", [4]], second], [16]]).encode()
    with pytest.raises(DataError, match="its blob 0 is"):
        from_bytes(with_document(file, document))


def test_states_of_another_run_model_or_algorithm_do_not_fit() -> None:
    state, view = stepped("choco-sgd")
    data = to_bytes(state)
    for other, word in (
        (replace(view, run_id=b"s" * 16), "it is of a in run 7272"),
        (replace(view, node="b"), "it is of a in run"),
    ):
        with pytest.raises(DataError, match=word):
            from_bytes(data, RunContext.of(other))
    with pytest.raises(DataError, match="no run is given"):
        from_bytes(data)
    x = np.ones(LAYOUT.size, np.float32)
    with pytest.raises(DataError, match=r"the state.math is a Mixing, where the recipe makes a Mass"):
        check_structure(state, gossip.get("sgp").init(x, view), LAYOUT)
    with pytest.raises(DataError, match=r"memory.codec is a FeedbackState, where the recipe makes a DgcState"):
        check_structure(state, gossip.get("choco-sgd").init(x, view_of("choco-sgd", "dgc")), LAYOUT)
    for wrong in (3, None, "x"):
        with pytest.raises(DataError, match="the state.math is a .*, where the recipe makes a Mixing"):
            check_structure(replace(state, math=wrong), gossip.get("choco-sgd").init(x, view), LAYOUT)
    short = replace(state, math=replace(state.math, x=np.ones(3, np.float32)))
    with pytest.raises(DataError, match=r"the state.math.x has the shape \(3,\), where the model's is \(35,\)"):
        check_structure(short, gossip.get("choco-sgd").init(x, view), LAYOUT)


def test_annotations_are_held() -> None:
    assert not any((fits(True, int), fits(1, bool), fits("1", float), fits(None, int), fits(1, None)))
    assert fits((1, 2), tuple[int, int]) and not fits((1, 2, 3), tuple[int, int])
    assert fits({1: 2.0}, dict[int, float]) and not fits({"1": 2.0}, dict[int, float])
    assert not fits(frozenset({1}), frozenset[str]) and fits(np.zeros(2), np.ndarray)
    assert fits([1], Sequence[int]) and not fits(["1"], Sequence[int]) and not fits([1], tuple[int, ...])
    assert fits(None, int | None) and not fits("1", int | None)
    with pytest.raises(TypeError, match="no checkpoint knows how to check the annotation"):
        fits(1j, complex)


def test_an_annotation_may_be_named_by_a_type_statement() -> None:
    """As numpy 2.5 names its NDArray from Python 3.12 on."""
    scalar = TypeVar("scalar", bound=np.generic)
    array = TypeAliasType("array", np.ndarray[Any, np.dtype[scalar]], type_params=(scalar,))  # type: ignore[misc, valid-type]
    floats = TypeAliasType("floats", array[np.float32])  # type: ignore[misc]
    for hint in (array[np.float32], floats):
        assert fits(np.zeros(2, np.float32), hint) and not fits(np.zeros(2), hint)
