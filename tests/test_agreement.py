"""Agreements between boards: what is compared, what a stranger may write, and what a user reads."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.agreement import MAX_BYTES, Agreement, difference, names_fact, sums
from edgegossip.types import DecodeError, UsageError

TEXT = st.text(max_size=60).filter(str.isprintable)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "layout": TEXT,
        "values": st.integers(0, 2**63 - 1),
        "input": TEXT,
        "target": TEXT,
        "labels": TEXT,
        "task": TEXT,
        "scale": TEXT,
        "base": TEXT,
        "start": st.lists(st.floats(-1e300, 1e300), max_size=8),
    },
)
NAMES = st.text() | st.sampled_from(["start", "values", "task"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=12,
)


@given(FACTS)
def test_what_is_sent_is_what_is_read(facts: dict) -> None:
    mine = Agreement(facts)
    theirs = Agreement.from_json(mine.to_json())
    assert theirs == mine
    assert difference(mine, theirs) == ""


@given(st.one_of(JSON.map(json.dumps), st.text(), st.binary()))
def test_a_strangers_text_is_an_agreement_or_a_decode_error(text: str | bytes) -> None:
    try:
        theirs = Agreement.from_json(text)
    except DecodeError:
        return
    mine = Agreement({"values": 1, "task": "classification", "start": [1.0]})
    sentence = difference(mine, theirs)
    assert sentence == "" or sentence.isprintable()
    assert Agreement.from_json(theirs.to_json()) == theirs


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * MAX_BYTES,
        '{"values":-1}',
        '{"values":' + "9" * 4000 + "}",
        '{"start":[NaN]}',
        '{"start":[' + "9" * 400 + "]}",
        '{"start":[' + "0," * 16 + "0]}",
        '{"start":"1"}',
        '{"task":"two\\nlines"}',
        '{"task":"\\u001b[2J"}',
        '{"task":"' + "a" * 401 + '"}',
        " " * MAX_BYTES + "{}",
        b"\xff\xfe\x00",
    ],
)
def test_text_that_would_do_harm_is_refused(text: str | bytes) -> None:
    with pytest.raises(DecodeError):
        Agreement.from_json(text)


def test_a_fact_of_a_later_version_is_dropped_whatever_it_is() -> None:
    assert Agreement.from_json('{"colour":{"deep":[1]},"values":3}') == Agreement({"values": 3})


def test_a_fact_that_one_side_lacks_is_not_compared() -> None:
    mine, theirs = Agreement({"target": "10 classes"}), Agreement({"input": "uint8 1x8x8"})
    assert difference(mine, theirs) == ""


def test_two_numbers_of_classes_name_the_key_that_cures_them() -> None:
    sentence = difference(Agreement({"target": "8 classes"}), Agreement({"target": "10 classes"}))
    assert sentence.startswith("the target is 8 classes here and 10 classes there: ")
    assert sentence.endswith("set data.classes = 10 on every board")


def test_the_fact_that_explains_most_is_the_one_that_is_named() -> None:
    mine = Agreement({"layout": "aa", "values": 5, "target": "8 classes", "start": [1.0]})
    theirs = Agreement({"layout": "bb", "values": 6, "target": "9 classes", "start": [2.0]})
    assert "data.classes = 9" in difference(mine, theirs)


def test_other_differences_say_both_values_and_a_cure() -> None:
    for name, here, there in [
        ("task", "regression", "classification"),
        ("input", "float32 6", "float32 7"),
        ("target", "10 classes", "float32 10"),
        ("values", 10, 12),
        ("base", "aa", "bb"),
        ("start", [1.5, 2.5], [1.5, 2.75]),
    ]:
        sentence = difference(Agreement({name: here}), Agreement({name: there}))
        assert all(str(value) in sentence for value in (here, there))
        assert ": " in sentence


def test_first_models_of_two_devices_agree_and_of_two_seeds_do_not() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    near = x * np.float32(1.0001)
    other = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    mine = Agreement({"start": sums(x)})
    assert difference(mine, Agreement({"start": sums(near)})) == ""
    assert "run.seed" in difference(mine, Agreement({"start": sums(other)}))
    assert "run.seed" in difference(mine, Agreement({"start": sums(x[::-1].copy())}))
    assert sums(np.empty(0, np.float32)) == [0.0, 0.0, 0.0]


def test_names_in_another_order_are_another_fact_even_beyond_what_is_shown() -> None:
    names = [f"kind of animal number {k}" for k in range(100)]
    swapped = [*names[:-2], names[-1], names[-2]]
    mine = Agreement({"labels": names_fact(names)})
    theirs = Agreement({"labels": names_fact(swapped)})
    assert "data.labels" in difference(mine, theirs)
    assert difference(mine, mine) == ""


def test_our_own_mistakes_are_local_errors() -> None:
    nan = float("nan")
    wrong = {"colour": "red", "values": 1.5, "base": 1, "start": [nan], "task": "a\nb"}
    for facts in [{name: fact} for name, fact in wrong.items()]:
        with pytest.raises(UsageError):
            Agreement(facts)
    wide = dict.fromkeys(("layout", "input", "target"), "😀" * 400)
    with pytest.raises(UsageError, match="4096"):
        Agreement(wide).to_json()
