"""Keeps what a server run has beside the model: its progress, and records of rounds and boards.

Pure: classes here say what is to be logged or recorded by calling what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edgegossip.agreement import Agreement
from edgegossip.engine.plausible import ServerLevels
from edgegossip.frame import AUX_BYTES, HEADER_BYTES, Aux, Frame
from edgegossip.layout import Layout
from edgegossip.types import DataError, NodeId, PeerError, Round, UsageError, Vec

Value: TypeAlias = float | int | str | bool | None
Log: TypeAlias = Callable[..., None]  # (event, text, **fields)
Record: TypeAlias = Callable[[NodeId, Round, Mapping[str, Value]], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """Holds a run between two rounds: everything that another process needs to go on. Checkpoints
    keep it as it is."""

    round: Round  # to play next
    model: Vec  # float32[n]
    reference: Vec | None = None  # float32[n], what boards trained from in the round before; None where it is the model
    strategy: Mapping[str, Any] = field(default_factory=dict)  # `Combiner.snapshot`
    levels: ServerLevels | None = None
    evaluations: int = 0  # asked for so far
    evaluate_next: Round | None = None  # the model after this round is to be evaluated
    records: Mapping[NodeId, tuple[Round, Mapping[str, Value]]] = field(default_factory=dict)  # that wait for a profile
    instance: str = ""  # which of several runs of the same recipe it is, drawn when it began; empty: not known
    examples: Mapping[NodeId, float] = field(default_factory=dict)  # that each board claimed last
    agreement: Agreement = Agreement({})  # what its boards have alike, as far as they said it
    corrections: Mapping[NodeId, Vec] = field(default_factory=dict)  # `Downlink.corrections`
    best: tuple[float, Round] | None = None  # the merit of the best evaluation, and of which round
    since_best: int = 0  # evaluations that were not better, in a row
    merits: Mapping[NodeId, float] = field(default_factory=dict)  # the best that each board has found

    def check(self, layout: Layout) -> None:
        """Raise DataError when it is not of a run of this model."""
        try:
            for vec in (self.model, self.reference, *self.corrections.values()):
                if vec is not None:
                    layout.check(vec)
        except UsageError as error:
            raise DataError(f"the coordinator's checkpoint cannot be used: {error}") from None


class BoardRecords:
    """Records what the updates of boards say whose metrics are kept elsewhere, and the profile that
    they send of a round.

    A board knows how long its answer took to send when that is sent. So the profile of a round
    comes with the next answer, or with the board's goodbye; until then the record of the round is
    held back. Without one it has what the update said. At most one record a board waits."""

    def __init__(self, layout: Layout, record: Record) -> None:
        self._layout, self._record = layout, record
        self._waiting: dict[NodeId, tuple[Round, dict[str, Value]]] = {}

    @property
    def waiting(self) -> dict[NodeId, tuple[Round, dict[str, Value]]]:
        """Records that are not written yet; a process that is killed takes them along."""
        return dict(self._waiting)

    def resume(self, waiting: Mapping[NodeId, tuple[Round, Mapping[str, Value]]]) -> None:
        """Go on with those of an earlier process."""
        self._waiting = {name: (round, dict(values)) for name, (round, values) in waiting.items()}

    def answered(self, name: NodeId, profile: tuple[Round, Mapping[str, Value]] | PeerError | None) -> str | None:
        """Take the profile of an earlier round that came with an answer or a goodbye.

        Returns what is wrong with it, if anything."""
        if name not in self._waiting or profile is None:
            return None
        if isinstance(profile, PeerError):
            return str(profile)
        round, values = self._waiting[name]
        if profile[0] == round:
            # What it saw in the round is known to the board alone; an update says what it weighs.
            seen = {key: v for key, v in profile[1].items() if key == "train/examples"}
            self._write(name, {**profile[1], **values, **seen})
        return None

    def used(self, name: NodeId, round: Round, frame: Frame) -> None:
        """Take note of an update that counted."""
        self._write(name)
        values: dict[str, Value] = {
            "train/loss": frame.aux[Aux.LOSS],
            "train/examples": int(frame.aux[Aux.EXAMPLES]),
            "net/payload_bytes": len(frame.body),
            "codec/bits_per_value": 8 * len(frame.body) / self._layout.size,
        }
        self._waiting[name] = (round, values)

    def end(self) -> None:
        """Write what is left."""
        for name in list(self._waiting):
            self._write(name)

    def _write(self, name: NodeId, values: Mapping[str, Value] | None = None) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            self._record(name, waiting[0], waiting[1] if values is None else values)


def sent_values(frames: Sequence[Frame], layout: Layout) -> dict[str, Value]:
    """Return what the coordinator's record of a round says of the frames that went down."""
    payload = sum(len(f.body) for f in frames)
    overhead = sum(HEADER_BYTES + len(f.codec_params) + AUX_BYTES * len(f.aux) for f in frames)
    values: dict[str, Value] = {"net/payload_bytes": payload, "net/overhead_bytes": overhead}
    if frames:
        values["codec/bits_per_value"] = 8 * payload / (len(frames) * layout.size)
    return values


def used_values(frames: Sequence[Frame], believed: Sequence[bool]) -> dict[str, Value]:
    """Return what it says of the updates that were used: how many, their examples, and the mean of
    losses by examples.

    `believed`: which of their losses count."""
    values: dict[str, Value] = {"server/used": len(frames)}
    if examples := sum(f.aux[Aux.EXAMPLES] for f in frames):
        values["train/examples"] = int(examples)
    some = [f for f, good in zip(frames, believed, strict=True) if good]
    if examples := sum(f.aux[Aux.EXAMPLES] for f in some):
        values["train/loss"] = sum(f.aux[Aux.LOSS] * f.aux[Aux.EXAMPLES] for f in some) / examples
    return values
