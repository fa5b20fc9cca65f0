"""What coordinator and boards say to each other through Flower: models and updates as opaque
Arrays, the rest as small records.

- QUERY "hello": the coordinator describes the run, the board answers with its name or why it cannot
  take part.
- TRAIN: a frame down, a frame up; with it, where the coordinator wants profiles, that of the
  board's round before. Some boards are also asked to evaluate the model they got.
- EVALUATE: that alone.
- QUERY "bye": the run is over for this board, with the reason; the answer has the profile of its
  last round.

A whole model is one opaque Array whose bytes are a wire frame: Flower moves every Array as two
objects and every object as a signed HTTP request. Its `stype` is not Flower's own, so
`Array.numpy()` refuses it: no strategy can average compressed bytes by mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass
from dataclasses import fields as fields_of
from typing import Any, TypeVar, get_type_hints

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from edgegossip import frame as wire
from edgegossip.agreement import Agreement, difference
from edgegossip.codecs.base import Codec
from edgegossip.engine.plausible import MAX_EXAMPLES, MAX_LOSS
from edgegossip.engine.server_events import (
    Answer,
    BoardAnswer,
    Bye,
    Evaluate,
    Failure,
    Hello,
    Instruction,
    Joining,
    ServerPlan,
    Train,
)
from edgegossip.frame import Frame
from edgegossip.layout import Layout
from edgegossip.memory import Spool
from edgegossip.telemetry.records import METRICS, Value
from edgegossip.types import DecodeError, Metrics, NodeId, PeerError, Round, scores_problem
from edgegossip.untrusted import printable

STYPE = "edgegossip.frame.v1"
FRAME = "edgegossip"  # the Array's name in its ArrayRecord
ARRAYS = "arrays"  # the ArrayRecord's name in a message
ASK = "ask"  # ConfigRecord with everything that is not a frame
EVALUATION = "evaluation"  # MetricRecord with what a board found
PROFILE = "profile"  # MetricRecord with where the seconds and bytes of a board's round went
MAX_TEXT = 500  # characters of a name or reason from the wire that are shown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunDescription:
    """Holds what the coordinator says of the run, and a board must agree with. Fields travel by
    their names; those with a default may be missing."""

    run_id: bytes
    layout: str  # its hash, in hexadecimal digits
    codec: str
    codec_id: int
    codec_params: bytes
    rounds: int
    down_id: int
    down_params: bytes
    round: int  # that comes next
    profiles: bool = False  # are wanted of boards: nobody else keeps their records
    instance: str = ""  # see ServerPlan
    agreement: str = ""  # as JSON; "": nothing is said

    @classmethod
    def of(cls, plan: ServerPlan, round: Round) -> RunDescription:
        """Return that of a run in which `round` comes next."""
        return cls(
            run_id=plan.run_id,
            layout=f"{plan.layout.hash:016x}",
            codec=plan.codec.name,
            codec_id=plan.codec.wire_id,
            codec_params=plan.codec.wire_params(),
            rounds=plan.rounds,
            down_id=plan.downlink.wire_id,
            down_params=plan.downlink.wire_params(),
            round=round,
            profiles=plan.records_boards,
            instance=plan.instance,
            agreement=agreement_text(plan.agreement),
        )

    def content(self) -> RecordDict:
        """Return it as the content of a message."""
        said = {name.replace("_", "-"): value for name, value in asdict(self).items() if value or name != "agreement"}
        return RecordDict({ASK: ConfigRecord({"ask": "hello", **said})})

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> RunDescription:
        """Read what `content` gives. Raises DecodeError."""
        kinds, said = get_type_hints(cls), dict[str, Any]()
        for field in fields_of(cls):
            key = field.name.replace("_", "-")
            if key in fields or field.default is MISSING:
                said[field.name] = _field(fields, key, kinds[field.name])
        return cls(**said)

    def check(
        self,
        layout_hash: int,
        codec: Codec[Any],
        down: Codec[Any],
        run_id: bytes | None = None,
        agreement: Agreement = Agreement({}),
    ) -> None:
        """Check that a board with this model and these codecs, of this `agreement`, and for this
        run where it knows it, can take part.

        Raises PeerError where it cannot."""
        if len(self.run_id) != 16:
            raise DecodeError(f"a run id has 16 bytes, the coordinator's has {len(self.run_id)}")
        theirs = Agreement.from_json(self.agreement) if self.agreement else Agreement({})
        if differs := difference(agreement, theirs, "on this board", "at the coordinator"):
            raise PeerError(differs)
        if self.layout != (ours := f"{layout_hash:016x}"):
            raise PeerError(
                f"the coordinator trains another model (layout {printable(self.layout, MAX_TEXT)}, ours is {ours}); "
                "all need the same recipe and the same edgegossip version"
            )
        if run_id is not None and self.run_id != run_id:
            raise PeerError(
                f"the coordinator's run is {self.run_id.hex()}, this board's recipe is that of run {run_id.hex()}; "
                "start both with the same recipe and settings"
            )
        if (self.codec_id, self.codec_params) != (codec.wire_id, codec.wire_params()):
            raise PeerError(
                f"the coordinator expects updates as {printable(self.codec, MAX_TEXT)}, this board sends {codec.name} or the "
                "same with other parameters; all need the same [codec] section"
            )
        if (self.down_id, self.down_params) != (down.wire_id, down.wire_params()):
            raise PeerError(
                f"the coordinator sends models in another codec than {down.name}, or with other parameters; all need the same "
                "server.downlink"
            )


# -- the coordinator's end: wishes and answers of the server engine as messages


def question_type(wish: Instruction) -> str:
    """Return Flower's type of the message that has this wish."""
    return "train" if isinstance(wish, Train) else "evaluate" if isinstance(wish, Evaluate) else "query"


def question_content(
    wish: Instruction, plan: ServerPlan, models: dict[int, RecordDict], spool: Spool = Spool()
) -> RecordDict:
    """Return the content of a message to a board.

    `models`: contents of frames by their `id`; boards that get the same frame get the same content,
    which Flower then moves once."""
    if isinstance(wish, Hello):
        return RunDescription.of(plan, wish.round).content()
    if isinstance(wish, Bye) and wish.frame is None:
        return bye(wish.words, wish.failed)
    assert wish.frame is not None
    content = models.get(id(wish.frame))
    if content is None:
        content = models[id(wish.frame)] = frame_content(frame_array(wish.frame, plan.layout, spool))
    if isinstance(wish, Bye):
        return RecordDict({**content, **bye(wish.words, wish.failed)})
    return content if wish.examples is None else RecordDict({**content, ASK: evaluate_request(wish.examples)})


def read_answer(wish: type[Instruction], reply: Message, away: bool, identity: NodeId | None) -> Answer:
    """Return what a board answered; parts that cannot be read as the error that says why.

    `away`: Flower answered in its place; `identity`: the name in its certificate."""
    if reply.has_error():
        return Failure(printable(reply.error.reason or "no reason given", MAX_TEXT), away)
    content = reply.content
    if wish is Hello:
        found = _try(read_hello_answer, content)
        if isinstance(found, PeerError):
            return found
        name, problem, agreement = found
        return Joining(name, problem, identity, agreement)
    return BoardAnswer(
        _try(frame_bytes, content) if wish is Train else None,
        _try(read_evaluation, content),
        _try(read_profile, content),
    )


def _try(read: Callable[[RecordDict], T], content: RecordDict) -> T | PeerError:
    try:
        return read(content)
    except PeerError as error:
        return error.with_traceback(None)  # which would keep the message


# -- frames


def frame_array(frame: Frame, layout: Layout, spool: Spool = Spool()) -> Array:
    """Return the frame as an opaque Array of the model's size. A large one lies in `spool`."""
    return opaque_array(spool.joined(wire.build(frame)), layout.size)


def opaque_array(data: bytes | memoryview, size: int) -> Array:
    """Return an Array of these bytes. Flower cuts an Array's data into pieces by a memoryview, so
    they need not be `bytes`, whatever its constructor says."""
    array = Array(dtype="float32", shape=(size,), stype=STYPE, data=b"")
    array.data = data  # type: ignore[assignment]
    return array


def frame_bytes(content: RecordDict) -> bytes | memoryview:
    """Return the one frame in a message. Raises DecodeError when there is none, or more."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise DecodeError(f"the message has {len(records)} array records instead of one")
    if FRAME in records[0]:
        return records[0][FRAME].data
    if len(records[0]) != 1:
        raise DecodeError(f"the message has {len(records[0])} arrays and none of them is named {FRAME!r}")
    return next(iter(records[0].values())).data


def frame_content(array: Array) -> RecordDict:
    """Return a message's content that is this one frame and nothing else."""
    record = ArrayRecord({FRAME: Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=b"")})
    record[FRAME].data = array.data  # afterwards: a record takes over no Array whose data are not bytes
    return RecordDict({ARRAYS: record})


# -- small records


def agreement_text(agreement: Agreement) -> str:
    """Return an agreement as a message has it: as JSON, or "" where it says nothing."""
    return agreement.to_json() if agreement.facts else ""


def hello_answer(name: str, problem: str = "", agreement: Agreement = Agreement({})) -> RecordDict:
    """Return a board's answer to hello. `problem`: why it cannot take part; `agreement`: what it
    must have alike with the others."""
    fields = {"name": name, "problem": problem}
    if text := agreement_text(agreement):
        fields["agreement"] = text
    return RecordDict({ASK: ConfigRecord(dict(fields))})


def read_hello_answer(content: RecordDict) -> tuple[str, str, str]:
    """Return name, problem and agreement, which is not read yet. Raises DecodeError."""
    fields = ask_of(content)
    return _text(fields, "name"), _text(fields, "problem"), _agreement(fields)


def bye(text: str, failed: bool) -> RecordDict:
    """Return the content that tells a board that its run is over, and why."""
    return RecordDict({ASK: ConfigRecord({"ask": "bye", "text": text, "failed": failed})})


def read_bye(fields: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the reason, and whether the run failed. Raises DecodeError."""
    return _text(fields, "text"), bool(fields.get("failed"))


def evaluate_request(examples: int) -> ConfigRecord:
    """Ask for an evaluation on the first so many test examples (0: all)."""
    return ConfigRecord({"ask": "evaluate", "examples": examples})


def read_evaluate_request(content: RecordDict) -> int | None:
    """Return the number of examples, or None when no evaluation is asked for."""
    if ASK not in content.config_records:
        return None
    fields = ask_of(content)
    return max(0, _field(fields, "examples", int)) if fields.get("ask") == "evaluate" else None


def evaluation(metrics: Metrics | None) -> MetricRecord:
    """Return an evaluation's loss, examples and scores by their names, the headline first. None,
    for a board without a test set, is one of 0 examples."""
    if metrics is None:
        return MetricRecord({"loss": 0.0, "examples": 0})
    figures = {name: float(value) for name, value in metrics.scores.items()}
    if not math.isnan(metrics.loss):
        figures = {"loss": float(metrics.loss), **figures}
    return MetricRecord({**figures, "examples": metrics.examples})


def read_evaluation(content: RecordDict) -> Metrics | None:
    """Return the evaluation, if there is one; of 0 examples from a board without a test set.

    Raises DecodeError when it makes no sense."""
    record = content.metric_records.get(EVALUATION)
    if record is None:
        return None
    loss, examples = record.get("loss", 0.0), record.get("examples")
    if not isinstance(loss, float) or not isinstance(examples, int):
        raise DecodeError("the evaluation's loss or examples are no numbers")
    if not abs(loss) <= MAX_LOSS or not 0 <= examples <= MAX_EXAMPLES:
        raise DecodeError(f"the evaluation makes no sense: loss {loss}, {examples} examples")
    if not examples:
        return Metrics(0.0, 0)
    scores: dict[str, Any] = {name: value for name, value in record.items() if name not in ("loss", "examples")}
    if problem := scores_problem(scores):
        raise DecodeError(f"the evaluation makes no sense: {problem}")
    known = loss if "loss" in record else math.nan
    return Metrics(known, examples, {name: float(value) for name, value in scores.items()})


def profile(round: Round, values: Mapping[str, Value]) -> MetricRecord:
    """Return the metrics of a round that are numbers."""
    found = {key: values.get(key) for key in METRICS}
    numbers = {key: v for key, v in found.items() if isinstance(v, (int, float)) and math.isfinite(v)}
    return MetricRecord({"round": round, **numbers})


def read_profile(content: RecordDict) -> tuple[Round, dict[str, Value]] | None:
    """Return round and metrics, those that this build knows.

    Raises DecodeError when it makes no sense."""
    record = content.metric_records.get(PROFILE)
    if record is None:
        return None
    round = record.get("round")
    if not isinstance(round, int):
        raise DecodeError("the profile does not say of which round it is")
    values: dict[str, Value] = {}
    for key in (k for k in METRICS if k in record):
        value = record[key]
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise DecodeError(f"the profile makes no sense: {key} is no finite number")
        values[key] = value
    return round, values


def ask_of(content: RecordDict) -> Mapping[str, Any]:
    """Return what a message says besides frames. Raises DecodeError when it has no such record."""
    record = content.config_records.get(ASK)
    if record is None:
        raise DecodeError(f"the message has no {ASK!r} record")
    return record


def _text(fields: Mapping[str, Any], key: str) -> str:
    return printable(_field(fields, key, str), MAX_TEXT)


def _agreement(fields: Mapping[str, Any]) -> str:
    """Return an agreement as it came, uncut; "" where there is none, as of earlier versions."""
    return _field(fields, "agreement", str) if "agreement" in fields else ""


def _field(fields: Mapping[str, Any], key: str, kind: type) -> Any:
    value = fields.get(key)
    if not isinstance(value, kind):
        raise DecodeError(f"the message lacks {key!r}, or it is not a {kind.__name__}")
    return value
