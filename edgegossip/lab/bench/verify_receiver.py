"""A receiver in a process of its own, for `verify`: it is built anew and given bodies, so that
nothing that an encoder left in an object, a class or a module can reach it.

The two processes run the same user's code with the same rights. The job goes as a pickle, which
this process made; answers come as JSON.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from edgegossip.codecs.base import Codec
from edgegossip.layout import Layout
from edgegossip.types import UsageError, Vec

Build = Callable[[], Codec[Any]]  # of a module's top level, so that pickle finds it, or a partial of one
Answer: TypeAlias = bytes | str  # the values as bytes of float32[n], or what went wrong

PATIENCE_S = 600.0
# The parent's path comes after the child's own: a user's file with the name of a standard module
# must not hide that.
_CHILD = "import sys; sys.path += sys.argv[1:]; from edgegossip.lab.bench.verify_receiver import serve; serve()"


def decode_apart(build: Build, bodies: Sequence[bytes], layout: Layout) -> list[Vec]:
    """The bodies, float32[layout.size] each, as a codec decodes them that `build` makes in a fresh
    process.

    Raises UsageError when `build` cannot be pickled, the process ends early, or a body is not
    decoded."""
    try:
        job = pickle.dumps((build, list(bodies), layout))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(f"the codec cannot be built in another process: {error}") from None
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, *sys.path],
        input=pickle.dumps((sys.path, job)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    try:
        answers = [_from_text(text) for text in json.loads(done.stdout)]
    except ValueError:
        raise UsageError(f"the receiver's process ended with {done.returncode} and gave no values") from None
    return [_values(k, answer) for k, answer in enumerate(answers)]


def _values(number: int, answer: Answer) -> Vec:
    if isinstance(answer, str):
        raise UsageError(f"a receiver in another process fails with message {number + 1}: {answer}")
    return np.frombuffer(answer, np.float32)


def answers_to(job: bytes) -> list[Answer]:
    """What the child does: build the codec and decode every body. What the user's code raises is
    part of the answer."""
    try:
        build, bodies, layout = pickle.loads(job)
        codec = build()
        return [_answer(codec, body, layout) for body in bodies]
    except (Exception, SystemExit) as error:
        return [f"{type(error).__name__}: {error}"]


def _answer(codec: Codec[Any], body: bytes, layout: Layout) -> Answer:
    values = codec.decode(body, layout)
    if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != (layout.size,):
        return f"it decodes to {type(values).__name__}, not to float32[{layout.size}]"
    return values.tobytes()


def _to_text(answer: Answer) -> dict[str, str]:
    return {"fault": answer} if isinstance(answer, str) else {"values": base64.b64encode(answer).decode()}


def _from_text(text: dict[str, str]) -> Answer:
    return text["fault"] if "fault" in text else base64.b64decode(text["values"])


def serve() -> None:
    """The child: a pickle of path and job on standard input, answers as JSON on standard output,
    which is the user's no more."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        sys.path[:], job = pickle.load(sys.stdin.buffer)
        out.write(json.dumps([_to_text(answer) for answer in answers_to(job)]).encode())
