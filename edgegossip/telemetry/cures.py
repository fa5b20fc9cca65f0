"""Names what helps against what a verdict finds, by what the recipe has set already."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from edgegossip.agreement import unlike
from edgegossip.gossip.averaging import COARSE, lost_of_normal
from edgegossip.gossip.base import Says
from edgegossip.gossip.order import mixes_before_steps
from edgegossip.gossip.robust import guard_of
from edgegossip.telemetry.evidence import Outcome
from edgegossip.types import NodeId

MUTE = 0.99  # of a message is lost: it says next to nothing
MOSTLY = 0.8  # of all examples in one class: guessing that is hard to beat, at any learning rate
MOST_NAMED = 4
ROUNDING, _OF_A_BYTE = 1e-5, 1e-2  # of a vector's energy: what codecs lose that say floats, or a byte a value
_FINENESS = {"error": "lower", "step": "lower", "bytes": "raise", "ratio": "raise", "bits": "raise"}  # a codec's


class Cures:
    """Finds the cures of one run."""

    def __init__(self, of: Outcome) -> None:
        self._of, self._plan, self._algorithm = of, of.plan, of.plan.algorithm

    def for_chance(self) -> str:
        """Return what helps where nothing was learnt. What the data say comes first, for then no
        learning rate helps."""
        if doubted := self.doubted():
            return doubted
        if (guess := self._plan.guess) is not None and guess > MOSTLY:
            share = "all" if guess == 1.0 else percent(guess)
            return f"look at the data first: {share} of the training examples are of one class; balance the classes"
        if self._of.all_better_alone:
            return f"each board learnt by itself: {self._finer_first()}{self.for_mixing()}"
        lr, script = self._plan.lr, self._plan.script
        said = f" in {script}" if script else "" if lr is None else f" (training.lr = {lr:g})"
        look = f"look at the learning rate{said}, the labels and the inputs' scale; train one board alone first"
        return self._finer_first() + look

    def for_divergence(self) -> str:
        """Return what helps where the training loss rose."""
        if doubted := self.doubted():
            return doubted
        if self._of.all_better_alone:
            return f"each board learnt by itself: {self.for_mixing()}"
        lr, eta, script = self._plan.lr, self._plan.eta, self._plan.script
        where = f" in {script}" if script else ""
        lower = f"lower the learning rate{where}" if lr is None else f"training.lr = {lr:g}: try a tenth of it"
        return self._finer_first() + lower + (f"; or a lower gossip.params.eta than {eta:g}" if eta else "")

    def for_apart(self) -> str:
        """Return what helps where boards hold different models. What was set comes first."""
        if apart := self.unlike():
            return apart
        eta = self._plan.eta
        set_by_hand = "" if eta is None else f"leave gossip.params.eta = {eta:g} out: it then goes by the codec"
        lower = "learning rate" if self._plan.script else "training.lr"
        order = "; gossip.order = adapt-then-combine for many steps a round" if self._mixes_before_steps else ""
        more = f"take a denser topology, a lower {lower}, or more rounds; gossip.momentum for uneven data{order}"
        return "; or ".join(filter(None, [set_by_hand, self.finer(), more]))

    def for_mixing(self) -> str:
        """Return what helps where boards learn by themselves, and not together."""
        order = ", or say gossip.order = adapt-then-combine, which mixes after a round's steps"
        return "exchange after fewer steps" + (order if self._mixes_before_steps else "")

    def for_liars(self) -> str:
        """Return what bounds a board that lies, as far as was measured
        (lab/results/pages/poisoning.md)."""
        if self._plan.get("run", "mode") == "server":
            return (
                "no server.strategy holds against every lie (fedtrimmedavg with server.malicious_nodes lost least), "
                "run.mode = gossip with gossip.malicious_nodes bounds them better"
            )
        algorithm = self._algorithm
        guard = "gossip.malicious_nodes" if algorithm is None else guard_of(algorithm.traits)
        return f"{guard} bounds what it can do"

    def finer(self) -> str:
        """Return how messages become finer; empty where they are exact, or nearly."""
        codec, params = self._plan.codec, self._plan.get("codec", "params")
        if codec is None:
            return ""
        key = next((key for key in _FINENESS if isinstance(params, Mapping) and params.get(key)), "")
        lost = lost_of_normal(codec)
        if key:
            finer = f"{_FINENESS[key]} codec.params.{key} = {params[key]:g}"
        elif lost < ROUNDING:
            return ""
        else:
            such = "fp16" if lost < _OF_A_BYTE else "8-bit-elastiquant"
            finer = f"take a finer codec than {self._plan.get('codec', 'name')}, such as {such}"
        instead = self._in_differences
        return finer + (f", or take {instead}, which sends differences" if instead else "")

    def doubted(self) -> str:
        """Return what keeps half of the boards from learning in their data, or together; else
        empty."""
        if apart := self.unlike():
            return apart
        boards = set(self._of.boards)
        for why, of in sorted(self._of.evidence.doubts.items(), key=lambda item: -len(item[1])):
            if 2 * len(of & boards) >= len(boards):
                return f"look at the data first: at {named(sorted(of))} {why}"
        return ""

    def unlike(self) -> str:
        """Return whose inputs are of another size than the others'; else empty."""
        apart = unlike(self._of.evidence.sizes)  # those of boards that were lost as well
        return apart and f"look at the data first: {apart}"

    def _finer_first(self) -> str:
        """The beginning of a cure where messages lose more than training bears; else empty."""
        boards = self._of.boards
        lost = max((board.lost for board in boards.values()), default=0.0)
        bears = COARSE if self._in_differences else MUTE
        if self.sends_updates:  # whose errors average out
            bears = math.sqrt(len(boards))
        finer = self.finer() if lost > bears else ""
        return finer and f"{finer}: a message loses {lost:.2g} times its length; then "

    @property
    def sends_updates(self) -> bool:
        """Whether all boards' updates are averaged, or their gradients."""
        served = self._plan.get("run", "mode") == "server"
        return served or (self._algorithm is not None and self._algorithm.says is Says.UPDATES)

    @property
    def _in_differences(self) -> str:
        """The algorithm that sends differences where this run's sends whole models; else empty."""
        return "" if self._algorithm is None else self._algorithm.traits.in_differences

    @property
    def _mixes_before_steps(self) -> bool:
        """Whether models travel as they are before a round's steps: many steps then overshoot."""
        return self._algorithm is not None and mixes_before_steps(self._algorithm)


def percent(share: float) -> str:
    """Return a share as text, such as "98.2 %"."""
    return f"{100 * share:.3g} %"


def named(nodes: Iterable[NodeId]) -> str:
    """Return "a", "a and b", "a, b, c and 5 more"."""
    names = list(nodes)
    if len(names) > MOST_NAMED:
        names = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
