"""Student's t behind the verdicts: known quantiles, and as few false alarms with few draws as with
many."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgegossip import verify
from edgegossip.codecs.claims import Claims
from edgegossip.verify import sigmas

OUTSIDE = math.erfc(4 / math.sqrt(2))  # 6.3e-5, of a normal value beyond 4 standard deviations


def test_closed_forms_of_one_and_two_degrees() -> None:
    assert sigmas(2) == pytest.approx(1 / math.tan(math.pi * OUTSIDE / 2), rel=1e-6)
    within = 1 - OUTSIDE
    assert sigmas(3) == pytest.approx(within * math.sqrt(2 / (1 - within**2)), rel=1e-6)


def test_few_draws_raise_no_false_alarm() -> None:
    rng = np.random.default_rng(5)
    alarms = sum(not verify._gain(1 + 0.3 * rng.standard_normal(4), Claims(True)).passed for _ in range(20_000))
    assert alarms <= 8  # 1.3 on average; 4 standard deviations of four draws would give 560
    assert not verify._gain(np.array([1.5, 1.51, 1.49, 1.5]), Claims(True)).passed
