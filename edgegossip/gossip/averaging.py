"""Chooses the averaging rate eta: how far a node goes towards its neighbours.

Two rules, for the two ways of saying a model in few bits (publish.py). A difference to a public
copy shrinks as training converges, and with it what a message gets wrong: eta need only keep the
recursion stable. A memory of what was lost goes with whole models, which do not shrink: every
message is wrong by a share of the model itself, for ever, and eta is what that is multiplied by.
lab/results/pages/averaging-rates.md has the measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

import numpy as np

from edgegossip.choices import Range
from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError, Vec

Eta: TypeAlias = Annotated[float, Range(0, 1, "averaging rate", above=True)]
EtaOrDefault: TypeAlias = Annotated[float, Range(0, 1, "averaging rate; 0: by how much the codec keeps")]

SMALLEST = 0.005
NEARLY_EXACT = 0.95  # share of the energy kept above which a codec counts as uncompressed
RATE_PER_SHARE = 1.5  # most of a rate, by the share of the values that a message holds
RATE_PER_SHARE_LARGEST_FIRST = 3.0  # the same where the largest values are said first
MAX_DRIFT = 0.125  # most that one exchange may add to a model, in model lengths, for what messages get wrong
DRIFT_AT_ONE_LENGTH = 0.1  # the same, for a message that is wrong by one length
RECOVERY = 1.1  # by so much a rate grows from one message to the next at most; it falls at once
TIMES_WITH_BYTES = 2.0  # `default_eta` of a dead zone that is given bytes: it diverges at 4 to 10 times as much
RUNGS = 2  # rates that are told apart where messages have twice the bytes
DIFFERENCES = 32  # of one vector, one after the other
MESSAGES = 256  # of one vector, with a memory: what 1 % of the values need to come round twice

_PROBE = Layout.of([TensorSpec("probe", (64, 64))])


def on_probe(codec: Codec[Any], values: int) -> Codec[Any]:
    """Return a codec that loses of the vectors that rates are measured on what `codec` loses of a
    model with so many values: one that is given bytes gets its share of them; itself for others.

    Example:
        eta = default_eta(on_probe(codec, layout.size))
    """
    own: Any = codec
    found = codec
    if budget := getattr(own, "bytes", 0):
        share = round(budget * _PROBE.size / max(1, values))
        found = replace(own, bytes=min(max(own.least_bytes(_PROBE), share), 8 * _PROBE.size))
    elif hasattr(own, "codecs"):
        found = replace(own, codecs=tuple(on_probe(inner, values) for inner in own.codecs))
    elif hasattr(own, "codec"):
        found = replace(own, codec=on_probe(own.codec, values))
    return found


def default_eta(codec: Codec[Any]) -> float:
    """Return the rate for what is said in differences, or without a memory.

        rate = max(min(kept^2, 1.5 share), min(kept / 3, 3 share)), and 1 where kept is 0.95 or more

    `kept` is the share of a normal vector's energy that one message keeps, `share` that of its
    values that it holds: 0.15 for 90 % top-k sparsification, 0.028 for 99 %.

    The square is from Aketi et al. 2021, section 8.1; the bounds are not. Of values of one size
    each is said every 1 / share rounds, and is mixed as it was until then: d <- (1 - eta l / share)
    d over that time, l an eigenvalue of I - W, which shrinks only for eta l / share < 2, and l goes
    up to 4/3 on rings. (The square alone gives 0.52 for 75 % sparsification, with which CHOCO-SGD
    on a ring diverges.) For 99 % it gives 0.007: stable, but boards hardly meet. What is larger is
    said earlier, so there a third of the energy is half of where the recursion diverges."""
    return _rounded(_once(_measured, codec))


def difference_eta(codec: Codec[Any]) -> float:
    """Return the rate for differences of a codec that is given bytes.

    Measured with normal values, alike and of very different sizes, on a ring of four: with 0.26,
    0.5 and 0.8 bits a value boards are nearest at rates of 0.1, 0.3 and 0.5, and CHOCO-SGD diverges
    at 0.4, 0.8 and 1. This gives 0.08, 0.24 and 0.38."""
    return min(1.0, TIMES_WITH_BYTES * default_eta(codec))


def follows(codec: Codec[Any]) -> bool:
    """Tell whether its bytes are chosen message by message, so that rates go by the messages."""
    main: Any = getattr(codec, "codecs", (codec,))[0]
    return bool(getattr(main, "adapts", False))


def rate_of(rate: Callable[[Codec[Any]], float], before: float, codec: Codec[Any], body: Body, layout: Layout) -> float:
    """Return the rate of a message of a codec that `follows`: what `rate` says of one that is given
    about as many bytes each time (RUNGS). Both ends of an edge know how many there are, so they mix
    alike. `before`: the rate of the sender's last message; what that left unsaid comes with this
    one, so a single fine message is no reason to mix much. Raises DecodeError.

    Example:
        eta = rate_of(difference_eta, eta, ctx.view.codec, frame.body, ctx.view.layout)
    """
    size, values = memoryview(body).nbytes, layout.size
    main: Any = codec
    if hasattr(codec, "main_part"):
        (size, values), main = codec.main_part(body, layout), codec.codecs[0]  # type: ignore[attr-defined]
    least, most = main.least_bytes(_PROBE), 8 * _PROBE.size
    share = min(max(size * _PROBE.size / max(1, values), least), most)
    rung = round(2.0 ** (round(RUNGS * math.log2(share)) / RUNGS))
    return min(rate(replace(main, bytes=max(rung, least), seconds=0.0)), RECOVERY * before)


COARSE = 0.5  # relative error of a message from which on whole models suffer


def lost_of_normal(codec: Codec[Any]) -> float:
    """Return E||C[v] - v||^2 / ||v||^2 of a normal vector."""
    return 1.0 - float(_once(_kept_of_normal, codec))


def memory_eta(codec: Codec[Any]) -> float:
    """Return the rate for whole models that go with a memory of what was lost: 0.1 / s^(3/4), at
    most 1/8 / s, where s is how far a message strays from the model, in lengths of the model; 1
    where s is not above 1/8.

    A node mixes C[v_j] - C[v_i] = (x_j - x_i) + (noise of s lengths), so a round adds about eta s
    model lengths that no gradient asked for, and the nodes' distance stays there. The power is
    fitted to scans of eta with batch norm, on digits and on Fashion-MNIST, nodes' mean and worst
    accuracy: best is eta s = 1/12 for 4 bits and co3 (s = 0.4), where 1/8 costs up to 8 points, and
    the worst node up to 26, and 1/8 for topk at 10 % (2.3) and signs (2.5), where 1/12 costs one.
    At 0.35 and above, which the other rule gives, nodes lose 3 to 16 points, and at 0.04 they
    hardly meet.

    s is measured: MESSAGES times the same normal vector, each with what was lost before, over the
    later half. A codec with which the memory grows without end gets SMALLEST, which does not save
    it; see `codecs.error_feedback` for which those are."""
    return _rounded(_once(_measured_with_memory, codec))


def _rounded(rate: float) -> float:
    """To four digits: the last ones of a sum depend on the processor, and boards of several kinds
    are to mix alike."""
    return float(f"{rate:.4g}")


def _once(measure: Any, codec: Any) -> Any:
    """Measure a codec once a process, where it can be told from others."""
    try:
        hash(codec)
    except TypeError:
        return measure(codec)
    return _remembered(measure, codec)


def _measured_with_memory(codec: Any) -> float:
    x = _draw(1).standard_normal(_PROBE.size, np.float32)
    whole, state, lost, strays = float(np.dot(x, x)), codec.init(_PROBE), np.zeros_like(x), []
    for k in range(MESSAGES):
        meant = x + lost
        try:
            body, state = codec.encode(meant, state, Ctx(key=k + 1, round=k, loss=1.0, lr=1.0))
        except UsageError:  # beyond float32
            return SMALLEST
        said = codec.decode(body, _PROBE)
        lost = meant - said
        if not float(np.dot(lost, lost)) < 1e8 * whole:
            return SMALLEST
        strays.append(float(np.dot(said - x, said - x)) / whole)
    s = float(np.mean(strays[MESSAGES // 2 :])) ** 0.5
    return 1.0 if s <= MAX_DRIFT else max(SMALLEST, min(MAX_DRIFT / s, DRIFT_AT_ONE_LENGTH / s**0.75))


def _measured(codec: Any) -> float:
    kept = max(_kept_of_normal(codec), 0.0)
    if kept >= NEARLY_EXACT:
        rate = 1.0
    else:
        share = _share(codec)
        rate = max(min(kept**2, RATE_PER_SHARE * share), min(kept / 3.0, RATE_PER_SHARE_LARGEST_FIRST * share))
    return max(SMALLEST, min(rate, _if_it_overshoots(codec)))


@lru_cache(maxsize=1024)
def _remembered(measure: Any, codec: Any) -> Any:
    return measure(codec)


def _if_it_overshoots(codec: Codec[Any]) -> float:
    """Return the rate for a codec with which a message may leave more to say than there was; 1 for
    all others."""
    left, state = _draw(1).standard_normal(_PROBE.size, np.float32), codec.init(_PROBE)
    lengths = [float(np.linalg.norm(left))]
    for k in range(DIFFERENCES):
        try:
            body, state = codec.encode(left, state, Ctx(key=k + 1, round=k, loss=1.0, lr=1.0))
        except UsageError:  # beyond float32
            return 0.0
        left = left - codec.decode(body, _PROBE)
        lengths.append(float(np.linalg.norm(left)))
        if not 1e-5 < lengths[-1] / lengths[0] < 1e4:
            break
    if all(after <= before for before, after in pairwise(lengths)):
        return 1.0
    mean = (lengths[-1] / lengths[0]) ** (1.0 / (len(lengths) - 1))
    return float(max(0.0, 1.0 - mean**2) ** 2)


def _kept_of_normal(codec: Codec[Any]) -> float:
    x = _draw(1).standard_normal(_PROBE.size, np.float32)
    error = x - _through(codec, x)
    return 1.0 - float(np.dot(error, error)) / float(np.dot(x, x))


def _share(codec: Codec[Any]) -> float:
    """Return which share of the values of a vector a message tells, where all have about one size;
    or of a normal one where that is more: a dead zone that is given bytes may have none of the
    former, or hardly any, for they are all in it or all beyond."""
    sizes = 1.0 + 1e-3 * _draw(3).random(_PROBE.size)
    flat = (_draw(2).choice((-1.0, 1.0), _PROBE.size) * sizes).astype(np.float32)
    normal = _draw(1).standard_normal(_PROBE.size, np.float32)
    said = max(np.count_nonzero(_through(codec, x)) for x in (flat, normal))
    return float(said / _PROBE.size)  # a checkpoint keeps no numpy scalar


def _through(codec: Codec[Any], x: Vec) -> Vec:
    body, _ = codec.encode(x, codec.init(_PROBE), Ctx(key=1, round=0, loss=1.0, lr=1.0))
    return codec.decode(body, _PROBE)


def _draw(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key))
