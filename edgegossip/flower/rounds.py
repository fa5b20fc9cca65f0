"""The coordinator's rounds: model down, updates up, the mean or any Flower strategy in between. No processes, no threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flwr.app import Message, RecordDict

from edgegossip import codecs
from edgegossip.flower import protocol
from edgegossip.flower._private import is_away
from edgegossip.flower.averaging import Share
from edgegossip.flower.board_records import BoardRecords
from edgegossip.flower.combine import combiner, make_strategy
from edgegossip.flower.downlink import Downlink
from edgegossip.flower.evaluations import Evaluations
from edgegossip.flower.examples import Examples
from edgegossip.flower.exchange import COORDINATOR, Exchange
from edgegossip.flower.final_evaluation import evaluate_final
from edgegossip.flower.losses import Losses
from edgegossip.flower.payload import Channel, frame_array, frame_bytes, frame_content
from edgegossip.flower.plan import Plan
from edgegossip.flower.progress import Progress
from edgegossip.flower.reported import require_reported
from edgegossip.flower.round_record import Sent, used_values
from edgegossip.flower.sampling import sample
from edgegossip.flower.server_levels import ServerLevels
from edgegossip.flower.trust import Trust
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.layout import Layout
from edgegossip.profiling.records import Sink, Value
from edgegossip.profiling.spans import RoundClock
from edgegossip.training.schedule import learning_rate
from edgegossip.types import NodeId, PeerError, Round, RunError, Vec

MAX_EMPTY_ROUNDS = 3  # rounds in a row in which no board sent anything usable
MAX_REPEATS = 10  # of a round whose boards all went away

Meter = Callable[[], Mapping[str, Value]]  # more values for the coordinator's record of the round that just ended


class Rounds:
    """One run from the first model to the last. Round numbers are 0-based here and 1-based in Flower.

    `save` hears how far the run is after every round; `settle` returns when that is safe. `trained` gets the final model before
    anybody evaluates it.
    """

    def __init__(
        self,
        plan: Plan,
        exchange: Exchange,
        sink: Sink,
        save: Callable[[Progress], None] = lambda progress: None,
        settle: Callable[[], None] = lambda: None,
        meter: Meter = dict,
        trained: Callable[[Vec], None] = lambda model: None,
    ) -> None:
        self._plan, self._exchange, self._sink, self._save, self._meter = plan, exchange, sink, save, meter
        self._settle, self._trained = settle, trained
        exchange.on_late = self._late
        server = plan.recipe.server
        self._channel = Channel.of(plan.layout, plan.run_id, plan.codec)
        strategy = plan.strategy or make_strategy(server.strategy, server.strategy_params)
        self._combiner = combiner(strategy, self._channel, server.weighting == "uniform")
        self._downlink = Downlink(plan.layout, plan.run_id, plan.downlink)
        self._levels = ServerLevels.of(plan.codec)
        self._clock = RoundClock()
        self._losses = Losses()
        self._evaluations = Evaluations(plan.recipe, sink, self._losses)
        self._holds: dict[NodeId, tuple[int, Round]] = {}  # the model that a board (by its Flower id) answered last
        self._empty_rounds = 0
        self._trust, self._examples = Trust(sink), Examples[NodeId]()
        self._sent = Sent()
        self.records = BoardRecords(plan.layout, sink) if plan.record_boards else None

    def run(self, initial: Vec, start: Progress | None = None) -> Vec:
        """All rounds, from `start` where a run is continued; the final model, float32[n]. Raises RunError when too few boards
        are left."""
        x, first = (initial, 0) if start is None else (start.model, start.round)
        if start is not None:
            self._resume(start)
        self._clock.finish_round()
        for round in range(first, self._plan.recipe.run.rounds):
            x = self._round(round, x)
            self._save(self._progress(round + 1, x))
        self._trained(x)
        self._final_evaluation(x)
        return x

    def _resume(self, start: Progress) -> None:
        self._combiner.restore(start.strategy)
        self._levels = start.levels
        self._examples.used(start.examples)
        self._evaluations.resume(start.evaluations, start.evaluate_next)
        if self.records is not None:
            self.records.resume(start.records)
        if start.reference is not None:
            self._downlink.resume(start.reference, start.round - 1)

    def _progress(self, next_round: Round, x: Vec) -> Progress:
        reference = self._downlink.reference if self._downlink.compresses else None
        return Progress(
            next_round,
            x,
            reference,
            self._combiner.snapshot(),
            self._levels,
            self._evaluations.asked,
            self._evaluations.open,
            {} if self.records is None else self.records.waiting,
            self._plan.instance,
            dict(self._examples.claimed),
        )

    def _round(self, round: Round, x: Vec) -> Vec:
        server = self._plan.recipe.server
        self._exchange.round = round
        answers: dict[NodeId, Message] = {}
        for _ in range(MAX_REPEATS):
            with self._clock.span("wait"):
                self._exchange.idle()
            self._evaluations.look(self._exchange.roster)
            self._evaluate_here(x)
            with self._clock.span("encode"):
                messages = self._messages(round, x)
            with self._clock.span("wait"):
                self._settle()  # what is asked twice after kill -9 is this round and no earlier one
                answers = self._exchange.ask(messages, f"round {round}", server.deadline_s, server.quorum)
            if answers or any(m.busy for m in self._exchange.roster.up()):
                break  # else all went away before they had answered: they are asked again when they are back
            with self._clock.span("wait"):
                self._exchange.regather()
        with self._clock.span("decode"):
            shares = self._checked(answers, round)
            x = self._combine(x, shares, round, unanswered=all(is_away(reply) for reply in answers.values()))
        self._report(round, answers, shares)
        self._evaluations.after(round)
        return x

    def _messages(self, round: Round, x: Vec) -> dict[NodeId, Message]:
        """One TRAIN message a board that is chosen; one of them may be asked to evaluate the model it gets."""
        recipe, roster = self._plan.recipe, self._exchange.roster
        idle = {m.node_id: m.name for m in roster.idle()}
        idle = self._trust.trusted(idle, round, max(1, recipe.server.min_nodes))
        some = sample(list(idle), recipe.server, len(roster.expected), recipe.run.seed, round)
        chosen = {idle[i]: i for i in self._combiner.choose(round, x, some)}
        contents = self._contents(round, x, chosen)
        messages = {
            name: Message(contents[name], dst_node_id=node_id, message_type="train") for name, node_id in chosen.items()
        }
        if not self._evaluations.pending or self._plan.evaluate is not None or not messages:
            return messages
        who = self._evaluations.ask(sorted(messages), round - 1)
        request = protocol.evaluate_request(recipe.evaluation.examples)
        messages[who].content = RecordDict({**messages[who].content, protocol.ASK: request})
        return messages

    def _contents(self, round: Round, x: Vec, chosen: Mapping[NodeId, int]) -> dict[NodeId, RecordDict]:
        """What each board gets: the difference if it holds the model before, else the whole. Either is encoded once, and
        Flower moves it to its server once."""
        aux = {} if self._levels is None else self._levels.aux()
        down = self._downlink.publish(x, round, aux)
        whole: tuple[Frame, RecordDict] | None = None
        small = None if down.difference is None else (down.difference, _content(down.difference, self._plan.layout))
        contents, self._sent = {}, Sent()
        for name, node_id in chosen.items():
            if small is not None and self._holds.get(name) == (node_id, round - 1):
                frame, contents[name] = small
            else:
                whole = whole or self._whole(round, aux)
                frame, contents[name] = whole
            self._sent.add(frame)
        self._holds.clear()
        return contents

    def _whole(self, round: Round, aux: Mapping[int, float]) -> tuple[Frame, RecordDict]:
        frame = self._downlink.whole(round, aux)
        return frame, _content(frame, self._plan.layout)

    def _checked(self, answers: Mapping[NodeId, Message], round: Round) -> dict[int, Share]:
        """Updates that can be used, as far as can be said before they are decoded, by board in the order of names."""
        good: dict[int, Share] = {}
        for name in sorted(answers):
            reply = answers[name]
            try:
                if is_away(reply):
                    self._evaluations.failed(name, "it went away")
                    continue  # which is told elsewhere
                if reply.has_error():
                    raise PeerError(self._no_work(name, reply))
                self._holds[name] = (reply.metadata.src_node_id, round)
                self._evaluations.answered(name, reply)
                frame = self._channel.check(frame_bytes(reply.content), Kind.UPDATE, round)
                require_reported(frame, self._levels is not None)
                good[reply.metadata.src_node_id] = Share(name, frame, frame.aux[Aux.EXAMPLES])
            except PeerError as error:
                self._trust.refused(name, str(error))
        return self._balanced(good)

    def _balanced(self, shares: dict[int, Share]) -> dict[int, Share]:
        """Without those whose claim of examples would make the mean theirs."""
        claims = {share.name: share.weight for share in shares.values()}
        refused = self._examples.refused(claims) if self._plan.recipe.server.weighting == "examples" else {}
        for name, reason in refused.items():
            self._trust.refused(name, reason)
        return {i: share for i, share in shares.items() if share.name not in refused}

    def _no_work(self, name: NodeId, reply: Message) -> str:
        """Why a board answered with an error."""
        reason = protocol.printable(reply.error.reason or "no reason given")
        self._evaluations.failed(name, reason)
        return reason

    def _late(self, name: NodeId, reply: Message) -> None:
        """An answer whose round is over: its update is of no use any more, what it found of the model is."""
        try:
            if reply.has_error():
                raise PeerError(self._no_work(name, reply))
            self._evaluations.answered(name, reply)
        except PeerError as error:
            self._sink.event(COORDINATOR, "refused", f"refused a late answer of {name}: {error}", peer=name)

    def _combine(self, x: Vec, shares: dict[int, Share], round: Round, *, unanswered: bool) -> Vec:
        """The next model; boards whose update was of no use leave `shares`."""
        made = self._combiner.combine(round, x, shares) if shares else None
        for name, reason in (made.refused if made is not None else {}).items():
            self._trust.refused(name, reason)
            del shares[next(i for i, share in shares.items() if share.name == name)]
        if made is not None and made.why:
            self._sink.event(COORDINATOR, "refused", f"round {round} changes nothing: {made.why}")
            shares.clear()
        self._trust.judge(round, [share.name for share in shares.values()])
        self._examples.used({share.name: share.weight for share in shares.values()})
        if self._levels is not None:
            planned = learning_rate(self._plan.recipe.training, round, self._plan.recipe.run.rounds)
            self._levels = self._levels.after([share.frame for share in shares.values()], planned)
        if made is None or made.model is None:
            self._empty_rounds += 1
            if self._empty_rounds >= MAX_EMPTY_ROUNDS:
                why = self._exchange.no_answer if unanswered else made.why if made is not None else ""
                raise RunError(f"no usable update for {MAX_EMPTY_ROUNDS} rounds; {why or self._last_refusal()}")
            return x
        self._empty_rounds = 0
        return made.model

    def _last_refusal(self) -> str:
        reason = f"the last reason: {self._trust.last_reason}"
        return f"{reason}; where that is so of most boards, training runs away: lower training.lr"

    def _evaluate_here(self, x: Vec) -> None:
        """The coordinator's own evaluation, if it is its turn."""
        if self._plan.evaluate is not None and self._evaluations.pending:
            with self._clock.span("other"):
                self._evaluations.found(self._plan.evaluate(x, self._plan.recipe.evaluation.examples or None))

    def _final_evaluation(self, x: Vec) -> None:
        """The final model, here or on the first board that manages."""
        round = self._plan.recipe.run.rounds
        self._evaluations.end()
        if self._plan.evaluate is not None:
            self._evaluations.record(round - 1, self._plan.evaluate(x, None))
            return
        final = Downlink(self._plan.layout, self._plan.run_id, codecs.get("fp32"))
        final.publish(x, round)
        content = _content(final.whole(round), self._plan.layout)
        request = RecordDict({**content, protocol.ASK: protocol.evaluate_request(0)})
        evaluate_final(self._exchange, self._evaluations, request, round - 1)

    def _report(self, round: Round, answers: Mapping[NodeId, Message], shares: Mapping[int, Share]) -> None:
        frames = {share.name: share.frame for share in shares.values()}
        if self.records is not None:
            for name, answer in answers.items():
                if problem := self.records.answered(name, answer):
                    self._sink.event(COORDINATOR, "refused", f"refused the profile of {name}: {problem}", peer=name)
            for name, frame in frames.items():
                self.records.used(name, round, frame)
        values = {"server/answers": len(answers), **self._used_values(list(frames.values()))}
        values |= self._sent.metrics(self._plan.layout)
        values |= self._meter()
        values |= self._clock.finish_round().metrics(round)
        self._sink.metrics(COORDINATOR, round, values)

    def _used_values(self, frames: Sequence[Frame]) -> dict[str, Value]:
        return used_values(frames, self._losses.believed([frame.aux[Aux.LOSS] for frame in frames]))


def _content(frame: Frame, layout: Layout) -> RecordDict:
    return frame_content(frame_array(frame, layout))
