"""The coordinator's rounds: model down, updates up, any Flower strategy in between. No processes, no threads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from edgegossip import recipe as recipes
from edgegossip.codecs.base import Codec
from edgegossip.flower import protocol
from edgegossip.flower.exchange import COORDINATOR, Exchange
from edgegossip.flower.grid import BoardGrid
from edgegossip.flower.payload import ARRAYS, FRAME, Channel, frame_bytes
from edgegossip.flower.records import to_record
from edgegossip.flower.strategy import META, CompressedStrategy
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.layout import Layout
from edgegossip.profiling.records import Sink, Value
from edgegossip.profiling.spans import RoundClock
from edgegossip.recipe import Recipe
from edgegossip.types import DecodeError, Metrics, NodeId, PeerError, Round, RunError, Vec

MAX_EMPTY_ROUNDS = 3  # rounds in a row in which no board sent anything usable
MAX_EXAMPLES = 1e12  # of one update; more is nonsense that would drown the other boards


@dataclass(frozen=True, slots=True)
class Plan:
    """What the rounds need to know of the run."""

    recipe: Recipe
    layout: Layout
    run_id: bytes
    codec: Codec[Any]


def fedavg() -> Strategy:
    """Flower's FedAvg over whoever is there; who that must be is the exchange's business."""
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_evaluate_nodes=0, min_available_nodes=1)


class Rounds:
    """One run from the first model to the last. Round numbers are 0-based here and 1-based in Flower."""

    def __init__(
        self,
        plan: Plan,
        exchange: Exchange,
        sink: Sink,
        strategy: Strategy | None = None,
        *,
        record_boards: bool = False,
    ) -> None:
        self._plan, self._exchange, self._sink = plan, exchange, sink
        self._record_boards = record_boards
        self._channel = Channel.of(plan.layout, plan.run_id, plan.codec)
        self._strategy = CompressedStrategy(strategy or fedavg(), plan.codec, plan.run_id, self._refused, plan.layout)
        self._clock = RoundClock()
        self._evaluate_after = recipes.evaluation_rounds(plan.recipe)
        self._evaluate_next: Round | None = None  # the model after this round is to be evaluated
        self._evaluations = self._empty_rounds = 0
        self._losses: list[tuple[float, float]] = []  # (mean loss, examples) of each used update of the last round
        self._names: dict[int, NodeId] = {}
        self._why_empty = "nobody answered"

    def run(self, initial: Vec) -> Vec:
        """All rounds; the final model, float32[n]. Raises RunError when too few boards are left."""
        x = initial
        self._clock.finish_round()
        for round in range(self._plan.recipe.run.rounds):
            x = self._round(round, x)
        self._evaluate(x)
        return x

    def _round(self, round: Round, x: Vec) -> Vec:
        server = self._plan.recipe.server
        with self._clock.span("wait"):
            self._exchange.idle(server.deadline_s)
        with self._clock.span("encode"):
            messages, evaluating = self._messages(round, x)
        with self._clock.span("wait"):
            what = f"round {round}"
            answers = self._exchange.ask(messages, what, server.deadline_s, frozenset(evaluating))
        with self._clock.span("decode"):
            replies = self._checked(answers, round)
        with self._clock.span("compute"):
            x = self._aggregate(replies, round, x)
        self._report(round, answers, replies)
        if round in self._evaluate_after:
            self._evaluate_next = round
        return x

    def _messages(self, round: Round, x: Vec) -> tuple[dict[NodeId, Message], set[NodeId]]:
        """One TRAIN message a board; one of them is asked to evaluate the model it gets."""
        idle = {m.node_id: m.name for m in self._exchange.roster.idle()}
        grid = BoardGrid(list(idle))
        arrays = to_record(x, self._plan.layout)
        messages: dict[NodeId, Message] = {}
        for message in self._strategy.configure_train(round + 1, arrays, ConfigRecord(), grid):
            message.content = _lean(message.content)
            messages[idle[message.metadata.dst_node_id]] = message
        self._names = idle
        if self._evaluate_next is None or not messages:
            return messages, set()
        who = self._next_evaluator(sorted(messages))
        request = protocol.evaluate_request(self._plan.recipe.evaluation.examples)
        messages[who].content = RecordDict({**messages[who].content, protocol.ASK: request})
        return messages, {who}

    def _next_evaluator(self, names: list[NodeId]) -> NodeId:
        self._evaluations += 1
        return names[(self._evaluations - 1) % len(names)]

    def _checked(self, answers: Mapping[NodeId, Message], round: Round) -> list[Message]:
        """Usable answers in the order of names, decoded, each with the metrics that strategies weight by, taken from
        its frame."""
        good = []
        for name in sorted(answers):
            reply = answers[name]
            try:
                if reply.has_error():
                    raise PeerError(protocol.printable(reply.error.reason or "no reason given"))
                self._note_evaluation(reply, round - 1)
                frame = self._channel.check(frame_bytes(reply.content), Kind.UPDATE, round)
                record = next(iter(reply.content.array_records.values()))
                reply.content = RecordDict({ARRAYS: _renamed(record), "metrics": _metrics(frame)})
                good.append(reply)
                if self._record_boards:
                    self._sink.metrics(name, round, _board_values(frame, self._plan.layout))
            except PeerError as error:
                self._refused(reply, str(error))
        return self._strategy.unpacked(good, round + 1)

    def _aggregate(self, replies: list[Message], round: Round, x: Vec) -> Vec:
        losses = [next(iter(r.content.metric_records.values())) for r in replies]
        self._losses = [(float(m["train-loss"]), float(m["num-examples"])) for m in losses]  # type: ignore[arg-type]
        arrays = self._strategy.inner.aggregate_train(round + 1, replies)[0] if replies else None
        self._empty_rounds = 0 if arrays is not None else self._empty_rounds + 1
        if self._empty_rounds >= MAX_EMPTY_ROUNDS:
            raise RunError(f"no usable update for {MAX_EMPTY_ROUNDS} rounds; the last reason: {self._why_empty}")
        return x if arrays is None else self._plan.layout.flatten({k: a.numpy() for k, a in arrays.items()})

    def _refused(self, reply: Message, reason: str) -> None:
        name = self._names.get(reply.metadata.src_node_id, "a board")
        self._why_empty = f"{name}: {reason}"
        self._sink.event(COORDINATOR, "refused", f"refused the update of {name}: {reason}", peer=name)

    def _evaluate(self, x: Vec) -> None:
        """The final model, on the first board that manages."""
        round = self._plan.recipe.run.rounds
        arrays = to_record(x, self._plan.layout)
        for _ in self._exchange.roster.expected:
            idle = self._exchange.idle(self._plan.recipe.server.deadline_s)
            name = self._next_evaluator([m.name for m in idle])
            content = RecordDict(
                {ARRAYS: self._strategy.packed_model(arrays, round), protocol.ASK: protocol.evaluate_request(0)}
            )
            message = Message(content, dst_node_id=self._exchange.roster_id(name), message_type="evaluate")
            answers = self._exchange.ask({name: message}, "final evaluation", math.inf)
            self._evaluate_next = round - 1
            try:
                if name in answers and not answers[name].has_error():
                    self._note_evaluation(answers[name], round - 1)
            except DecodeError as error:
                self._refused(answers[name], str(error))
            if self._evaluate_next is None:
                return
        raise RunError("the model is trained, but no board could evaluate it")

    def _note_evaluation(self, reply: Message, step: Round) -> None:
        """Record what a board found of the model after round `step`."""
        found: Metrics | None = protocol.read_evaluation(reply.content)
        if found is None or self._evaluate_next is None:
            return
        self._evaluate_next = None
        values = {"eval/loss": found.loss, "eval/accuracy": found.accuracy, "eval/examples": found.examples}
        self._sink.metrics(COORDINATOR, step, values)

    def _report(self, round: Round, answers: Mapping[NodeId, Message], replies: list[Message]) -> None:
        values: dict[str, Value] = {"server/answers": len(answers), "server/used": len(replies)}
        if examples := sum(n for _, n in self._losses):
            values["train/loss"] = sum(loss * n for loss, n in self._losses) / examples
            values["train/examples"] = int(examples)
        values |= self._clock.finish_round().metrics()
        self._sink.metrics(COORDINATOR, round, values)


def _lean(content: RecordDict) -> RecordDict:
    """Without what our own boards already know: every record is two requests a board."""
    kept = {}
    for key, record in content.items():
        if key == META or (isinstance(record, ConfigRecord) and set(record) <= {"server-round"}):
            continue
        kept[key] = record
    return RecordDict(kept)


def _renamed(record: ArrayRecord) -> ArrayRecord:
    return record if FRAME in record else ArrayRecord({FRAME: next(iter(record.values()))})


def _metrics(frame: Frame) -> MetricRecord:
    """Raises PeerError when the frame lacks what an update must say, or says nonsense."""
    examples, loss = frame.aux.get(Aux.EXAMPLES), frame.aux.get(Aux.LOSS)
    if examples is None or loss is None:
        raise PeerError("the update does not say how many examples it is from, and with what loss")
    if not 1 <= examples <= MAX_EXAMPLES:
        raise PeerError(f"the update claims to be from {examples:g} examples")
    return MetricRecord({"num-examples": examples, "train-loss": loss})


def _board_values(frame: Frame, layout: Layout) -> dict[str, Value]:
    """What an update says of its board's round."""
    return {
        "train/loss": frame.aux[Aux.LOSS],
        "train/examples": int(frame.aux[Aux.EXAMPLES]),
        "net/payload_bytes": len(frame.body),
        "codec/bits_per_value": 8 * len(frame.body) / layout.size,
    }
