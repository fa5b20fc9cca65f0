"""What comes from a disk is not believed: whatever its bytes, they make a DataError with a
sentence, or a value of the right types."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from edgegossip import codecs, gossip
from edgegossip.checkpoint.format import Packer, from_bytes, pieces, to_bytes
from edgegossip.checkpoint.registry import STATES, Entry, RunContext, StateRegistry, check_structure, type_mismatch
from edgegossip.gossip import topologies
from edgegossip.gossip.base import NodeView
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DataError, LocalUpdate, UsageError

LAYOUT = Layout.of([TensorSpec("w", (6, 5)), TensorSpec("b", (5,))])
NONE = StateRegistry(())


class Colour(IntEnum):
    RED = 1


@dataclass(frozen=True)
class Old:
    a: int
    b: tuple[float, ...] = ()


@dataclass(frozen=True)
class Grown:
    a: int
    b: tuple[float, ...] = ()
    later: str = "added since"


@dataclass(frozen=True)
class Odd:
    a: complex


def entry(name: str) -> Entry:
    return Entry(__name__, name)


def view_of(algorithm: str, codec: str = "error-feedback") -> NodeView:
    topology = topologies.get("complete", 3)
    return NodeView("a", ("a", "b", "c"), topology, LAYOUT, codecs.get(codec), b"r" * 16, 1, 9.0, boot=7)


def stepped(algorithm: str, codec: str = "error-feedback") -> tuple[Any, NodeView]:
    view, chosen = view_of(algorithm, codec), gossip.get(algorithm)
    state, _ = chosen.start(chosen.init(np.ones(LAYOUT.size, np.float32), view))
    return chosen.step(state, LocalUpdate(np.full(LAYOUT.size, 0.1, np.float32), 0.1, 1.0, 1, 1))[0], view


def with_crcs(data: bytes, change: dict[bytes, bytes]) -> bytes:
    """A whole file with other contents of some chunks, and the right sums."""
    out, at = bytearray(data[:16]), 16
    while at < len(data):
        name, size = struct.unpack_from("<4sQ", data, at)
        content = change.get(name, data[at + 12 : at + 12 + size])
        head = struct.pack("<4sQ", name, len(content))
        out += head + content + struct.pack("<I", zlib.crc32(content, zlib.crc32(head)))
        at += 12 + size + 4
    return bytes(out)


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
@example([[None] * 127, [None] * 128, "x" * 16_384])  # lengths of one byte, of two and of three
def test_values_come_back_exactly(value: Any) -> None:
    data = to_bytes(value, NONE)
    back = from_bytes(data, None, NONE)
    assert to_bytes(back, NONE) == data
    assert type(back) is type(value) or isinstance(value, memoryview)
    assert repr(back) == repr(value) or "memory" in repr(value)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)])
def test_arrays_come_back_exactly(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 100, shape).astype(dtype)
    for kept in (array, array.T, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        back = from_bytes(to_bytes(kept, NONE), None, NONE)
        assert back.dtype == kept.dtype.newbyteorder("=") and back.shape == kept.shape and np.array_equal(back, kept)


def test_not_a_number_keeps_its_bits_and_what_is_shared_stays_shared() -> None:
    odd = np.array([0x7FC00001, 0xFF800000, 0x80000000], np.uint32).view(np.float32)
    value = {"a": odd, "b": (odd, odd), "c": np.ones(3, np.float32)}
    data = to_bytes(value, NONE)
    back = from_bytes(data, None, NONE)
    assert back["a"].tobytes() == odd.tobytes() and back["b"][0] is back["b"][1] is back["a"] and len(data) < 400


def test_large_arrays_are_views_all_the_way() -> None:
    array = np.zeros(2_000_000, np.float32)
    tracemalloc.start()
    total = sum(len(piece) for piece in pieces({}, {"x": array, "again": array}, NONE))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert array.nbytes < total < array.nbytes + 1000 and peak < 100_000


def test_a_field_that_was_added_gets_its_default_and_one_that_is_not_known_is_refused() -> None:
    old, new = StateRegistry((entry("Old"),)), StateRegistry((entry("Grown"),))
    as_grown = to_bytes(Old(1, (2.0,)), old)
    name = entry("Old").name.encode()
    tree = Packer(old)
    tree.add(Old(1, (2.0,)))
    assert name in tree.tree
    renamed = tree.tree.replace(bytes([len(name)]) + name, bytes([len(name) + 2]) + entry("Grown").name.encode())
    assert from_bytes(with_crcs(as_grown, {b"TREE": renamed}), None, new) == Grown(1, (2.0,), "added since")
    tree = Packer(new)
    tree.add(Grown(1))
    back = tree.tree.replace(bytes([len(name) + 2]) + entry("Grown").name.encode(), bytes([len(name)]) + name)
    with pytest.raises(
        DataError, match="its .*Old has a field 'later', which this version of edgegossip does not know"
    ):
        from_bytes(with_crcs(as_grown, {b"TREE": back}), None, old)


def test_only_what_the_table_names_can_be_written_or_read() -> None:
    table = StateRegistry((entry("Old"), entry("Colour"), entry("Odd")))
    assert from_bytes(to_bytes([Old(3), Colour.RED], table), None, table) == [Old(3), Colour.RED]
    with pytest.raises(UsageError, match=r"the state\[0\] is a .*Old, which is not in the table"):
        to_bytes([Old(3)], NONE)
    with pytest.raises(DataError, match="it holds a '.*Old', which this version of edgegossip does not know"):
        from_bytes(to_bytes([Old(3)], table), None, NONE)
    with pytest.raises(UsageError, match="whose b is a tuple with a str, not a number"):
        to_bytes(Old(3, ("x",)), table)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no checkpoint knows how to check the annotation"):
        to_bytes(Odd(1j), table)
    for value in (np.float64(1.0), np.array(["x"]), lambda: 0, 1j):
        with pytest.raises(UsageError, match="the state is a"):
            to_bytes(value, table)


@pytest.mark.parametrize("algorithm", ["choco-sgd", "quant-sgp", "ad-psgd"])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_tree_with_any_bytes_changed_is_refused_or_of_the_right_types(algorithm: str, data: st.DataObject) -> None:
    """With the right sums, so nothing but the checks of names, types and sizes stands in the
    way."""
    state, view = stepped(algorithm)
    file, packer = to_bytes(state), Packer(STATES)
    packer.add(state)
    tree = bytearray(packer.tree)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(tree) - 1))
        tree[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    back, problem = None, ""
    try:
        back = from_bytes(with_crcs(file, {b"TREE": bytes(tree)}), RunContext.of(view))
        check_structure(back, gossip.get(algorithm).init(np.ones(LAYOUT.size, np.float32), view), LAYOUT)
    except DataError as error:
        back, problem = None, str(error)
    assert problem or type(back) is type(state)


@pytest.mark.parametrize(
    "tree",
    [
        b"",
        b"Z",
        b"(\xff\xff\xff\xff\x7f",
        b"(" * 100,
        b"I\xff\xff\x03",
        b"A\x05\x03<f4\x01\x02",
        b"S\x01\xff",
        b"{\x02TNTN",
    ],
)
def test_claims_are_held_against_what_is_there(tree: bytes) -> None:
    with pytest.raises(DataError):
        from_bytes(with_crcs(to_bytes(None), {b"TREE": tree}))


def test_a_huge_array_is_refused_before_it_is_allocated() -> None:
    file = to_bytes(np.zeros(4, np.float32), NONE)
    for dims in (b"\x01\xff\xff\xff\xff\xff\x7f", b"\x02\x00\xff\xff\xff\xff\xff\x7f", b"\x08" + b"\xff\x7f" * 8):
        with pytest.raises(DataError):
            from_bytes(with_crcs(file, {b"TREE": b"A\x00\x03<f4" + dims}), None, NONE)


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
    assert (
        type_mismatch(True, int)
        and type_mismatch(1, bool)
        and type_mismatch("1", float)
        and type_mismatch(None, int)
        and type_mismatch(1, None)
    )
    assert type_mismatch((1, 2), tuple[int, int]) is None and type_mismatch((1, 2, 3), tuple[int, int])
    assert type_mismatch({1: 2.0}, dict[int, float]) is None and type_mismatch({"1": 2.0}, dict[int, float])
    assert type_mismatch(frozenset({1}), frozenset[str]) and type_mismatch(np.zeros(2), np.ndarray) is None


def test_an_annotation_may_be_named_by_a_type_statement() -> None:
    """As numpy 2.5 names its NDArray from Python 3.12 on."""
    scalar = TypeVar("scalar", bound=np.generic)
    array = TypeAliasType("array", np.ndarray[Any, np.dtype[scalar]], type_params=(scalar,))  # type: ignore[misc, valid-type]
    floats = TypeAliasType("floats", array[np.float32])  # type: ignore[misc]
    for hint in (array[np.float32], floats):
        assert type_mismatch(np.zeros(2, np.float32), hint) is None
        assert type_mismatch(np.zeros(2), hint) == "an array of float64, not of float32"
