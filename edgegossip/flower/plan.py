"""What a server run is: the recipe, the model's layout, the codecs both ways, and who evaluates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.serverapp.strategy import Strategy

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower.protocol import Hello
from edgegossip.layout import Layout
from edgegossip.recipe import Recipe
from edgegossip.types import Metrics, Vec

Evaluate = Callable[[Vec, int | None], Metrics]  # model float32[n], number of test examples (None: all)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the rounds need to know of the run."""

    recipe: Recipe
    layout: Layout
    run_id: bytes
    codec: Codec[Any]
    evaluate: Evaluate | None = None  # the coordinator's own; None: boards evaluate
    strategy: Strategy | None = None  # None: the recipe's
    record_boards: bool = False  # a record a board and round of what its update says
    instance: str = ""  # see protocol.Hello

    @property
    def downlink(self) -> Codec[Any]:
        return codecs.get(self.recipe.server.downlink, **self.recipe.server.downlink_params)

    def hello(self) -> Hello:
        """What a board is told of the run, and must agree with."""
        return Hello(
            run_id=self.run_id,
            layout_hash=self.layout.hash,
            codec=self.codec.name,
            codec_id=self.codec.wire_id,
            codec_params=self.codec.wire_params(),
            rounds=self.recipe.run.rounds,
            down_id=self.downlink.wire_id,
            down_params=self.downlink.wire_params(),
            profiles=self.record_boards,
            instance=self.instance,
        )
