"""Does what all algorithms share about messages: judges which may be believed, and makes the frames
that a node sends.

Nothing from the wire is trusted. A message must be of this run and model (engine/node.py), codec
and neighbourhood before anybody looks into it (`sender_of`, `admit`, `number_of`); its values must
be in proportion to the node's own before they count (`require_proportion`). Whatever is wrong is a
PeerError that names the sender."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.base import Body
from edgegossip.codecs.checks import require_finite
from edgegossip.codecs.floats import Fp32
from edgegossip.codecs.keys import derive_key
from edgegossip.frame import Aux, Frame, Kind, expect_codec
from edgegossip.gossip.base import Message, NodeView
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, NodeId, PeerError, Round, UsageError, Vec

IMPLAUSIBLE = 1e4  # times as long as the own tensor, or as one of ones where that is longer
LARGEST = 1e18  # norm of anything trained that is taken in: its square is still a float32
LARGEST_STATISTIC = 1e24  # the same of statistics: a variance of milliseconds since 1970 is below
MAX_ID = 2**48 - 1  # of sessions, incarnations, processes: whole numbers up to 2^53 are exact beside a body
FP32 = Fp32()  # of full states, whatever the run's codec is


# -- What the caller gives


def check_view(view: NodeView) -> int:
    """Return the index of the view's node. Raises ConfigError unless members are distinct, hold the
    node and fit the topology."""
    if view.topology.n != len(view.members):
        raise ConfigError(
            f"topology {view.topology.name!r} has {view.topology.n} nodes, the run has {len(view.members)}"
        )
    if len(set(view.members)) != len(view.members):
        raise ConfigError("the names of a run's members must be distinct")
    if view.node not in view.members:
        raise ConfigError(f"node {view.node!r} is not a member of the run ({', '.join(view.members)})")
    return view.index


def check_vector(view: NodeView, vec: Vec) -> None:
    """Raise UsageError unless vec is a finite float32[layout.size]; names the tensor that is
    not."""
    view.layout.check(vec)
    require_finite(vec, view.layout)


def check_same_run(old: NodeView, new: NodeView) -> None:
    """Raise UsageError when more than `down` and `boot` differ: that is another run, not a change
    of membership."""

    def run(v: NodeView) -> tuple[object, ...]:
        return v.node, v.members, v.topology, v.layout, v.codec, v.run_id, v.seed, v.deadline_s

    if run(new) != run(old):
        raise UsageError("a change of membership may only change which members are down")


# -- What comes from the wire


def sender_of(view: NodeView, m: Message) -> int:
    """Return the index of the sender. Raises PeerError when it is no member. That the message is of
    this run and model the engine has looked at (`frame.expect`)."""
    try:
        return view.members.index(m.sender)
    except ValueError:
        raise PeerError(f"{m.sender} is not a member of this run") from None


def admit(view: NodeView, index: int, sender: int, frame: Frame, kind: Kind) -> None:
    """Raise PeerError unless the frame is of this kind and codec and comes from an in-neighbour of
    its round."""
    name = view.members[sender]
    if frame.kind != kind:
        raise PeerError(
            f"{name} sent a message of kind {int(frame.kind)}, where {kind.name.lower()} ({int(kind)}) is expected"
        )
    expect_codec(frame, view.codec, name)
    if sender not in view.topology.neighbours(index, frame.round).in_:
        raise PeerError(f"{name} is not an in-neighbour of {view.node} in round {frame.round}")


def number_of(frame: Frame, tag: Aux, low: int, high: int, default: int | None = None) -> int:
    """Return a whole number beside the body. Raises PeerError when it is missing (without default),
    or out of range."""
    value = frame.aux.get(tag, default)
    if value is None or not low <= value <= high or value != int(value):
        raise PeerError(f"a {frame.kind.name.lower()} message with {tag.name} = {value}; {low} to {high} is expected")
    return int(value)


def bodies(frame: Frame, count: int, tag: Aux = Aux.SPLIT) -> tuple[Body, ...]:
    """Return the `count` bodies, 1 or 2, that a frame holds one after the other. Raises PeerError
    when it does not say, by this tag, where the second begins."""
    if count == 1:
        return (frame.body,)
    whole = memoryview(frame.body)
    cut = number_of(frame, tag, 0, len(whole))
    return whole[:cut], whole[cut:]


def squares_of(vec: Vec | NDArray[np.float64]) -> float:
    """Return ||vec||^2, finite where it is above what a float32 holds."""
    squares = float(np.vdot(vec, vec))  # unlike `dot` it is silent about an overflow
    return squares if math.isfinite(squares) else float(np.vdot(wide := vec.astype(np.float64), wide))


def require_proportion(
    name: NodeId, vec: Vec | NDArray[np.float64], own: Vec, layout: Layout, times: float = 1.0
) -> None:
    """Raise PeerError when a tensor of vec, [layout.size], is out of all proportion to the own one:
    longer than IMPLAUSIBLE times that or one of ones, as after training that diverged or
    with intent. `times`, 1 or more: for what may be a sum of so many.

    Each tensor is held against its own kind: a bias may be at 0 beside an embedding at 1e3.
    Statistics have no such measure. What boards measure, in Pa or in volts, is what may differ, and
    every board begins with 0 and 1. Of these only what would overflow is refused."""
    if tensor := disproportion(lambda part: squares_of(vec[part]), own, layout, times):
        raise too_large(name, tensor)


class OutOfProportion(PeerError):
    """Raised for values that are too large to average: of one that lies, or that was led there by
    one that does."""


def too_large(name: NodeId, tensor: str) -> OutOfProportion:
    """Return the refusal of values in this tensor."""
    return OutOfProportion(f"{name} sent values that are too large to average, in {tensor}")


def disproportion(
    squares: Callable[[slice], float], own: Vec, layout: Layout, times: float = 1.0, margin: float = 1.0
) -> str:
    """Return the tensor that `require_proportion` refuses, "" where there is none, of a vector with
    these sums of squares in its parts. `margin`: what is believed is so many times smaller."""
    if squares(slice(0, layout.size)) <= (IMPLAUSIBLE / margin) ** 2:  # whatever the own tensors are
        return ""
    for k, tensor in enumerate(layout.tensors):
        part, limit = slice(layout.offsets[k], layout.offsets[k + 1]), LARGEST_STATISTIC
        if tensor.trainable:
            limit = min(IMPLAUSIBLE * times * math.sqrt(squares_of(own[part]) + tensor.size), LARGEST)
        if tensor.size and not squares(part) <= (limit / margin) ** 2:
            return tensor.name
    return ""


def relative_error(error: Vec, meant: Vec) -> float:
    """Return ||error|| / ||meant||; 0 when both vanish."""
    lost, whole = math.sqrt(squares_of(error)), math.sqrt(squares_of(meant))
    return lost / whole if whole else (0.0 if lost == 0.0 else math.inf)


# -- What goes out


@lru_cache(maxsize=64)
def round_key(seed: int, index: int, round: Round) -> int:
    """Return the codec key of a node's message of one round."""
    return derive_key(seed, index, round)


def make_frame(view: NodeView, kind: Kind, round: Round, key: int, body: Body) -> Frame:
    """Return the frame that all out-neighbours get, each with a number and a few values of its
    own."""
    return Frame(
        kind=kind,
        codec_id=view.codec.wire_id,
        codec_params=view.codec.wire_params(),
        layout_hash=view.layout.hash,
        run_id=view.run_id,
        round=round,
        sequence=0,
        key=key,
        body=body,
    )


def control(
    view: NodeView, kind: Kind, round: Round, sequence: int, aux: Mapping[int, float], vec: Vec | None
) -> Frame:
    """Return a HELLO (vec None) or one part of a STATE, whose body is fp32 whatever the run's codec
    is."""
    return Frame(
        kind=kind,
        codec_id=FP32.wire_id,
        codec_params=FP32.wire_params(),
        layout_hash=view.layout.hash,
        run_id=view.run_id,
        round=round,
        sequence=sequence,
        key=0,
        body=b"" if vec is None else vec.astype("<f4", copy=False).tobytes(),
        aux=aux,
    )
