"""What boards must have alike, in the messages between coordinator and boards; earlier versions,
which know nothing of it, on either end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from edgegossip import codecs
from edgegossip.agreement import Agreement
from edgegossip.engine.server_events import Hello, Joining, ServerPlan
from edgegossip.flower import NodeClient, messages
from edgegossip.flower.messages import ASK, RunDescription
from edgegossip.types import DecodeError, PeerError
from tests.flower import toy
from tests.flower.conftest import Memory

RUN = b"r" * 16
NINE, EIGHT = Agreement({"target": "9 classes"}), Agreement({"target": "8 classes"})
FP32 = codecs.get("fp32")
PLAN = ServerPlan(boards=("board-0",), rounds=3, layout=toy.LAYOUT, run_id=RUN, codec=FP32)
EARLIER = {
    *("ask", "run-id", "layout", "codec", "codec-id", "codec-params", "rounds"),
    *("down-id", "down-params", "round", "profiles", "instance"),
}


def described(agreement: Agreement) -> RecordDict:
    return RunDescription.of(replace(PLAN, agreement=agreement), 0).content()


def board(agrees: Agreement, sink: Memory) -> NodeClient:
    workload = toy.Toy(0)
    workload.agrees = agrees
    return NodeClient("board-0", "127.0.0.1:1", lambda: workload, FP32, sink)


def answer_of(client: NodeClient, content: RecordDict) -> tuple[dict[str, Any], Any]:
    content, after = client._query(Message(content, dst_node_id=3, message_type="query"))
    return dict(messages.ask_of(content)), after


def test_a_coordinator_that_says_nothing_describes_the_run_as_before() -> None:
    assert set(messages.ask_of(described(Agreement({})))) == EARLIER
    fields = messages.ask_of(described(NINE))
    assert set(fields) == EARLIER | {"agreement"}
    assert RunDescription.read(fields).agreement == NINE.to_json()


def test_a_board_that_fits_says_what_it_has(sink: Memory, in_run: int) -> None:
    fields, _ = answer_of(board(NINE, sink), described(NINE))
    assert fields == {"name": "board-0", "problem": "", "agreement": NINE.to_json()}


def test_a_board_that_differs_says_how_and_leaves(sink: Memory, in_run: int) -> None:
    fields, after = answer_of(board(EIGHT, sink), described(NINE))
    words = "the target is 8 classes on this board and 9 classes at the coordinator"
    assert fields["problem"].startswith(words) and "data.classes = 9" in fields["problem"]
    with pytest.raises(PeerError, match=words):
        after()


def test_the_agreement_is_compared_before_the_layout() -> None:
    hello = replace(RunDescription.of(replace(PLAN, agreement=NINE), 0), layout="5")
    with pytest.raises(PeerError, match="9 classes at the coordinator"):
        hello.check(toy.LAYOUT.hash, FP32, FP32, RUN, EIGHT)
    with pytest.raises(PeerError, match="another model"):
        hello.check(toy.LAYOUT.hash, FP32, FP32, RUN, NINE)


@pytest.mark.parametrize("text", ["{", "null", '{"values": NaN}', "x" * 5000])
def test_a_board_believes_no_coordinator_whose_agreement_is_none(sink: Memory, text: str, in_run: int) -> None:
    content = described(NINE)
    content[ASK] = ConfigRecord({**messages.ask_of(content), "agreement": text})
    fields, _ = answer_of(board(NINE, sink), content)
    assert fields["problem"].startswith("an agreement")


def test_a_board_takes_part_in_the_run_of_an_earlier_coordinator(sink: Memory, in_run: int) -> None:
    content = described(Agreement({}))
    assert "agreement" not in messages.ask_of(content)
    fields, _ = answer_of(board(EIGHT, sink), content)
    assert fields["problem"] == ""


def test_an_earlier_board_answers_without_it_and_fits(in_run: int) -> None:
    earlier = RecordDict({ASK: ConfigRecord({"name": "board-0", "problem": ""})})
    assert messages.hello_answer("board-0") == earlier
    asked = Message(RecordDict(), dst_node_id=3, message_type="query")
    asked.metadata.__dict__["_message_id"] = "1"

    def read(content: RecordDict) -> object:
        return messages.read_answer(Hello, Message(content, reply_to=asked), False, None)

    assert read(earlier) == Joining("board-0")
    assert read(messages.hello_answer("board-0", agreement=NINE)) == Joining("board-0", agreement=NINE.to_json())
    wrong = RecordDict({ASK: ConfigRecord({"name": "board-0", "problem": "", "agreement": 7})})
    assert isinstance(read(wrong), DecodeError)
