"""Says what an algorithm bears around it. Each declares its own, beside its mathematics. Who
decides by it (`order.py`, `robust.py`, `outer.py`, training's checks, `plan`) asks for a trait, not
for a name: so a new algorithm is one file.

A step and its mixing go in one of two orders. The names are BlueFog's, and those of diffusion
strategies (Sayed, "Adaptation, learning, and optimization over networks", 2014)."""

from __future__ import annotations

from dataclasses import dataclass

WITH, THEN = "adapt-with-combine", "adapt-then-combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Lists what may be put around an algorithm. A reason against something is the end of a
    sentence about the algorithm; empty: there is none."""

    orders: tuple[str, ...]  # of step and mixing, of WITH and THEN
    one_order: str = ""  # why there is no other
    unbounded: str = ""  # why liars cannot be bounded
    no_outer: str = ""  # why no outer optimiser goes around it
    in_differences: str = ""  # the algorithm of its kind that sends differences, where this one sends models
    plain: bool = False  # it mixes models as they are, by a matrix, so that parts of them may stay behind
    corrects_steps: bool = False  # each local step follows a correction
    takes_gradients: bool = False  # it takes a board's step for its gradient times the learning rate
    repeats: bool = False  # what one round got wrong comes again in every later one
