"""Messages that came before their round: kept encoded, a bounded number of rounds and bytes a sender.

In a strongly connected static graph without deadlines nobody can run more than n - 1 rounds ahead of anybody: each
round of his needs, over at most n - 1 hops, one of ours. A sender that is further ahead has gone on without us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgegossip.frame import Frame
from edgegossip.gossip import tags
from edgegossip.quick import quick
from edgegossip.types import PeerError, Round


@quick
@dataclass(frozen=True, slots=True)
class Inbox:
    """Immutable; every change gives a new one that shares the frames."""

    frames: Mapping[int, tuple[Frame, ...]] = field(default_factory=dict)  # by sender, by round

    @property
    def size_bytes(self) -> int:
        """Sum of the bodies kept."""
        return sum(_size(f) for kept in self.frames.values() for f in kept)

    def newest(self, sender: int) -> Round:
        """The latest round that is kept of a sender; -1 without any."""
        kept = self.frames.get(sender)
        return kept[-1].round if kept else -1

    def put(self, sender: int, frame: Frame, max_frames: int, max_bytes: int) -> Inbox | None:
        """With this frame; None if there is one of the same sender, round and session already. Of a sender's frames the
        newest `max_frames` stay. Raises PeerError when the bodies of all senders would take more than `max_bytes`."""
        kept = self.frames.get(sender, ())
        session = frame.aux.get(tags.SESSION)
        if any(f.round == frame.round and f.aux.get(tags.SESSION) == session for f in kept):
            return None
        kept = tuple(sorted((*kept, frame), key=lambda f: f.round))[-max_frames:]
        inbox = Inbox({**self.frames, sender: kept})
        if inbox.size_bytes > max_bytes:
            raise PeerError(
                f"its message of round {frame.round} came too early: to keep it would take {inbox.size_bytes} bytes, "
                f"more than the {max_bytes} for early messages"
            )
        return inbox

    def of(self, sender: int) -> tuple[Frame, ...]:
        """What is kept of a sender, by round."""
        return self.frames.get(sender, ())

    def keep(self, sender: int, frames: tuple[Frame, ...]) -> Inbox:
        """With these, and no others, of a sender."""
        if len(frames) == len(self.of(sender)):
            return self
        rest = {j: kept for j, kept in self.frames.items() if j != sender}
        return Inbox({**rest, sender: frames} if frames else rest)

    def take(self, round: Round) -> tuple[dict[int, Frame], Inbox]:
        """The frames of this round by sender (in order of their index), and the inbox of what is later."""
        now = {j: f for j in sorted(self.frames) for f in self.frames[j] if f.round == round}
        later = {j: tuple(f for f in kept if f.round > round) for j, kept in self.frames.items()}
        return now, Inbox({j: kept for j, kept in later.items() if kept})


def _size(frame: Frame) -> int:
    return memoryview(frame.body).nbytes
