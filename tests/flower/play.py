"""A coordinator's rounds over boards in this process."""

from __future__ import annotations

import threading
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.flower import protocol
from edgegossip.flower.exchange import Exchange
from edgegossip.flower.payload import ARRAYS, FRAME, STYPE
from edgegossip.flower.plan import Plan
from edgegossip.flower.progress import Progress
from edgegossip.flower.roster import Roster
from edgegossip.flower.rounds import Rounds
from edgegossip.types import Vec
from tests.flower import toy
from tests.flower.conftest import Memory
from tests.flower.fake_link import FakeBoard, FakeLink

RUN_ID = b"r" * 16


class Run:
    """A coordinator's rounds and `boards` fake boards; keyword arguments are recipe sections."""

    def __init__(self, sink: Memory, boards: int = 4, rounds: int = 6, **sections: Any) -> None:
        run = {"mode": "server", "rounds": rounds, "nodes": boards}
        self.recipe = recipes.from_dict({"run": run, **sections})
        self.sink, self.saved = sink, list[Progress]()
        server, codec = self.recipe.server, self.recipe.codec
        self.codec = codecs.get(codec.name, **codec.params)
        self.downlink = codecs.get(server.downlink, **server.downlink_params)
        self.boards = [FakeBoard(f"board-{k}", toy.Toy(k), self.codec, self.downlink) for k in range(boards)]
        self.initial = toy.Toy(0).initial(1)
        self.return_s = 0.0

    def play(self, start: Progress | None = None, **plan: Any) -> Vec:
        made = Plan(self.recipe, toy.LAYOUT, RUN_ID, self.codec, **plan)
        down = self.downlink
        hello = protocol.Hello(
            RUN_ID,
            toy.LAYOUT.hash,
            "c",
            self.codec.wire_id,
            self.codec.wire_params(),
            9,
            down.wire_id,
            down.wire_params(),
        )
        names = [b.name for b in self.boards]
        least = self.recipe.server.min_nodes
        exchange = Exchange(
            FakeLink(self.boards),
            Roster(names),
            hello,
            least,
            self.sink,
            threading.Event(),
            return_s=self.return_s,
            deadline_s=self.recipe.server.deadline_s,
        )
        exchange.gather(self.recipe.server.join_s or 1.0)
        rounds = Rounds(made, exchange, self.sink, self.saved.append, trained=self._trained)
        return rounds.run(self.initial, start)

    def _trained(self, x: Vec) -> None:
        self.model, self.evaluated_before = x, set(self.sink.evaluations())


def garbage(content: RecordDict) -> RecordDict:
    record = ArrayRecord({FRAME: Array(dtype="float32", shape=(3,), stype=STYPE, data=b"garbage")})
    return RecordDict({ARRAYS: record})
