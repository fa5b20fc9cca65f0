"""Rounds through a coordinator over virtual nodes: FedAvg (McMahan et al. 2017, algorithm 1) of encoded updates.

As `flower/` does it, frame by frame: the model goes down as one exact fp32 frame, each node trains from it and sends its
encoded change up; the coordinator adds each decoded change to the model that it sent and averages the results, weighted by
the examples that a node says it has seen. The arithmetic is that of Flower's FedAvg (float32, nodes in the order of their
names, weights normalised first), so that the outcome is the same bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.flower.channel import Channel, finite_sum, frame_key, update_aux
from edgegossip.frame import Aux, Kind
from edgegossip.layout import Layout
from edgegossip.study.measure import Recorder, Traffic
from edgegossip.training.base import Workload
from edgegossip.types import LocalError, LocalUpdate, NodeId, PeerError, Round, Vec

COORDINATOR = "coordinator"


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
    ) -> None:
        self._up = Channel.of(layout, run_id, codec)
        self._down = Channel.of(layout, run_id, codecs.get("fp32"))
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
        x, answers, losses = self._download(round), [], []
        for k in sorted(range(len(self._members)), key=lambda k: self._members[k]):
            update = self._workloads[k].local_update(x, round)
            losses.append(update.loss)
            data = self._encoded(k, round, update)
            try:
                frame, delta = self._up.open(data, Kind.UPDATE, round)
                answers.append((frame.aux[Aux.EXAMPLES], finite_sum(self.model, delta)))
            except PeerError as error:
                self.refused, why = self.refused + 1, error
        if not answers:
            raise LocalError(f"no update of round {round} can be used; the last reason: {why}")
        self.model = federated_average(answers)
        return losses

    def _download(self, round: Round) -> Vec:
        """The model as the nodes decode it. Every one of them gets the same frame."""
        ctx = Ctx(key=frame_key(self._down.run_id, COORDINATOR, round), round=round)
        state = self._down.codec.init(self._down.layout)
        frame, _ = self._down.frame(Kind.MODEL, self.model, state, ctx, round + 1)
        data = b"".join(wire.build(frame))
        for _ in self._members:
            self.received.count(len(data), len(frame.body))
        return self._down.open(data, Kind.MODEL, round)[1]

    def _encoded(self, node: int, round: Round, update: LocalUpdate) -> bytes:
        ctx = Ctx(frame_key(self._up.run_id, self._members[node], round), round, update.loss, update.lr)
        frame, self._codec_states[node] = self._up.frame(
            Kind.UPDATE, update.delta, self._codec_states[node], ctx, round + 1, update_aux(update)
        )
        data = b"".join(wire.build(frame))
        self.sent.count(len(data), len(frame.body))
        return data


def federated_average(answers: Sequence[tuple[float, Vec]]) -> Vec:
    """Mean of (examples, model float32[n]) pairs, weighted by examples, in the order given."""
    total = sum(examples for examples, _ in answers)
    first, *rest = [(examples / total, model) for examples, model in answers]
    mean = first[1] * np.float32(first[0])
    for weight, model in rest:
        mean += model * np.float32(weight)
    return mean
