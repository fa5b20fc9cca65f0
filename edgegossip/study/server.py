"""Rounds through a coordinator over virtual nodes: FedAvg (McMahan et al. 2017, algorithm 1) of encoded updates.

As `flower/` does it, frame by frame and with its own parts: the model goes down whole or as an encoded difference
(`flower/downlink.py`), each node trains from what it decoded and sends its encoded change up, and the coordinator adds their
mean to its model (`flower/averaging.py`), weighted by the examples that a node says it has seen, nodes in the order of their
names. So the outcome is the same bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.flower.averaging import Averager, Share
from edgegossip.flower.channel import Channel, frame_key, update_aux
from edgegossip.flower.downlink import FULL, Downlink, Replica
from edgegossip.flower.server_levels import ServerLevels
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.layout import Layout
from edgegossip.study.measure import Recorder, Traffic
from edgegossip.training.base import Workload
from edgegossip.types import LocalError, LocalUpdate, NodeId, PeerError, Round, Vec


class VirtualServer:
    """One run. `play` does it all; results are in `sent` (by the nodes), `received` (by them), `model` and the recorder."""

    def __init__(
        self,
        layout: Layout,
        run_id: bytes,
        codec: Codec[Any],
        members: Sequence[NodeId],
        workloads: Sequence[Workload],
        rounds: Round,
        progress: Callable[[Round], None] = lambda round: None,
        downlink: Codec[Any] | None = None,
        uniform: bool = False,
    ) -> None:
        down = downlink or codecs.get(FULL)
        self._up = Channel.of(layout, run_id, codec)
        self._down, self._average = Downlink(layout, run_id, down), Averager(self._up, uniform=uniform)
        self._replica = Replica(layout, run_id, down)  # of all nodes: they hold the same
        self._levels = ServerLevels.of(codec)
        self._members, self._workloads = members, workloads
        self._rounds, self._progress = rounds, progress
        self._codec_states = [codec.init(layout) for _ in members]
        self.sent, self.received = Traffic(layout.size), Traffic(layout.size)
        self.model: Vec = np.empty(0, np.float32)
        self.refused = 0  # updates that were not used
        self.train_loss = math.nan  # mean over the nodes of the last round's

    def play(self, x: Vec, recorder: Recorder) -> None:
        """All rounds from model x. Raises LocalError when training diverges or no update of a round can be used."""
        self.model = x
        for round in range(self._rounds):
            losses = self._round(round)
            self.train_loss = sum(losses) / len(losses)
            for k, loss in enumerate(losses):
                recorder.done(k, round, self.model, loss)
            self._progress(round + 1)

    def _round(self, round: Round) -> list[float]:
        """One round; every node's training loss."""
        asked, x = self._download(round)
        shares, losses, why = [], [], ""
        for k in sorted(range(len(self._members)), key=lambda k: self._members[k]):
            update = self._workloads[k].local_update(x, round)
            losses.append(update.loss)
            try:
                frame = self._up.check(self._encoded(k, round, update, asked), Kind.UPDATE, round)
                shares.append(Share(self._members[k], frame, frame.aux[Aux.EXAMPLES]))
            except PeerError as error:
                self.refused, why = self.refused + 1, str(error)
        made = self._average(self.model, shares)
        self.refused += len(made.refused)
        if made.model is None:
            why = next(iter(made.refused.values()), why)
            raise LocalError(f"no update of round {round} can be used; the last reason: {why}")
        if self._levels is not None:
            self._levels = self._levels.after([s.frame for s in shares if s.name not in made.refused])
        self.model = made.model
        return losses

    def _download(self, round: Round) -> tuple[Frame, Vec]:
        """The model as the nodes decode it. Every one of them gets the same frame."""
        aux = {} if self._levels is None else self._levels.aux()
        frame = self._down.publish(self.model, round, aux).difference or self._down.whole(round, aux)
        data = b"".join(wire.build(frame))
        for _ in self._members:
            self.received.count(len(data), len(frame.body))
        return self._replica.open(data)

    def _encoded(self, node: int, round: Round, update: LocalUpdate, asked: Frame) -> bytes:
        levels = asked.aux.get(Aux.LEVELS)
        key = frame_key(self._up.run_id, self._members[node], round)
        ctx = Ctx(key, round, update.loss, update.lr, None if levels is None else int(levels))
        frame, self._codec_states[node] = self._up.frame(
            Kind.UPDATE, update.delta, self._codec_states[node], ctx, round + 1, update_aux(update)
        )
        data = b"".join(wire.build(frame))
        self.sent.count(len(data), len(frame.body))
        return data
