"""Runs rounds through a coordinator over virtual nodes: the server engine, with boards that
answer at once.

The engine is the one that coordinators run. The model goes down whole or as an encoded
difference, each node trains from what it decoded and sends its encoded change up, and the engine
adds their mean to its model (FedAvg, McMahan et al. 2017, algorithm 1), nodes in the order of
their names. So the outcome is that of a run over a network bit for bit. Nothing is lost here,
and to the engine time passes only where it waits; `now_s` is what the links take."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.codecs import relative_error
from edgegossip.codecs.base import Codec
from edgegossip.engine.combine import Combiner
from edgegossip.engine.server import ServerEngine
from edgegossip.engine.server_boards import BoardPresence
from edgegossip.engine.server_events import (
    Answered,
    Ask,
    BoardAnswer,
    Event,
    Finished,
    Hello,
    Joining,
    Log,
    PresenceReport,
    Question,
    RoundEnded,
    ServerPlan,
    TimePassed,
    Train,
    Trained,
)
from edgegossip.engine.server_frames import FULL, Channel, Replica, Uplink
from edgegossip.frame import Aux
from edgegossip.layout import Layout
from edgegossip.studies.attack import Attack, AttackedBoards
from edgegossip.studies.lanes import Lanes
from edgegossip.studies.link import LinkModel
from edgegossip.studies.measure import FrameTraffic, ModelRecorder
from edgegossip.training.base import Workload
from edgegossip.types import LocalUpdate, NodeId, Round, UsageError, Vec


class VirtualServer:
    """Simulates one run with `play`; results are in `sent` (by the nodes), `received` (by them),
    `model` and the recorder."""

    here = (0,)  # it stands for all

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
        combiner: Combiner | None = None,
        attack: Attack | None = None,
        link: LinkModel | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        """`combiner`: other than FedAvg's mean. `lanes`: those of the workloads."""
        down = downlink or codecs.get(FULL)
        self._plan = ServerPlan(
            boards=tuple(members),
            rounds=rounds,
            layout=layout,
            run_id=run_id,
            codec=codec,
            downlink=down,
            weighting="uniform" if uniform else "examples",
        )
        # Nodes hold the same model, but each a correction of its own, if any.
        self._corrected = combiner is not None and combiner.correction(members[0]) is not None
        self._replicas = [Replica(layout, run_id, down) for _ in (members if self._corrected else members[:1])]
        self._uplinks = [Uplink(Channel.of(layout, run_id, codec), name) for name in members]
        self._link = link
        self._lanes = lanes or Lanes()
        self._members, self._boards, self._combiner = members, AttackedBoards(workloads, attack, self._lanes), combiner
        self._progress = progress
        self._losses = [math.nan] * len(members)  # of each node's last round
        self._reason = "nobody answered"  # of the last refusal
        self.sent, self.received = FrameTraffic(layout.size), FrameTraffic(layout.size)
        self.model: Vec = np.empty(0, np.float32)
        self.refused = 0  # updates that were not used
        self.levels: list[int] = []  # that boards were asked for, round by round; empty where the codec has none
        self.now_s = math.nan if link is None else 0.0  # virtual seconds since the start
        self.train_loss = math.nan  # mean over the nodes of the last round's

    @property
    def models(self) -> list[Vec]:
        """Return the model, which stands for all nodes'."""
        return [self.model]

    def figures(self) -> dict[str, Any]:
        """Return what a result says of a run through a coordinator alone."""
        figures: dict[str, Any] = {"train_loss": self.train_loss, "refused": self.refused}
        return figures | ({"levels": self.levels} if self.levels else {})

    def play(self, x: Vec, recorder: ModelRecorder) -> None:
        """Play all rounds from model x.

        Raises UsageError when training diverges or no update of a round can be used."""
        engine = ServerEngine(self._plan, x, self._combiner)
        nodes = tuple(BoardPresence(k, 0.0) for k in range(len(self._members)))
        events: deque[Event] = deque([PresenceReport(nodes)])
        now_s, asked = 0.0, 0
        effects = engine.start(now_s)
        while True:
            for effect in effects:
                match effect:
                    case Ask(questions):
                        answers = self._answers(questions)
                        events.extend(answers)
                        asked = len(answers)
                    case Log("refused", text):
                        self._reason = text
                    case RoundEnded(round, model, _, used):
                        self.refused += asked - len(used)
                        if not used:
                            raise UsageError(f"no update of round {round} can be used; the last reason: {self._reason}")
                        self._round_ended(round, model, recorder)
                    case Trained(model):
                        self.model = model
                        return
                    case Finished(error):
                        raise error or UsageError("the run ended before its last round")
            if not events:
                now_s = max(now_s, engine.wake_s)
            effects = engine.handle(events.popleft() if events else TimePassed(), now_s)

    def _round_ended(self, round: Round, model: Vec, recorder: ModelRecorder) -> None:
        honest = sorted(range(self._boards.honest), key=lambda k: self._members[k])
        losses = [self._losses[k] for k in honest]
        self.train_loss = sum(losses) / len(losses)
        for k, loss in enumerate(losses):
            recorder.done(k, round, model, loss)
        self._progress(round + 1)

    def _answers(self, questions: Sequence[Question]) -> list[Answered]:
        """Let the nodes answer, in the order of their names; liars when they know what the others
        did."""
        answers, opened, built = [], None, dict[int, bytes]()
        begun: deque[tuple[Question, Future[LocalUpdate], float]] = deque()  # updates, and when they are there
        began_s = self.now_s
        for question in sorted(questions, key=lambda q: (self._boards.lies(q.address), self._members[q.address])):
            if isinstance(question.instruction, Hello):
                answers.append(Answered(question.number, Joining(self._members[question.address])))
            elif isinstance(question.instruction, Train):
                # Whole or as a difference: it is the same model for every node, and decoded once.
                frame = question.instruction.frame
                if id(frame) not in built:
                    built[id(frame)] = b"".join(wire.build(frame))
                data = built[id(frame)]
                self.received.count(len(data), len(frame.body))
                replica = self._replicas[question.address if self._corrected else 0]
                if opened is None or self._corrected:
                    opened = replica.open(data)
                trained_s = began_s
                if self._link is not None:
                    trained_s = self._link.through_s(began_s, len(data)) + self._link.latency_s + self._link.compute_s
                asked, x = opened
                update = self._boards.local_update(question.address, x, asked.round, replica.correction)
                begun.append((question, update, trained_s))
                while len(begun) > 2 * (self._lanes.count - 1):  # not all of them: each is as large as the model
                    answers.append(self._answer(asked, *begun.popleft(), began_s))
        if opened is not None:
            self.levels += [int(asked) for tag, asked in opened[0].aux.items() if tag == Aux.LEVELS]
        while begun and opened is not None:
            answers.append(self._answer(opened[0], *begun.popleft(), began_s))
        return answers

    def _answer(
        self, asked: wire.Frame, question: Question, begun: Future[LocalUpdate], trained_s: float, began_s: float
    ) -> Answered:
        """What a node answers, which was asked at `began_s` and had trained at `trained_s`."""
        node, update = question.address, begun.result()
        uplink = self._uplinks[node]
        self._losses[node] = update.loss
        update = uplink.with_rate(update, trained_s - began_s)
        frame = uplink.frame(update, asked.round, asked.aux)
        data = b"".join(wire.build(frame))
        self.sent.count(len(data), len(frame.body))
        if self._link is not None:
            there_s = self._link.through_s(trained_s, len(data)) + self._link.latency_s
            self.now_s = max(self.now_s, there_s)
            if uplink.rates is not None:
                lost = relative_error(update.delta, uplink.channel.codec.decode(frame.body, uplink.channel.layout))
                uplink.arrived(len(frame.body), lost, trained_s, there_s + self._link.latency_s)
        return Answered(question.number, BoardAnswer(data))
