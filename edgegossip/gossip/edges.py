"""What every algorithm asks of its edges: which members are up, whether a message may be believed, and frames to
send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edgegossip.codecs.base import Body
from edgegossip.codecs.checks import require_finite
from edgegossip.frame import Frame, Kind
from edgegossip.gossip.base import Message, NodeView, Send
from edgegossip.gossip.keys import derive_key
from edgegossip.types import ConfigError, LocalError, PeerError, Round, Vec


def check_view(view: NodeView) -> int:
    """Index of the view's node. Raises ConfigError unless members are distinct, hold the node and fit the topology."""
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
    """Raises LocalError unless vec is a finite float32[layout.size]; names the tensor that is not."""
    view.layout.check(vec)
    require_finite(vec, view.layout)


def check_same_run(old: NodeView, new: NodeView) -> None:
    """Raises LocalError when more than `down` and `boot` differ: that is another run, not a change of membership."""
    if replace(new, down=old.down, boot=old.boot) != old:
        raise LocalError("a change of membership may only change which members are down")


def up(view: NodeView, nodes: Iterable[int]) -> tuple[int, ...]:
    """Those of `nodes` that are not known to be gone."""
    return tuple(j for j in nodes if view.members[j] not in view.down)


def admit(view: NodeView, index: int, m: Message, kind: Kind) -> int:
    """Index of the sender. Raises PeerError, with what is wrong, unless the message belongs to this run, model and
    codec, is of this kind and comes from an in-neighbour of its round."""
    frame = m.frame
    if m.sender not in view.members:
        raise PeerError(f"{m.sender} is not a member of this run")
    sender = view.members.index(m.sender)
    if frame.run_id != view.run_id:
        raise PeerError(f"{m.sender} sent a message of another run")
    if frame.layout_hash != view.layout.hash:
        raise PeerError(
            f"{m.sender} trains another model: its layout hash is {frame.layout_hash:016x}, not {view.layout.hash:016x}"
        )
    if frame.kind != kind:
        raise PeerError(
            f"{m.sender} sent a message of kind {int(frame.kind)}, where {kind.name.lower()} ({int(kind)}) is expected"
        )
    if frame.codec_id != view.codec.wire_id or frame.codec_params != view.codec.wire_params():
        raise PeerError(f"{m.sender} sent a body of another codec than {view.codec.name} with this run's parameters")
    if sender not in view.topology.neighbours(index, frame.round).in_:
        raise PeerError(f"{m.sender} is not an in-neighbour of {view.node} in round {frame.round}")
    return sender


def key_of(view: NodeView, index: int, round: Round) -> int:
    """Codec key of a node's message of one round."""
    return derive_key(view.seed, index, round)


def make_frame(view: NodeView, kind: Kind, round: Round, key: int, body: Body) -> Frame:
    """The frame that all out-neighbours get; `address` numbers it for each."""
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


def address(
    view: NodeView, frame: Frame, to: Iterable[int], sequences: tuple[int, ...]
) -> tuple[list[Send], tuple[int, ...]]:
    """One Send per receiver, sharing the body, each with the next sequence number of its edge; and the new numbers.
    `sequences[j]` is the last one used towards member j, 0 before the first."""
    numbers, sends = list(sequences), []
    for j in to:
        numbers[j] += 1
        sends.append(Send(view.members[j], replace(frame, sequence=numbers[j])))
    return sends, tuple(numbers)
