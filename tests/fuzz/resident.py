"""How much memory decoding takes of the system, native allocations included:
`python -m tests.fuzz.resident first`, `dense`, `sparse` or `attacks`.

tracemalloc sees what Python and numpy allocate, and nothing of the kernels. Here the system counts:
every attempt runs in a fork of a process that has only ever worked on small models, so that no
memory lies free from before, and the most resident memory during the attempt (VmHWM, reset right
before it by writing 5 to /proc/self/clear_refs) is compared with what was resident at its start.
The model, the body and the vector that is written are there, and touched, by then.

Prints one JSON line an attempt: name, what is done, bytes, limit; or one line with `missing`, where
the system cannot say.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import PeerError, Vec
from tests.codecs.case import Case
from tests.codecs.cases import CASES, FIRST
from tests.conformance.pipeline import LAYOUT, raw_frame, receive
from tests.fuzz.frames import LONG
from tests.fuzz.trial import SPARE_BYTES

ATTACKS = Path(__file__).parents[1] / "conformance" / "attacks"
# 2.1 million values, most of them in one tensor, whose temporaries would be as large as the model.
MODEL = Layout.of(
    [
        TensorSpec(f"t{k}", shape)
        for k, shape in enumerate([(64, 3, 7, 7), (125_000,), (1024, 1900), (0, 4), (1,), (3,), (64,), (511,), (2048,)])
    ]
)
DECODERS = tuple({case.codec().wire_id: case for case in reversed(FIRST)}.values())  # the first codec of each
SHARES = {"dense": 1.0, "sparse": 0.03}  # of the values that are not zero
TOGETHER = 16  # attacks in one process


@dataclass(frozen=True)
class Attempt:
    """One decoding: bytes of resident memory that it took at most, and that it may take."""

    name: str
    what: str
    bytes: int
    limit: int


def decodings(cases: Iterable[Case], share: float) -> Iterator[Attempt]:
    """These lines of the conformance list, in all ways to decode, and of a body that was cut."""
    with tempfile.TemporaryDirectory() as folder:
        values, body = Path(folder) / "values", Path(folder) / "body"
        _forked(lambda: values.write_bytes(_values(MODEL, share)))
        for case in cases:
            _forked(lambda case=case: body.write_bytes(_body(case, MODEL, np.fromfile(values, np.float32))))
            for what, (out_bytes, decode) in _WAYS.items():
                taken = _forked(lambda case=case, decode=decode: _decoding(case, body, decode))
                yield Attempt(str(case), what, taken - out_bytes, 4 * MODEL.size + SPARE_BYTES)


def attacks() -> Iterator[Attempt]:
    """Every frame of the attack folder, as a sum and as new values: what some of them take one
    after the other, each of them takes at most."""
    files = sorted(ATTACKS.glob("*.bin"))
    for k in range(0, len(files), TOGETHER):
        some = files[k : k + TOGETHER]
        taken = _forked(lambda some=some: _attack(some))
        for file in some:
            yield Attempt(file.stem, "attack", taken, 4 * LAYOUT.size + SPARE_BYTES)


Decode = Callable[[codecs.Codec[Any], bytes, Layout, np.ndarray], object]
# What is done, the bytes of the result that it returns new, and how.
_WAYS: dict[str, tuple[int, Decode]] = {
    "into a vector": (0, lambda codec, body, layout, out: codec.decode(body, layout, out)),
    "added to a vector": (0, lambda codec, body, layout, out: codec.decode(body, layout, out, 0.25)),
    "new values": (4 * MODEL.size, lambda codec, body, layout, out: codec.decode(body, layout)),
    "refused": (0, lambda codec, body, layout, out: _refused(codec, memoryview(body)[:-1], layout, out)),
}


def _refused(codec: codecs.Codec[Any], body: codecs.Body, layout: Layout, out: np.ndarray) -> None:
    try:
        codec.decode(body, layout, out, 0.25)
    except PeerError:
        return
    raise AssertionError("a body without its end was taken")


def _values(layout: Layout, share: float) -> Vec:
    """float32[layout.size]."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(layout.size, dtype=np.float32) ** 3
    x *= rng.random(layout.size, dtype=np.float32) < share
    return x


def _codec(case: Case, layout: Layout) -> codecs.Codec[Any]:
    """Its codec; one that is given bytes gets as many as hold something of the model."""
    codec: Any = case.codec()
    return replace(codec, bytes=codec.least_bytes(layout)) if getattr(codec, "bytes", 0) else codec


def _body(case: Case, layout: Layout, x: Vec) -> bytes:
    codec = _codec(case, layout)
    body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(9, 2, 0.5, 0.1))
    return bytes(body)


def _decoding(case: Case, file: Path, decode: Decode) -> int:
    codec, body, out = case.codec(), file.read_bytes(), np.ones(MODEL.size, np.float32)
    _load(str(case))
    return growth(lambda: decode(codec, body, MODEL, out))


def _attack(files: Sequence[Path]) -> int:
    frames = [file.read_bytes() for file in files]
    out = np.ones(LAYOUT.size, np.float32)
    receive(raw_frame(), out, 0.25)
    for name in _small():
        _load(name)

    def attempt() -> None:
        for data in frames:
            with suppress(PeerError):
                receive(data, out, 0.25)
            with suppress(PeerError):
                receive(data)

    return growth(attempt)


@cache
def _small() -> dict[str, list[tuple[codecs.Codec[Any], bytes]]]:
    """Line of the list -> bodies of a small model."""
    values = [_values(LONG, share) for share in SHARES.values()]
    return {str(case): [(case.codec(), _body(case, LONG, x)) for x in values] for case in CASES}


def _load(name: str) -> None:
    """Code is memory, too, and comes when it is first run: that of decoding and of refusing small
    bodies of this line."""
    for codec, body in _small()[name]:
        codec.decode(body, LONG)
        with suppress(PeerError):
            codec.decode(body[:-1], LONG, np.ones(LONG.size, np.float32), 0.25)


def growth(action: Callable[[], object]) -> int:
    """Bytes that resident memory rose by at most while it ran, in a process that does nothing else
    afterwards. OSError or KeyError where the system cannot say."""
    # The system counts pages by processor and leaves some of each out; with one they are a few
    # hundred KiB at most.
    os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    Path("/proc/self/clear_refs").write_text("5")
    before = _highest_bytes()
    action()
    return _highest_bytes() - before


def _highest_bytes() -> int:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int({words[0]: words for words in lines if words}["VmHWM:"][1])


def _forked(action: Callable[[], int]) -> int:
    """What the action gives in a process of its own. RuntimeError when it fails there."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            answer = {"value": action()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        os.write(write, json.dumps(answer).encode()[-60_000:])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = json.loads(pipe.read() or b'{"error": "the process was ended"}')
    os.waitpid(child, 0)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return int(answer["value"])


def missing() -> str:
    """Why this system cannot say; empty when it can. A vector of 4 MiB that is written must be
    seen."""
    try:
        seen = _forked(lambda: growth(lambda: np.ones(1 << 20, np.float32)))
    except RuntimeError as error:
        return str(error).splitlines()[-1]
    return "" if seen >= 4 << 20 else f"the system counts {seen} bytes for a vector of 4 MiB"


def main(what: str) -> None:
    if reason := missing():
        print(json.dumps({"missing": reason}))
        return
    _small()  # here, so that encoding leaves nothing in the forks
    found = attacks() if what == "attacks" else decodings(DECODERS if what == "first" else CASES, SHARES.get(what, 1.0))
    for attempt in found:
        print(json.dumps(asdict(attempt)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
