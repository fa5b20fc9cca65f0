"""What every codec owes: the laws of the interface, held for each line of the conformance list.

EXAMPLES models a codec, each law on each of them; other parameters of a codec get FEWER. Every line
of the list gets MANY in the slow suite: what the first hundred models do not find, one in a
thousand does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, frame
from edgegossip.codecs.checks import require_sound
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, UsageError, Vec
from tests.codecs.bounds import ROUNDING, TINY
from tests.codecs.case import Case
from tests.codecs.cases import CASES, FIRST, MORE, model, seeds

CTX = codecs.Ctx(key=0x1234_5678_9ABC_DEF0, round=7, loss=0.5, lr=0.1)
EXAMPLES = 40  # models a codec; every law is checked on each of them
FEWER = 15  # with other parameters
MANY = 500  # in the slow suite
BIG = float(np.finfo(np.float32).max)
LAYOUT = Layout.of([TensorSpec("conv.weight", (3, 5)), TensorSpec("empty", (0,)), TensorSpec("fc.bias", (4,))])
DRAWN = Layout.of(
    [TensorSpec("a", (24, 50)), TensorSpec("b", (640,)), TensorSpec("c", (3, 2, 5))]
)  # enough for keys to tell
NO_NUMBERS = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff" * 4, bytes(4))
EDGES = (0, 1, 2, 127, 128, 255)
WEIGHTS = (1.0, 0.0, -0.5, 1 / 3, 1e-30, 2.0)

Model = tuple[Layout, Vec, np.random.Generator]

every_codec = pytest.mark.parametrize("case", CASES, ids=str)
every_name = pytest.mark.parametrize("case", FIRST, ids=str)  # where parameters tell nothing


def examples(cases: Iterable[Case], count: int = EXAMPLES) -> Callable[[Callable[..., None]], Any]:
    """`count` models for each of these."""

    def decorate(test: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("case", cases, ids=str)
        @functools.wraps(test, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
        def tried(case: Case) -> None:
            for seed in seeds(count):
                with named(f"model({seed})"):
                    test(case, model(seed))

        del tried.__wrapped__  # pytest would look at its arguments
        return tried

    return decorate


@contextmanager
def named(what: str) -> Iterator[None]:
    """Name what a failure within is about."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with {what}")
        raise


def encode(case: Case, x: Vec, layout: Layout) -> bytes:
    codec = case.codec()
    return bytes(codec.encode(x, codec.init(layout), CTX)[0])


def snapshot(state: Any) -> Any:
    """A deep copy of the values in a state, comparable with ==."""
    if isinstance(state, np.ndarray):
        return state.dtype.str, state.shape, state.tobytes()
    if isinstance(state, (tuple, list)):
        return [snapshot(part) for part in state]
    if isinstance(state, dict):
        return {key: snapshot(part) for key, part in state.items()}
    if dataclasses.is_dataclass(state):
        return [snapshot(getattr(state, f.name)) for f in dataclasses.fields(state)]
    assert isinstance(state, (int, float, str, bytes, bool, slice, type(None))), f"a state holds a {type(state)}"
    return state


def assert_is_a_round_trip(case: Case, layout: Layout, x: Vec, body: bytes, y: Vec) -> None:
    """Shape, finite values, size on the wire, and the stated error."""
    assert y.dtype == np.float32 and y.shape == (layout.size,)
    assert np.isfinite(y).all()
    assert len(body) <= frame.Limits.of(layout).max_body_bytes
    error = y.astype(np.float64) - x
    if case.claims.bound:
        assert (np.abs(error) <= case.claims.bound(x, layout)).all(), (x, y)
    if case.claims.norm_bound:
        norms = np.array([np.sqrt((e * e).sum()) for e in tensors_of(error, layout)])
        assert (norms <= case.claims.norm_bound(x, layout)).all(), (x, y)


def tensors_of(values: np.ndarray, layout: Layout) -> list[np.ndarray]:
    return np.split(values, layout.offsets[1:-1])


def round_trip(case: Case, layout: Layout, x: Vec) -> None:
    body = encode(case, x, layout)
    assert_is_a_round_trip(case, layout, x, body, case.codec().decode(body, layout))


@examples(FIRST)
def test_laws(case: Case, model: Model) -> None:
    """All laws of one message, on one model."""
    check_laws(case, model)


@examples(MORE, FEWER)
def test_laws_with_other_parameters(case: Case, model: Model) -> None:
    check_laws(case, model)


@pytest.mark.slow
@examples(CASES, MANY)
def test_laws_at_length(case: Case, model: Model) -> None:
    check_laws(case, model)


def check_laws(case: Case, model: Model) -> None:
    layout, x, rng = model
    check_encoding(case, layout, x)
    body = encode(case, x, layout)
    check_decoding(case, layout, body, rng)
    refused_or_finite(case.codec(), mutate(body, rng), layout)


def check_encoding(case: Case, layout: Layout, x: Vec) -> None:
    """A finite round trip within the stated bound; same x, state and ctx: same bytes; x and state
    are left alone; only what the codec documents of round, loss and learning rate matters."""
    codec = case.codec()
    x.flags.writeable = False
    before, state = x.tobytes(), codec.init(layout)
    state_before = snapshot(state)
    made, after = codec.encode(x, state, CTX)
    body, after_was = bytes(made), snapshot(after)
    assert_is_a_round_trip(case, layout, x, body, codec.decode(body, layout))
    for field in ("round", "loss", "lr"):
        if field in case.claims.uses:
            continue
        other = dataclasses.replace(CTX, **{field: {"round": 12_345, "loss": None, "lr": 0.0}[field]})
        assert bytes(case.codec().encode(x, state, other)[0]) == body, f"ctx.{field} changes the bytes"
    again, after_again = codec.encode(x.copy(), codec.init(layout), CTX)
    assert bytes(again) == body and snapshot(after_again) == after_was
    assert bytes(made) == body, "a later encoding changed an earlier body"
    assert x.tobytes() == before and snapshot(state) == state_before


def check_decoding(case: Case, layout: Layout, body: bytes, rng: np.random.Generator) -> None:
    """Into a vector, as a weighted sum, and by the codec that a receiver rebuilds from the frame,
    at any alignment of the body."""
    codec, weight = case.codec(), float(rng.choice(WEIGHTS))
    values = codec.decode(body, layout)
    out = np.full(layout.size, 5, np.float32)
    assert codec.decode(body, layout, out) is out
    assert out.tobytes() == values.tobytes()

    assert 1 <= codec.wire_id <= 65535 and len(codec.wire_params()) <= codecs.MAX_PARAMS_BYTES
    rebuilt = codecs.from_wire(codec.wire_id, codec.wire_params())
    assert (rebuilt.wire_id, rebuilt.wire_params()) == (codec.wire_id, codec.wire_params())
    shift = int(rng.integers(8))
    view = memoryview(bytes(shift) + body)[shift:]
    assert rebuilt.decode(view, layout).tobytes() == values.tobytes()
    out.fill(5)
    assert rebuilt.decode(view, layout, out).tobytes() == values.tobytes()

    out = np.linspace(-2, 2, layout.size, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = out + np.float32(weight) * values
    assert rebuilt.decode(view, layout, out, weight) is out
    np.testing.assert_array_equal(out, expected)


REMEMBERING = [case for case in CASES if case.claims.memory]


@examples(REMEMBERING)
def test_nothing_that_a_memory_holds_is_lost(case: Case, model: Model) -> None:
    check_memory(case, model)


@pytest.mark.slow
@examples(REMEMBERING, MANY)
def test_nothing_that_a_memory_holds_is_lost_at_length(case: Case, model: Model) -> None:
    check_memory(case, model)


def check_memory(case: Case, model: Model) -> None:
    """x + e == q + e', to the rounding of float32, from one message to the next; values stay where
    a sum of a few of them is finite."""
    layout, x, rng = model
    codec, memory = case.codec(), case.claims.memory
    assert memory is not None
    state = codec.init(layout)
    for step in range(3):
        x = np.clip(x * np.float32(rng.choice((0.5, 1, -1))), -1e30, 1e30)
        body, after = codec.encode(x, state, dataclasses.replace(CTX, key=step, round=step))
        q = codec.decode(body, layout).astype(np.float64)
        before, left = memory.before(x, state).astype(np.float64), memory.after(after).astype(np.float64)
        scale = np.abs(before) + np.abs(q) + np.abs(left) + 2 * np.abs(x.astype(np.float64))
        assert (np.abs(before - (q + left)) <= ROUNDING * scale + 4 * TINY).all(), (before, q, left)
        state = after


SPECIAL = {
    "no values": [],
    "one value": [3.25],
    "zeros": [0.0] * 9,
    "signed zeros": [-0.0, 0.0],
    "denormal": [1e-45, -1e-45, 2e-45],
    "denormal and zero": [1e-39, 5e-39, 0.0],
    "one denormal": [1e-45],
    "huge": [BIG, -BIG],
    "constant huge": [BIG] * 3,
    "a thousand huge": [BIG, -BIG] * 500,
    "huge and denormal": [-BIG, 0.0, 1e-45],
    "constant": [0.1] * 33,
    "two neighbours": [1.0, float(np.nextafter(np.float32(1), np.float32(2)))],
    "small on a large offset": [1e6, 1e6 + 0.25],
    "around the largest binary16": [65504.0, 65520.0, -1e9],
    "one value among zeros": [0.0] * 700 + [-2.5] + [0.0] * 400,
}


@every_codec
def test_round_trip_of_special_inputs(case: Case) -> None:
    """As a vector and as a matrix."""
    for name, numbers in SPECIAL.items():
        values = np.array(numbers, np.float32)
        for shape in ((values.size,), (values.size, 1)):
            with named(f"{name}, {shape}"):
                round_trip(case, Layout.of([TensorSpec("t", shape)]), values)


@every_codec
def test_a_value_that_is_not_finite_names_its_tensor(case: Case) -> None:
    places = [(0, "conv.weight"), (14, "conv.weight"), (15, "fc.bias"), (18, "fc.bias")]
    for bad, (at, tensor) in itertools.product((np.nan, -np.nan, np.inf, -np.inf), places):
        x = np.ones(LAYOUT.size, np.float32)
        x[at] = bad
        with (
            named(f"{bad} at {at}"),
            pytest.raises(UsageError, match=f"^tensor {re.escape(tensor)} holds NaN or infinite"),
        ):
            encode(case, x, LAYOUT)


@every_name
def test_a_vector_of_another_shape_or_type_is_the_callers_mistake(case: Case) -> None:
    for x in (np.zeros(18, np.float32), np.zeros(19), np.zeros(38, np.float32)[::2]):
        with named(f"{x.dtype}{x.shape}"), pytest.raises(UsageError, match=r"float32\[19\]"):
            encode(case, x, LAYOUT)


def read_only(vec: Vec) -> Vec:
    vec.flags.writeable = False
    return vec


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"weight": 0.5}, "a weight needs a vector `out` to add to"),
    ({"out": np.zeros(3, np.float32)}, r"expected a float32\[19\], got float32\[3\]"),
    ({"out": read_only(np.zeros(19, np.float32))}, "the vector `out` is read-only"),
    ({"out": np.zeros(19, np.float32), "weight": np.nan}, "the weight must be a finite float32, got nan"),
    ({"out": np.zeros(19, np.float32), "weight": 1e39}, "the weight must be a finite float32, got 1e\\+39"),
]


@every_name
def test_decoding_into_something_impossible(case: Case) -> None:
    body = encode(case, np.ones(LAYOUT.size, np.float32), LAYOUT)
    for arguments, message in IMPOSSIBLE:
        with named(message), pytest.raises(UsageError, match=f"^{message}$"):
            case.codec().decode(body, LAYOUT, **arguments)


@every_name
def test_a_body_within_the_vector_is_the_callers_mistake(case: Case) -> None:
    body = bytes(encode(case, np.ones(LAYOUT.size, np.float32), LAYOUT))
    memory = np.zeros(max(4 * LAYOUT.size, -(-len(body) // 4) * 4), np.uint8)
    memory[: len(body)] = np.frombuffer(body, np.uint8)
    out = memory[: 4 * LAYOUT.size].view(np.float32)
    with pytest.raises(UsageError, match="^the vector `out` and the body share memory"):
        case.codec().decode(memory[: len(body)].data, LAYOUT, out)


def refused_or_finite(codec: codecs.Codec[Any], body: bytes, layout: Layout) -> bool:
    """True when the body is refused. Then a sum is as it was; else all values are finite, wherever
    they go."""
    total = np.linspace(-3, 3, layout.size, dtype=np.float32)
    before = total.tobytes()
    out = np.full(layout.size, 7, np.float32)
    try:
        values = codec.decode(body, layout)
    except DecodeError as error:
        reason = str(error)
    else:
        reason = None
    if reason is not None:
        assert reason
        for arguments in ((total, 0.5), (out,)):
            with pytest.raises(DecodeError):
                codec.decode(body, layout, *arguments)
        assert total.tobytes() == before
        with pytest.raises(DecodeError, match=f"^{re.escape(reason)}$"):
            require_sound(codec, body, layout)
        return True
    require_sound(codec, body, layout)
    assert values.shape == (layout.size,) and np.isfinite(values).all()
    assert codec.decode(body, layout, out).tobytes() == values.tobytes()
    codec.decode(body, layout, total, 0.0)
    assert total.tobytes() == before or (total == np.linspace(-3, 3, layout.size, dtype=np.float32)).all()
    return False


def mutate(body: bytes, rng: np.random.Generator) -> bytes:
    """An honest body with one to four changes: bytes changed, removed or added, numbers that are
    none; one time in sixteen random bytes."""
    if rng.random() < 1 / 16:
        return rng.bytes(int(rng.integers(200)))
    changed = bytearray(body)
    for _ in range(int(rng.integers(1, 5))):
        at, what = int(rng.integers(len(changed) + 1)), int(rng.integers(8))
        if what == 0:
            del changed[at : at + int(rng.integers(1, 9))]
        elif what == 1:
            changed[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif what == 2:
            changed[at : at + 4] = NO_NUMBERS[int(rng.integers(len(NO_NUMBERS)))][: len(changed) - at]
        elif at < len(changed):
            changed[at] = int(rng.integers(256)) if what < 6 else EDGES[int(rng.integers(len(EDGES)))]
    return bytes(changed)


@every_codec
def test_a_body_of_another_size_is_refused(case: Case) -> None:
    body = encode(case, np.ones(LAYOUT.size, np.float32), LAYOUT)
    for wrong in (b"", body[:-1], body + b"\0", body * 2):
        assert refused_or_finite(case.codec(), wrong, LAYOUT)


@every_codec
def test_the_key_decides_the_bytes_where_the_codec_draws_and_only_there(case: Case) -> None:
    codec = case.codec()
    x = np.random.default_rng(11).laplace(size=DRAWN.size).astype(np.float32)
    bodies = {
        bytes(codec.encode(x, codec.init(DRAWN), dataclasses.replace(CTX, key=key))[0])
        for key in (0, 1, 2, 3, 2**32, 2**64 - 1)
    }
    if case.claims.random:
        assert len(bodies) >= 3  # of the few numbers that atomo draws here, two keys may say the same
    else:
        assert len(bodies) == 1


def test_the_conformance_list_is_complete() -> None:
    assert {case.name for case in CASES} == set(codecs.names())
    assert len({str(case) for case in CASES}) == len(CASES)
    for case in CASES:
        claims = case.claims
        assert bool(claims.bound or claims.norm_bound) != bool(claims.unbounded), f"{case} states no error bound"
        assert claims.uses <= {"round", "loss", "lr"}
        assert not claims.unbiased or claims.random, f"{case}: unbiased over what, if not over keys?"
