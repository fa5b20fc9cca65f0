"""Runs a board of a server run in one process: it polls the coordinator's SuperLink, trains,
evaluates and answers.

`NodeClient` has the connection; `BoardWorker` has the work of one run: messages in, contents out.
Flower's own SuperNode starts a process that imports torch again for every message. This client
keeps model, data, optimiser, codec state and one connection for the whole run, and stays small (no
torch) until the coordinator is there.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import Array, Error, Message, MetricRecord, RecordDict

from edgegossip import codecs, memory
from edgegossip.checkpoint.registry import check_structure
from edgegossip.codecs.base import Body, Codec
from edgegossip.engine.plausible import length
from edgegossip.engine.server_frames import COORDINATOR, FULL, Channel, Replica, Uplink
from edgegossip.flower import messages
from edgegossip.flower._private.link import FleetLink, Incoming
from edgegossip.flower.checkpoints import BoardCheckpointer
from edgegossip.flower.connection import BoardCredentials, LinkError
from edgegossip.flower.messages import RunDescription, frame_array, frame_bytes, frame_content, opaque_array
from edgegossip.frame import Frame
from edgegossip.layout import Layout
from edgegossip.memory import Spool
from edgegossip.telemetry.records import Sink, Value
from edgegossip.telemetry.spans import RoundClock, Watch
from edgegossip.training.base import Workload, stage_metrics
from edgegossip.types import EdgegossipError, LocalUpdate, Metrics, NodeId, PeerError, Round, UsageError, Vec

BEAT_S = 1.5  # between signs of life
HOLD_S = 6.0  # for how long the coordinator keeps the question for work open when it has none
PART_S = 0.03  # between two looks at a message whose content is still on its way to the coordinator's SuperLink
AGAIN_S = 0.5  # before an answer that was refused is sent once more
_ERROR_CODE = 3  # Flower's code for an app that raised
Meter = Callable[[], Mapping[str, Value]]  # values for the metrics record of the round that just ended


class NodeClient:
    """Takes part in a run as one board. `run` blocks until the run is over.

    `run_id`: take part in this run only. `make_workload` is called once, when the coordinator has
    answered. `meters` are asked for more values at the end of every round (sockets, CPU load).
    `patience_s`: how long the coordinator may be out of reach before this board gives up.
    `credentials`: for TLS, and to sign the key that the coordinator registers. `downlink`: the
    codec of what comes down, fp32 by default. `make_checkpointer`, given the model's layout and the
    run's id, says where the board keeps its state after every round and finds an earlier process's.
    `on_turn` is called whenever its loop turns. `spool` is where large frames go. `own_test`: what
    it finds of a model is of a test set of its own, and goes into its records, too.
    """

    def __init__(
        self,
        name: NodeId,
        address: str,
        make_workload: Callable[[], Workload],
        codec: Codec[Any],
        sink: Sink,
        *,
        meters: Sequence[Meter] = (),
        run_id: bytes | None = None,
        patience_s: float = 60.0,
        credentials: BoardCredentials | None = None,
        downlink: Codec[Any] | None = None,
        make_checkpointer: Callable[[Layout, bytes], BoardCheckpointer] | None = None,
        on_turn: Callable[[], None] = lambda: None,
        spool: Spool = Spool(),
        own_test: bool = False,
    ) -> None:
        self._name, self._address, self._codec, self._sink = name, address, codec, sink
        self._own_test = own_test
        self._downlink, self._make_checkpointer = downlink or codecs.get(FULL), make_checkpointer
        self._checkpointer: BoardCheckpointer | None = None
        self._make_workload, self._meters, self._patience_s = make_workload, meters, patience_s
        self._run_id, self._on_turn = run_id, on_turn
        self._spool = spool
        self._link = FleetLink(address, credentials, spool)
        self._clock = RoundClock()
        self._board: BoardWorker | None = None
        self._profiles = False  # does the coordinator want them
        self._profile: MetricRecord | None = None  # of the last round
        self._stop = threading.Event()
        self._rejoin = threading.Event()
        self._id = 0  # in Flower
        self._final: Vec | None = None  # the model that came of the run, where it was told

    def run(self) -> str:
        """Take part until the coordinator says goodbye; return its last words.

        Raises PeerError when the coordinator refuses this board or stays out of reach, UsageError
        when training fails here.
        """
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what matters is in our own events
        beats = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        try:
            self._id = self._request(self._link.join)
            beats.start()
            while (words := self._poll()) is None:
                pass
            if self._board is not None:
                self._board.workload.over(self._final)
            self._sink.event(self._name, "finished", f"{self._name} finished: {words}")
            self._close_checkpointer(over=True)
            return words
        finally:
            self._stop.set()
            self._close_checkpointer(over=False)
            if beats.is_alive():
                beats.join(1.0)
            self._link.close()

    def _close_checkpointer(self, *, over: bool) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close(over=over)

    def _poll(self) -> str | None:
        """Poll once and handle the message if there is one; return the coordinator's last words
        when that was goodbye."""
        self._on_turn()
        if self._rejoin.is_set():
            self._rejoin.clear()
            time.sleep(0.5)
            self._id = self._request(self._link.join)
        with self._clock.span("wait"):
            incoming = self._request(partial(self._link.receive, HOLD_S, partial(self._clock.span, "transmit")))
        return None if incoming is None else self._handle(incoming)

    def _request(self, request: Callable[[], Any]) -> Any:
        """Return the answer to a request; None when it was refused."""
        try:
            return self._retry(request)
        except LinkError:
            if request == self._link.join:
                raise
            self._rejoin.set()  # a SuperLink that was restarted does not know us any more
            return None

    def _retry(self, request: Callable[[], Any]) -> Any:
        """Return the answer to a request, asked again while the coordinator is away; say so every 5
        s. Raises LinkError when it is refused.

        A large message is many requests: as long as some come through, nobody is away."""
        watch, moved = Watch(), self._link.moved
        while True:
            try:
                return request()
            except LinkError as error:
                if not error.gone:
                    raise
                if self._link.moved > moved:
                    watch, moved = Watch(), self._link.moved
                if watch.s > self._patience_s:
                    raise PeerError(
                        f"gave up on the coordinator at {self._address}: out of reach for {self._patience_s:.0f} s ({error})"
                    ) from None
                if watch.due():
                    text = f"waiting for the coordinator at {self._address} for {watch.s:.0f} s: {error}"
                    self._sink.event(self._name, "waiting", text)
                time.sleep(0.25)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                if not self._link.beat():
                    self._rejoin.set()
            except LinkError as error:
                if not error.gone:
                    self._rejoin.set()

    def _handle(self, incoming: Incoming) -> str | None:
        since_s = time.monotonic()
        with self._clock.span("transmit"):
            message = self._fetch(incoming)
        if message is None:
            return None  # its sender vanished before all of it was there
        try:
            answer, after = self._answer(message, since_s)
        except EdgegossipError as error:
            local = isinstance(error, UsageError)  # this board cannot train; a bad message only costs its round
            try:
                self._refusal(Message(Error(_ERROR_CODE, error.public_message or str(error)), reply_to=message))
            except PeerError:  # the coordinator is away
                if not local:
                    raise
            if local:
                raise
            self._sink.event(self._name, "refused", f"refused a message from the coordinator: {error}")
            return None
        start_s = time.monotonic()
        with self._clock.span("transmit"):
            self._reply(message, answer)
            if message.metadata.message_type == "train":
                self._sent(start_s)
            memory.trim_heap()
        return after()

    def _sent(self, start_s: float) -> None:
        """Take note of an update that is on its way no more."""
        if self._board is not None:
            for text in self._board.sent(start_s, time.monotonic()):
                self._sink.event(self._name, "rate", f"{self._name} {text}", peer=COORDINATOR)

    def _fetch(self, incoming: Incoming) -> Message | None:
        """Return the whole message; None when none of its parts came for as long as this board is
        patient. A large one may take longer than that on its way."""
        here, watch = len(incoming.contents), Watch()
        while watch.s < self._patience_s:
            try:
                message: Message | None = self._request(lambda: self._link.fetch(incoming))
            except ValueError as error:
                self._sink.event(self._name, "refused", f"a message from the coordinator cannot be read: {error}")
                return None
            if message is not None or self._rejoin.is_set():
                return message
            if len(incoming.contents) > here:
                here, watch = len(incoming.contents), Watch()
            time.sleep(PART_S)
        return None

    def _reply(self, message: Message, answer: RecordDict) -> None:
        """Give an answer.

        Where it is not taken, not even the second time, say that instead: the coordinator would
        wait for it, and not ask again."""
        reply = Message(answer, reply_to=message)
        refusal = self._refusal(reply)
        if refusal is not None and refusal.unknown:
            return  # as by a SuperLink that was restarted: it does not know the question either
        if refusal is not None:
            time.sleep(AGAIN_S)
            refusal = self._refusal(reply)
        if refusal is None:
            return
        text = f"the coordinator did not take an answer of {self._name}: {refusal}"
        self._sink.event(self._name, "refused", text)
        instead = Error(_ERROR_CODE, f"its answer was not taken: {refusal}")
        if self._refusal(Message(instead, reply_to=message)) is not None:
            self._rejoin.set()

    def _refusal(self, reply: Message) -> LinkError | None:
        """Push a reply; return why it was refused.

        A SuperLink that does not know this board gets it once more when it does."""
        for known in (False, True):
            try:
                self._retry(lambda: self._link.reply(reply))
                return None
            except LinkError as error:
                if not error.unknown or known or not self._known_again():
                    return error
        raise AssertionError

    def _known_again(self) -> bool:
        """Join once more; return whether as the same board in Flower, whose questions are still
        open."""
        before = self._id
        self._id = self._request(self._link.join)
        return self._id == before

    def _answer(self, message: Message, since_s: float) -> tuple[RecordDict, Callable[[], str | None]]:
        """Return the reply's content, and what to do once it has been sent. `since_s`: when the
        message began to come."""
        if message.metadata.message_type == "query":
            return self._query(message)
        if self._board is None:
            raise PeerError(f"{self._name} was asked to work before it was told of the run")
        board = self._board
        board.found = None
        if message.metadata.message_type == "train":
            reply = board.train(message, self._clock, since_s)
            self._note(board)
            if self._checkpointer is not None:
                self._checkpointer.save(board)
            return self._with_profile(reply), lambda: self._report(board)
        reply = board.evaluate(message, self._clock)
        self._note(board)
        return reply, lambda: None

    def _note(self, board: BoardWorker) -> None:
        """Record what this board has just found of the model after the round before, on a test set
        of its own."""
        if self._own_test and board.found is not None:
            self._sink.metrics(self._name, board.round - 1, board.found.records())

    def _query(self, message: Message) -> tuple[RecordDict, Callable[[], str | None]]:
        fields = messages.ask_of(message.content)
        if fields.get("ask") == "bye":
            words, failed = messages.read_bye(fields)
            if self._board is not None and message.content.array_records:
                with self._clock.span("decode"):
                    self._final = self._board.final(message)
            return self._with_profile(RecordDict()), lambda: _last_words(words, failed)
        hello = RunDescription.read(fields)
        self._profiles = hello.profiles
        workload = self._board.workload if self._board is not None else self._make_workload()
        agreement = workload.agreement()
        try:
            hello.check(workload.layout.hash, self._codec, self._downlink, self._run_id, agreement)
        except PeerError as error:
            problem = str(error)
            return messages.hello_answer(self._name, problem), lambda: _last_words(problem, failed=True)
        if self._board is not None and _is_new_run(self._board, hello):
            workload.abandon()
            self._board = None
            del workload  # a small board has no room for two of them
            workload = self._make_workload()
        if self._board is None or self._board.run_id != hello.run_id:
            self._board = self._begin(workload, hello)  # else a coordinator that was started again goes on
        self._board.instance = hello.instance
        answer = messages.hello_answer(self._name, agreement=agreement)
        return answer, lambda: self._joined(workload.layout.size)

    def _begin(self, workload: Workload, hello: RunDescription) -> BoardWorker:
        """Make this board in that run: from its checkpoint, or from the start where the run has
        begun anew since."""
        board = self._new_board(workload, hello)
        if self._make_checkpointer is None:
            return board
        self._close_checkpointer(over=False)
        self._checkpointer = self._make_checkpointer(workload.layout, hello.run_id)
        before = dict(workload.snapshot())
        self._checkpointer.restore(board)
        if not _is_new_run(board, hello):
            return board
        text = f"{self._name} begins anew, as the coordinator did; its checkpoint was of round {board.round} of another run"
        self._sink.event(self._name, "discarded", text)
        workload.restore(before)
        return self._new_board(workload, hello)

    def _new_board(self, workload: Workload, hello: RunDescription) -> BoardWorker:
        channel = Channel.of(workload.layout, hello.run_id, self._codec)
        return BoardWorker(self._name, workload, channel, self._downlink, self._link.meter.sent_bytes, self._spool)

    def _joined(self, values: int) -> None:
        text = f"{self._name} joined the run at {self._address} and trains {values} values"
        self._sink.event(self._name, "started", text, values=values, unix_s=time.time())
        self._clock.finish_round()  # what came before belongs to no round

    def _report(self, board: BoardWorker) -> None:
        """Record the round that ends here.

        What that takes is time in which this board waits for the next one."""
        values = board.take_report()
        with self._clock.span("wait"):
            for meter in self._meters:
                values |= meter()
            values |= self._clock.finish_round().metrics(board.round)
            self._sink.metrics(self._name, board.round, values)
            self._profile = messages.profile(board.round, values) if self._profiles else None

    def _with_profile(self, answer: RecordDict) -> RecordDict:
        """Add the profile of the round before, which ended when its answer was sent."""
        return answer if self._profile is None else RecordDict({**answer, messages.PROFILE: self._profile})


def _is_new_run(board: BoardWorker, hello: RunDescription) -> bool:
    """Tell whether the run has begun again since this board took part.

    A coordinator that lost more than a round does not count: a momentum that is some rounds ahead
    is better than none."""
    if board.instance and hello.instance and board.instance != hello.instance:
        return True
    return hello.round == 0 and board.round > 0


def _last_words(words: str, failed: bool) -> str:
    if failed:
        raise PeerError(words)
    return words


@dataclass(frozen=True, slots=True)
class _CachedAnswer:
    """Keeps what was sent for a round, and for which model, its correction included."""

    round: Round
    model_crc: int
    array: Array
    report: dict[str, Value]


class BoardWorker:
    """Does the work of one board, with its model, data and codec.

    `sent_bytes` says what its connection has sent so far.

    A coordinator that was killed may ask for a round again that it had not finished. The same model
    gets the same answer, and neither momentum nor error memory moves twice.
    """

    def __init__(
        self,
        name: NodeId,
        workload: Workload,
        channel: Channel,
        downlink: Codec[Any],
        sent_bytes: Callable[[], int] = lambda: 0,
        spool: Spool = Spool(),
    ) -> None:
        self._spool = spool
        self.workload, self._channel = workload, channel
        self._replica = Replica(channel.layout, channel.run_id, downlink)
        self._uplink = Uplink(channel, name)
        self._sent_bytes, self._sent_before = sent_bytes, sent_bytes()
        self._cached: _CachedAnswer | None = None
        self._report: dict[str, Value] = {}
        self.round = 0
        self.found: Metrics | None = None  # of the model that it was asked about last
        self.instance = ""  # of the run, see ServerPlan

    @property
    def run_id(self) -> bytes:
        """The run that it takes part in, 16 bytes."""
        return self._channel.run_id

    def train(self, message: Message, clock: RoundClock, since_s: float | None = None) -> RecordDict:
        """Decode the model, evaluate it if asked to, train from it, encode the change. `since_s`:
        when the message began to come (`time.monotonic`); None: now.

        Raises PeerError, UsageError."""
        since_s = time.monotonic() if since_s is None else since_s
        examples = messages.read_evaluate_request(message.content)
        aux, x = self._open(message, clock)
        found = self._evaluate(examples, x, clock)
        more = () if self._replica.correction is None else (self._replica.correction,)
        crc = zlib.crc32(more[0].data, zlib.crc32(x.data)) if more else zlib.crc32(x.data)
        content = self._cached_answer(crc)
        if content is None:
            self._cached = None  # before the next one is made: each may be as large as the model
            with clock.span("compute"):
                update = self.workload.local_update(x, self.round, *more)
                clock.charge("wait", update.rested_s)
            update = self._uplink.with_rate(update, time.monotonic() - since_s)
            del x, more  # so may what comes next
            content = self._encoded(update, crc, aux, clock)
        return content if found is None else RecordDict({**content, messages.EVALUATION: found})

    def evaluate(self, message: Message, clock: RoundClock) -> RecordDict:
        """Decode the model and evaluate it. Raises PeerError, UsageError."""
        examples = messages.read_evaluate_request(message.content)
        found = self._evaluate(examples, self._open(message, clock)[1], clock)
        return RecordDict({} if found is None else {messages.EVALUATION: found})

    def final(self, message: Message) -> Vec:
        """Decode the model that came of the run. Raises PeerError."""
        return self._replica.open(frame_bytes(message.content))[1]

    def sent(self, start_s: float, end_s: float) -> Iterator[str]:
        """Take note of when the answer was on its way (`time.monotonic`). Yield what the log should
        hear of it."""
        rates, payload = self._uplink.rates, self._report.get("net/payload_bytes")
        if rates is not None and isinstance(payload, int):
            error = self._report["codec/relative_error"]
            assert isinstance(error, float)
            self._uplink.arrived(payload, error, start_s, end_s)
            self._report |= rates.figures()
            yield from (text for _, text in rates.news())

    def take_report(self) -> dict[str, Value]:
        """Return metrics of the round that was just answered, once."""
        sent = self._sent_bytes()
        payload = int(self._report["net/payload_bytes"])  # type: ignore[arg-type]
        report = self._report | {"net/overhead_bytes": sent - self._sent_before - payload}
        self._sent_before = sent
        return report

    def snapshot(self) -> dict[str, Any]:
        """Return what another process needs to go on for this one; arrays in it are not written to
        afterwards."""
        done = self._cached
        return {
            "round": self.round,
            "training": dict(self.workload.snapshot()),
            "codec": self._uplink.state,
            "sequence": self._uplink.sequence,
            "instance": self.instance,
            "answered": None if done is None else [done.round, done.model_crc, done.array.data, done.report],
        }

    def restore(self, found: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave.

        Raises UsageError, KeyError, TypeError or ValueError when it is of something else."""
        layout = self._channel.layout
        check_structure(found["codec"], self._channel.codec.init(layout), layout)
        self.workload.restore(found["training"])
        self._uplink.state, self._uplink.sequence = found["codec"], int(found["sequence"])
        self.round = int(found["round"])
        self.instance = str(found.get("instance", ""))
        if found["answered"] is not None:
            round, crc, data, report = found["answered"]
            array = opaque_array(data, layout.size)
            self._cached = _CachedAnswer(round, crc, array, dict(report))

    def _open(self, message: Message, clock: RoundClock) -> tuple[Mapping[int, float], Vec]:
        """Return what came beside the model, and the model.

        The message is emptied, record by record: it is as large as the model, and Flower's records
        refer to each other, so that they would wait for the garbage collector."""
        with clock.span("decode"):
            frame, x = self._replica.open(frame_bytes(message.content))
            for record in list(message.content.array_records.values()):
                record.clear()
            message.content = RecordDict()
            memory.trim_heap()
        self.round = frame.round
        return frame.aux, x

    def _cached_answer(self, crc: int) -> RecordDict | None:
        """Return the answer that this round had before, with what has this checksum."""
        done = self._cached
        if done is None or done.round != self.round or done.model_crc != crc:
            return None
        # No time is spent on training: that was in the round that had the answer first.
        self._report = {name: value for name, value in done.report.items() if not name.startswith("time/")}
        return frame_content(done.array)

    def _encoded(self, update: LocalUpdate, crc: int, aux: Mapping[int, float], clock: RoundClock) -> RecordDict:
        """Encode a change of the model with this checksum, and keep the answer."""
        with clock.span("encode"):
            frame = self._uplink.frame(update, self.round, aux)
            array = frame_array(frame, self._channel.layout, self._spool)
            self._report = self._describe(update, frame)
            self._cached = _CachedAnswer(self.round, crc, array, dict(self._report))
        return frame_content(array)

    def _evaluate(self, examples: int | None, x: Vec, clock: RoundClock) -> Any:
        if examples is None:
            return None
        with clock.span("other"):
            self.found = self.workload.evaluate(x, examples or None)
            return messages.evaluation(self.found)

    def _describe(self, update: LocalUpdate, frame: Frame) -> dict[str, Value]:
        """Return the metrics of an update and its frame."""
        layout, codec = self._channel.layout, self._channel.codec
        lost = 0.0  # what the codec lost, relative
        if codec.name != FULL:
            lost = _lost(update, codec, frame.body, layout)
        return {
            "train/loss": update.loss,
            "train/lr": update.lr,
            **({"train/examples": update.examples} if update.examples else {}),
            **{f"train/{name}": value for name, value in update.metrics.items()},
            "net/payload_bytes": len(frame.body),
            "codec/bits_per_value": codecs.bits_per_value(frame.body, layout),
            "codec/relative_error": lost,
            **stage_metrics(update.stages_s),
        }


def _lost(update: LocalUpdate, codec: Codec[Any], body: Body, layout: Layout) -> float:
    """Return ||decoded - delta|| / ||delta||. The delta is written over where it may be: what it is
    decoded to would be one more vector as large as the model."""
    if not update.consumable:
        return codecs.relative_error(update.delta, codec.decode(body, layout))
    whole = length(update.delta)
    lost = length(codec.decode(body, layout, update.delta, -1.0))
    return lost / whole if whole else (math.inf if lost else 0.0)
