"""Boards of a study that heat up: the first `heat.boards` of them, in virtual time.

A board is one thermal mass over one resistance (a first-order model, as in JEDEC JESD51-14 with
one stage): with P watts its temperature goes to ambient_c + k_per_w * P, and 1 - 1/e of the way
there in k_per_w * j_per_k seconds. It takes idle_w, and busy_w while it computes. At throttle_c its
kernel holds the clock down to `clock` of what it was, until it is CLEARS_C cooler; the power above
idle_w is then clock^2 of what it was, between that of a clock alone (clock^1) and of a clock with
its voltage (clock^3). At off_c it is gone for good.

The defaults are those of a bare Raspberry Pi 4 in a room: 2.9 W idle and 6.4 W with four busy
cores, 57 degrees idle, and 80 after three minutes of work. They are rounded from what users
publish; nothing was measured. It switches off at 90 degrees, the critical trip of Linux's device
tree for it (bcm283x.dtsi). The recipe's [guard] is in force on these boards, with the policy and
the fewer steps that a board has (`node/guard.py`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgegossip.node.guard import Guard
from edgegossip.options import REQUIRED, filled, option
from edgegossip.recipe import Recipe
from edgegossip.types import ConfigError

PREFIX = "heat."  # of the keys of a study's case that are no recipe's
CLEARS_C = 3.0
_CLOSE_S = 1e-9  # of work: what is left by the rounding of crossings


@dataclass(frozen=True, slots=True)
class HeatModel:
    """Says how many boards heat up, and what they are like."""

    boards: int = option(REQUIRED, "how many, the first ones", low=0)
    ambient_c: float = option(25.0, "around them", low=-40.0, high=100.0)
    k_per_w: float = option(11.0, "thermal resistance", low=0.01, high=1000.0)
    j_per_k: float = option(17.0, "thermal mass", low=0.01, high=1e6)
    idle_w: float = option(2.9, "power without work", low=0.0, high=1000.0)
    busy_w: float = option(6.4, "power at work", low=0.0, high=1000.0)
    throttle_c: float = option(80.0, "where the clock is held down", low=0.0, high=200.0)
    clock: float = option(0.6, "to this share of it", low=0.05, high=1.0)
    off_c: float = option(90.0, "where they switch off", low=0.0, high=200.0)

    @classmethod
    def of(cls, settings: Mapping[str, Any], recipe: Recipe) -> HeatModel | None:
        """Read the keys heat.boards, and those of the docstring above; None without. Raises
        ConfigError."""
        if not settings:
            return None
        asked = filled(cls, settings, PREFIX)
        if asked.boards > recipe.run.nodes:
            nodes = recipe.run.nodes
            raise ConfigError(f"heat.boards = {asked.boards}: the run has {nodes} boards; the nearest is {nodes}")
        if recipe.run.mode != "gossip":
            raise ConfigError(f"heat.boards = {asked.boards} needs run.mode = gossip")
        if asked.busy_w < asked.idle_w:
            raise ConfigError(f"heat.busy_w = {asked.busy_w:g} must be at least heat.idle_w")
        return asked if asked.boards else None


class HotBoard:
    """Is one board's temperature and guard, from where it has idled for long. Its times do not go
    back."""

    def __init__(self, model: HeatModel, guard: Guard) -> None:
        self._model, self.guard = model, guard
        self.temperature_c = model.ambient_c + model.k_per_w * model.idle_w
        self.hottest_c = self.temperature_c
        self.throttled = False
        self.throttled_s = 0.0  # so far
        self._at_s = 0.0

    def begin(self, now_s: float) -> None:
        """Let the board idle until now, and its guard look at the sensors."""
        self._pass(now_s - self._at_s, self._model.idle_w)
        self.guard.take({"sys/temperature_c": self.temperature_c, "sys/throttled": float(self.throttled)}, now_s)

    def compute(self, work_s: float) -> tuple[float, bool]:
        """Compute what takes so many seconds at full clock. Return when it is done, or when the
        board is gone, and whether it is gone."""
        model = self._model
        while work_s > _CLOSE_S:
            clock = model.clock if self.throttled else 1.0
            watts = model.idle_w + (model.busy_w - model.idle_w) * clock**2
            ends = {
                "done": work_s / clock,
                "off": self._rises_s(model.off_c, watts),
                "throttle": math.inf if self.throttled else self._rises_s(model.throttle_c, watts),
                "clear": self._falls_s(model.throttle_c - CLEARS_C, watts) if self.throttled else math.inf,
            }
            what = min(ends, key=lambda end: ends[end])
            self.throttled_s += ends[what] if self.throttled else 0.0
            self._pass(ends[what], watts)
            work_s -= clock * ends[what]
            if what == "off":
                return self._at_s, True
            if what in ("throttle", "clear"):
                self.throttled = what == "throttle"
        return self._at_s, False

    def _rises_s(self, degrees: float, watts: float) -> float:
        """Seconds until it is as hot as that: 0 where it is, inf where it never will be."""
        return 0.0 if self.temperature_c >= degrees else self._crosses_s(degrees, watts)

    def _falls_s(self, degrees: float, watts: float) -> float:
        return 0.0 if self.temperature_c <= degrees else self._crosses_s(degrees, watts)

    def _crosses_s(self, degrees: float, watts: float) -> float:
        final = self._model.ambient_c + self._model.k_per_w * watts
        now, then = final - self.temperature_c, final - degrees
        if now * then <= 0.0 or abs(then) > abs(now):
            return math.inf
        return self._model.k_per_w * self._model.j_per_k * math.log(now / then)

    def _pass(self, seconds: float, watts: float) -> None:
        final = self._model.ambient_c + self._model.k_per_w * watts
        left = math.exp(-max(0.0, seconds) / (self._model.k_per_w * self._model.j_per_k))
        self.temperature_c = final + (self.temperature_c - final) * left
        self.hottest_c = max(self.hottest_c, self.temperature_c)
        self._at_s += max(0.0, seconds)
        if self.temperature_c >= self._model.throttle_c:
            self.throttled = True
        elif self.temperature_c <= self._model.throttle_c - CLEARS_C:
            self.throttled = False
