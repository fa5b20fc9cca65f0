"""How far a server run is: everything that another coordinator process needs to go on from the last round. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from edgegossip.flower.server_levels import ServerLevels
from edgegossip.layout import Layout
from edgegossip.profiling.records import Value
from edgegossip.types import DataError, LocalError, NodeId, Round, Vec

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """A run between two rounds."""

    round: Round  # to play next
    model: Vec  # float32[n]
    reference: Vec | None = None  # float32[n], what boards trained from in the round before; None where it is the model
    strategy: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    levels: ServerLevels | None = None
    evaluations: int = 0  # asked for so far
    evaluate_next: Round | None = None  # the model after this round is to be evaluated
    records: Mapping[NodeId, tuple[Round, Mapping[str, Value]]] = field(default_factory=dict)  # that wait for a profile
    instance: str = ""  # see protocol.Hello
    examples: Mapping[NodeId, float] = field(default_factory=dict)  # that each board claimed last

    def plain(self) -> dict[str, Any]:
        """Arrays, numbers and texts only."""
        levels = self.levels
        return {
            "format": FORMAT,
            "round": self.round,
            "model": self.model,
            "reference": self.reference,
            "strategy": dict(self.strategy),
            "levels": None if levels is None else _levels(levels),
            "evaluations": self.evaluations,
            "evaluate_next": self.evaluate_next,
            "instance": self.instance,
            "examples": dict(self.examples),
            "records": {name: [round, dict(values)] for name, (round, values) in self.records.items()},
        }

    @classmethod
    def from_plain(cls, found: Any, layout: Layout, levels: ServerLevels | None) -> Progress:
        """`levels`: as a run begins with them. Raises DataError when it is not what `plain` gives of a run of this model."""
        try:
            if found["format"] != FORMAT:
                raise DataError(f"the checkpoint has format {found['format']}, this edgegossip reads {FORMAT}")
            for name in ("model", "reference"):
                if found[name] is not None:
                    layout.check(found[name])
            if levels is not None and found["levels"] is not None:
                loss, first, count, *more = found["levels"]
                lr, early = more or (None, None)  # earlier versions kept neither
                told = None if early is None else tuple((float(f), float(eta)) for f, eta in early)
                pair = (float(first[0]), float(first[1])) if first else None
                levels = ServerLevels(levels.s0, levels.smoothing, loss, pair, count, lr, told)
            return cls(
                int(found["round"]),
                found["model"],
                found["reference"],
                found["strategy"],
                levels,
                int(found["evaluations"]),
                found["evaluate_next"],
                {name: (int(round), dict(values)) for name, (round, values) in found.get("records", {}).items()},
                str(found.get("instance", "")),
                {name: float(claim) for name, claim in found.get("examples", {}).items()},
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, LocalError) as error:
            raise DataError(f"the coordinator's checkpoint cannot be used: {error}") from None


def _levels(levels: ServerLevels) -> list[Any]:
    early = None if levels.early is None else [list(pair) for pair in levels.early]
    return [levels.loss, list(levels.first or ()), levels.levels, levels.lr, early]
