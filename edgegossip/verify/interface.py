"""What `verify` asks of every codec, whatever it claims: the interface of base.py, held by running
it.

Functions return what is wrong in words, and nothing when all is well. What a codec raises where it
must not passes through; `verify` reports it.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from edgegossip.codecs import MAX_PARAMS_BYTES, REGISTRY, from_wire
from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, UsageError, Vec

MESSAGES = 3  # in a row, each from the state that the one before left
FLIPS, HEAD_BYTES = 200, 64
SPARE_BYTES = 2**20
WEIGHT = 0.5

Build = Callable[[], Codec[Any]]  # of a module's top level, so that pickle finds it, or a partial of one
Receive = Callable[[Sequence[bytes]], Sequence[Vec]]  # bodies, one after the other, to what a receiver makes of them


def context(key: int, round: int = 0) -> Ctx:
    """Return the context of one message; the key is spread over all 64 bits."""
    return Ctx(key=(key + 1) * 0x9E3779B97F4A7C15 % 2**64, round=round, loss=0.5, lr=0.1)


def encode(codec: Codec[Any], x: Vec, layout: Layout, key: int = 0) -> Body:
    """Encode a first message."""
    return codec.encode(x, codec.init(layout), context(key))[0]


def wire_fault(codec: Codec[Any]) -> str:
    """Say what a frame could not carry."""
    number, params = codec.wire_id, codec.wire_params()
    if isinstance(number, bool) or not isinstance(number, Integral) or not 1 <= number < 2**16:
        return f"wire_id = {number!r} is not a number from 1 to 65535"
    if not isinstance(params, bytes):
        return f"wire_params() gave {type(params).__name__}, not bytes"
    if len(params) > MAX_PARAMS_BYTES:
        return f"wire_params() gave {len(params)} bytes; a frame carries at most {MAX_PARAMS_BYTES}"
    return "" if codec.wire_params() == params else "wire_params() gave other bytes the second time"


def same_fault(codec: Codec[Any], x: Vec, layout: Layout, receive: Receive) -> str:
    """Encode MESSAGES in a row and say what is wrong: equal bytes for equal input, state and key;
    values, sums and a receiver that agree."""
    if fault := wire_fault(codec):
        return fault
    state, bodies, values = codec.init(layout), [], []
    for round in range(MESSAGES):
        place = f" (message {round + 1})" if round else ""
        ctx = context(0, round)
        try:
            (body, after), again = codec.encode(x, state, ctx), codec.encode(x, state, ctx)[0]
        except (Exception, SystemExit) as error:
            return f"message {round + 1} of a row cannot be encoded: {type(error).__name__}: {error}"
        if bytes(again) != bytes(body):
            return f"equal input, state and key gave other bytes{place}"
        state = after
        bodies.append(bytes(body))
        values.append(codec.decode(bodies[-1], layout))
        if fault := _decoding_fault(codec, bodies[-1], values[-1], layout):
            return fault + place
    return _receiver_fault(receive, bodies, values) or _foreign_id_fault(codec, bodies, values, layout)


def _receiver_fault(receive: Receive, bodies: Sequence[bytes], values: Sequence[Vec]) -> str:
    """Whether a receiver, who has the bodies alone, has the same values."""
    fault = ""
    try:
        if not _agree(receive(bodies), values):
            fault = "a receiver decodes other values"
    except UsageError as error:
        fault = str(error)
    except (Exception, SystemExit) as error:
        fault = f"a receiver fails with {type(error).__name__}: {error}"
    return f"{fault}; all that it needs must travel in the body or in wire_params()" if fault else ""


def _decoding_fault(codec: Codec[Any], body: bytes, values: Vec, layout: Layout) -> str:
    """Whether `values`, what decode() gave, are float32[layout.size], and `out` and `weight` do
    what they should."""
    if not isinstance(values, np.ndarray):
        return f"decoding gave {type(values).__name__}, not a vector"
    if values.dtype != np.float32 or values.shape != (layout.size,) or not np.isfinite(values).all():
        return f"decoding gave {values.dtype}{list(values.shape)}, or values that are not finite"
    out = np.ones_like(values)
    given = codec.decode(body, layout, out, WEIGHT)
    if not np.array_equal(out, 1 + np.float32(WEIGHT) * values):
        return "decoding with a weight is not out + weight * values"
    if given is not out:
        return f"decoding with a weight does not return `out` but {_kind(given)}"
    given = codec.decode(body, layout, out)
    if not np.array_equal(out, values):
        return "equal bytes decoded to other values"
    return "" if given is out else f"decoding into `out` does not return it but {_kind(given)}"


def _kind(given: object) -> str:
    return "another vector" if isinstance(given, np.ndarray) else type(given).__name__


def _agree(received: Sequence[Vec], values: Sequence[Vec]) -> bool:
    return len(received) == len(values) and all(map(np.array_equal, received, values))


def _foreign_id_fault(codec: Codec[Any], bodies: Sequence[bytes], values: Sequence[Vec], layout: Layout) -> str:
    """A frame with the wire id of a codec of this package is decoded by that one."""
    family = REGISTRY.by_wire_id.get(codec.wire_id)
    if family is None:
        return ""
    with contextlib.suppress(DecodeError):
        other = from_wire(codec.wire_id, codec.wire_params())
        if _agree([other.decode(body, layout) for body in bodies], values):
            return ""
    return f"wire id {codec.wire_id} is that of {family.name}, which does not decode these bodies to the same values"


def input_fault(codec: Codec[Any], x: Vec, layout: Layout) -> str:
    """Say what is wrong with NaN and infinities in the input: a UsageError must name the tensor."""
    unnamed = ""
    for k, tensor in enumerate(layout.tensors):
        if not tensor.size:
            continue
        for bad in (np.nan, np.inf, -np.inf):
            wrong = x.copy()
            wrong[(layout.offsets[k] + layout.offsets[k + 1]) // 2] = bad
            try:
                encode(codec, wrong, layout)
            except UsageError as error:
                if tensor.name not in str(error):
                    unnamed = f"the error for {bad:g} in tensor {tensor.name!r} does not name it: {error}"
            else:
                return f"{_called(bad)} in the input was encoded"
    return unnamed


def _called(bad: float) -> str:
    return "a NaN" if np.isnan(bad) else f"an infinity ({bad:g})"


def body_fault(codec: Codec[Any], x: Vec, layout: Layout) -> str:
    """Say what is wrong with bodies that are cut, lengthened and damaged: DecodeError and a sum as
    it was, or finite values of a damaged one; in memory that the layout bounds."""
    body = bytes(encode(codec, x, layout))
    limit = max(4 * layout.size, peak_bytes(lambda: codec.decode(body, layout))) + SPARE_BYTES
    total = np.linspace(-1, 1, layout.size, dtype=np.float32)
    for cut in _cuts(body):
        refused, fault = _tried(codec, cut, layout, total, limit)
        if fault or not refused:
            return fault or f"a body of {len(body)} bytes was also decoded with {len(cut)}"
    for damaged in _with_lengths(body, limit):
        if fault := _tried(codec, damaged, layout, total, limit)[1]:
            return fault
    for damaged in _flipped(body):
        if fault := _tried(codec, damaged, layout, total, None)[1]:
            return fault
    return ""


def _tried(codec: Codec[Any], body: bytes, layout: Layout, total: Vec, limit: int | None) -> tuple[bool, str]:
    """Decode a wrong body, then add it to a copy of `total` if it was refused: was it, and the
    fault. Memory is measured where it has a limit in bytes."""
    result: list[Any] = []

    def run() -> None:
        with contextlib.suppress(DecodeError):
            result.append(codec.decode(body, layout))

    try:
        used = 0 if limit is None else peak_bytes(run)
        if limit is None:
            run()
    except (Exception, SystemExit) as error:
        return False, f"a wrong body ended in {type(error).__name__}, not in DecodeError: {error}"
    if limit is not None and used > limit:
        return False, f"a wrong body of {len(body)} bytes took {used} bytes of memory to decode; {limit} are allowed"
    if result:
        values = result[0]
        fine = isinstance(values, np.ndarray) and values.shape == (layout.size,) and np.isfinite(values).all()
        return False, "" if fine else "a damaged body decoded to values that are not finite"
    return True, _sum_fault(codec, body, layout, total)


def _sum_fault(codec: Codec[Any], body: bytes, layout: Layout, total: Vec) -> str:
    """A body that is refused, added to float32[layout.size]."""
    out = total.copy()
    try:
        codec.decode(body, layout, out, WEIGHT)
    except DecodeError:
        return "" if np.array_equal(out, total) else "a refused body changed the sum that it was to be added to"
    except (Exception, SystemExit) as error:
        return f"a wrong body ended in {type(error).__name__}, not in DecodeError, when it was added: {error}"
    return "a body that is refused alone was added to a sum"


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the bytes that Python and numpy held at most during run(), beyond those before.
    Kernels' own memory is not counted."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def _cuts(body: bytes) -> Iterator[bytes]:
    """Bodies that end early, in their head above all, or one byte late."""
    yield from (body[:k] for k in range(min(HEAD_BYTES, len(body))))
    yield from (body[: len(body) // 2], body[:-1], body + b"\0")


def _with_lengths(body: bytes, limit: int) -> Iterator[bytes]:
    """A length beyond the limit, Infinity, NaN and the largest length in the place of any four of
    the first bytes, where lengths and scales stand. The smallest comes first: a codec that believes
    it fails before it asks for 4 GiB."""
    length = min(1 << limit.bit_length() + 1, 2**31)
    words = (
        length.to_bytes(4, "little"),
        length.to_bytes(4, "big"),
        b"\0\0\x80\x7f",
        b"\0\0\xc0\xff",
        b"\xff\xff\xff\xff",
    )
    for word in words:
        for at in range(min(HEAD_BYTES, len(body) - 3)):
            yield body[:at] + word + body[at + 4 :]


def _flipped(body: bytes) -> Iterator[bytes]:
    """One to three flipped bits, half of them in the first bytes."""
    if not body:
        return
    rng = np.random.default_rng(1)
    for j in range(FLIPS):
        damaged = bytearray(body)
        for _ in range(1 + j % 3):
            damaged[rng.integers(min(HEAD_BYTES, len(body)) if j % 2 else len(body))] ^= 1 << int(rng.integers(8))
        yield bytes(damaged)


# What the child runs. Its own path comes before the parent's: a user's file with the name of a
# standard module must not hide that. What the user's code prints goes to standard error.
_CHILD = """
import os, sys
sys.path += sys.argv[1:]
import pickle
answer = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
build, bodies, layout = pickle.load(sys.stdin.buffer)
codec = build()
for body in bodies:
    found = codec.decode(body, layout)
    if (str(found.dtype), found.shape) != ("float32", (layout.size,)):
        raise TypeError(f"decode() gave {found.dtype}{list(found.shape)}, not float32[{layout.size}]")
    answer.write(found.tobytes())
"""
PATIENCE_S = 600.0


def decode_apart(build: Build, layout: Layout, bodies: Sequence[bytes]) -> Sequence[Vec]:
    """Return what a codec that `build` makes in another process decodes the bodies to: nothing that
    an encoder left in an object, a class or a module reaches it. Raises UsageError when it fails.
    """
    try:
        asked = pickle.dumps((build, bodies, layout))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"what builds the codec cannot go to another process: {type(error).__name__}: {error}"
        ) from None
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, *sys.path],
        input=asked,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode or len(done.stdout) != 4 * layout.size * len(bodies):
        said = done.stderr.decode(errors="replace").splitlines() or ["no values"]
        raise UsageError(f"a receiver in another process fails with {said[-1]}")
    return np.split(np.frombuffer(done.stdout, np.float32), len(bodies))
