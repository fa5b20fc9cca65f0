"""Decoding takes at most 4 n bytes and 1 MiB of resident memory besides the model that it writes; n
is the model's values.

What Python alone allocates is test_mutated_frames.py's. Here the system counts, kernels and
libraries included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.codecs.case import Case
from tests.codecs.cases import CASES
from tests.conformance.test_attacks import ERRORS
from tests.fuzz import resident

ONE_THREAD = {"EDGEGOSSIP_THREADS": "1", "OMP_NUM_THREADS": "1"}


def attempts(which: str) -> list[dict[str, Any]]:
    """The lines of `python -m tests.fuzz.resident`."""
    command = [sys.executable, "-m", "tests.fuzz.resident", which]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, check=True, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if "missing" in found[0]:
        pytest.skip(f"resident memory cannot be measured here: {found[0]['missing']}")
    return found


def beyond(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [attempt for attempt in found if attempt["bytes"] > attempt["limit"]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("values", "cases"),
    [
        ("first", resident.DECODERS),  # a line of the list takes half a second
        pytest.param("dense", CASES, marks=pytest.mark.slow),
        pytest.param("sparse", CASES, marks=pytest.mark.slow),
    ],
    ids=["first", "dense", "sparse"],
)
def test_decoding_a_model_of_two_million_values(values: str, cases: Sequence[Case]) -> None:
    found = attempts(values)
    ways = {"into a vector", "added to a vector", "new values", "refused"}
    assert {(a["name"], a["what"]) for a in found} == {(str(case), way) for case in cases for way in ways}
    assert beyond(found) == []
    # What is there when a decoder returns it was seen to come: a measurement that sees nothing
    # finds all of it missing.
    assert min(a["bytes"] for a in found if a["what"] == "new values") > -(2**20)


def test_hostile_frames() -> None:
    found = attempts("attacks")
    assert {attempt["name"] for attempt in found} == set(ERRORS)
    assert beyond(found) == []
