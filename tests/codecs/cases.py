"""The conformance list: every codec that the laws are held to, with what its file claims.

A new codec is one line here; all laws (test_laws.py, test_laws_machines.py, test_unbiased.py), the
golden vectors and the fuzz tests then know it. A codec with parameters has a line for each set
of them that takes another path.
"""

from __future__ import annotations

import copy
import functools
import os

import numpy as np

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec
from tests.codecs.bounds import (
    a_rotation_and,
    dropped,
    either,
    exact,
    half_a_common_step,
    half_a_step,
    nearest_bfloat16,
    nearest_binary16,
    own_norm,
    own_norm_times,
    own_size,
    own_size_times,
    scaled_by_n_over_k,
)
from tests.codecs.case import Case, Memory, case
from tests.codecs.cases_quantised import CASES as QUANTISED

# dgc without clipping: v + (m u + x) is what is sent and what stays.
MOMENTUM = Memory(
    before=lambda x, state: state.v.astype(np.float64) + 0.9 * state.u.astype(np.float64) + x,
    after=lambda state: state.v,
)


def error_feedback(decay: float) -> Memory:
    return Memory(
        before=lambda x, state: x.astype(np.float64) + decay * state.error.astype(np.float64),
        after=lambda state: state.error,
    )


CASES: tuple[Case, ...] = (
    case("fp32", bound=exact),
    case("fp16", bound=nearest_binary16),
    case("bf16", bound=nearest_bfloat16),
    case("minmax8", bound=half_a_step),
    case("topk", bound=dropped(0.01)),
    case("topk", {"ratio": 0.2, "values": "fp16"}, bound=either(dropped(0.2), nearest_binary16)),
    case("randk", {"ratio": 0.3}, bound=scaled_by_n_over_k(0.3), unbiased=True, random=True),
    case("randk", {"ratio": 0.6, "unbiased": False}, bound=own_size, random=True),
    case("dgc", {"ratio": 0.1}, bound=dropped(0.1), memory=MOMENTUM),
    case(
        "dgc",
        {"ratio": 0.05, "values": "fp16", "warmup_rounds": 10, "clip": 0.5},
        bound=either(own_size, nearest_binary16),
        uses=frozenset({"round"}),
    ),
    case("atomo", unbounded="a sampled atom is s / p times its size", unbiased=True, random=True),
    case("atomo", {"rank": 1}, unbounded="a sampled atom is s / p times its size", unbiased=True, random=True),
    case("powersgd", norm_bound=own_norm, memory=error_feedback(1.0)),
    case(
        "powersgd",
        {"rank": 1, "values": "fp16", "decay": 0.5},
        norm_bound=own_norm_times(1.01),
        memory=error_feedback(0.5),
    ),
    case("dither", bound=half_a_common_step(0.25), unbiased=True, random=True),
    case("dither", {"error": 1.0, "allocation": 0.5}, unbounded="tensors differ in steps", unbiased=True, random=True),
    case("dither", {"error": 4.0}, bound=half_a_common_step(4.0), unbiased=True, random=True),
    case("dither", {"bytes": 400}, unbounded="as fine as the bytes allow", unbiased=True, random=True),
    case("auto", bound=half_a_common_step(0.5), unbiased=True, random=True),
    case("auto", {"bytes": 300}, unbounded="as fine as the bytes allow", unbiased=True, random=True),
    case("deadzone", bound=own_size_times(1.25)),
    case("deadzone", {"bytes": 300}, bound=own_size_times(1.25)),
    case("deadzone", {"step": 0.01, "allocation": 1.0}, bound=own_size_times(1.25)),
    case("sparseloco", norm_bound=own_norm_times(1.001)),
    case("sparseloco", {"ratio": 0.3, "chunk": 16}, norm_bound=own_norm_times(1.001)),
    *(
        case("eden", {"bits": bits} if bits != 2 else {}, norm_bound=a_rotation_and(share), unbiased=True, random=True)
        for bits, share in ((2, 0.7), (1, 1.4), (3, 0.4), (4, 0.25))
    ),
    *(c for c in QUANTISED if c.name in codecs.names()),
)

# The first line of each codec, and what other parameters there are.
FIRST = tuple({case.name: case for case in reversed(CASES)}.values())[::-1]
MORE = tuple(case for case in CASES if case not in FIRST)

SCALES = (1e-44, 1e-38, 1e-6, 1.0, 300.0, 1e6, 1e30, 3.4e38)
OFFSETS = (0.0, 0.0, 0.0, 1.0, -1e3, 1e6, 1e37)
SHAPES = (
    (),
    (0,),
    (1,),
    (2,),
    (7,),
    (64,),
    (600,),
    (0, 3),
    (1, 1),
    (2, 3),
    (5, 1),
    (7, 7),
    (12, 40),
    (3, 2, 2),
    (4, 3, 3, 3),
)


def seeds(count: int) -> list[int]:
    """So many numbers for `model`: the same ones each time, others with HYPOTHESIS_PROFILE=explore.
    Hypothesis itself would take three times as long for one number as a codec takes for all its
    laws, and has nothing in it to make smaller."""
    entropy = None if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 0
    return [int(seed) for seed in np.random.SeedSequence(entropy).generate_state(count)]


def model(seed: int) -> tuple[Layout, Vec, np.random.Generator]:
    """A layout of one to four tensors, some of them empty or scalar, finite values of very
    different sizes in them, and a generator for all that an example draws besides. All of it
    follows from the seed, and the caller may change it."""
    layout, x, rng = _model(seed)
    return layout, x.copy(), copy.deepcopy(rng)


@functools.cache  # each codec gets the same ones
def _model(seed: int) -> tuple[Layout, Vec, np.random.Generator]:
    rng = np.random.default_rng(seed)
    shapes = [SHAPES[k] for k in rng.integers(len(SHAPES), size=rng.integers(1, 5))]
    layout = Layout.of(TensorSpec(f"t{k}", shape) for k, shape in enumerate(shapes))
    return layout, values(layout, rng), rng


def values(layout: Layout, rng: np.random.Generator) -> Vec:
    """Finite float32[n]: every tensor with its own scale, offset, share of zeros and weight of
    tails."""
    parts = []
    for t in layout.tensors:
        v = rng.standard_normal(t.size) if rng.random() < 0.5 else np.power(rng.standard_normal(t.size), 5)
        v *= rng.choice(SCALES)
        v *= rng.random(t.size) < rng.choice((1.0, 1.0, 0.5, 0.02, 0.0))
        parts.append(v + rng.choice(OFFSETS))
    limit = np.finfo(np.float32).max
    return np.clip(np.concatenate(parts), -limit, limit).astype(np.float32)
