"""Has boards whose data differ step alike, through a coordinator: SCAFFOLD (Karimireddy, Kale,
Mohri, Reddi, Stich, Suresh 2020, arXiv 1910.06378), algorithm 1 with option II.

Each of N boards has a control variate c_i, all zero at first, and c is their mean. A board that a
round asks takes K_i steps of rate gamma_i, g the gradient at y, with its *correction* v_i = c - c_i

    y <- y - gamma_i (g + v_i), from y = x

and then, of the boards S whose updates are used,

    c_i' = c_i - c + (x - y_i) / (K_i gamma_i);   x <- x + sum_S w_i (y_i - x);   c <- sum_N p_i c_i

with p_i = n_i / sum_N n_j by the examples of *all* boards: c is the gradient of what all train. In
the paper all n_i are alike, and the last formula is its c <- c + sum_S (c_i' - c_i) / N.

Who keeps what. The coordinator keeps every c_i, and computes c anew from them, so that it is their
mean by construction. It can: c_i' = (x - y_i) / (K_i gamma_i) - v_i is the mean of the gradients
that a board stepped along, and both parts have passed through the coordinator's hands. It takes y_i
- x as the codec of updates left it, and v_i as that of the way down did. A board keeps nothing. It
is sent its v_i beside each model, from which it trains and which it forgets. So an update that is
late, lost or refused changes no c_i; neither does a board that lost its disk; and all that a
coordinator needs to go on is in its own checkpoint.

Were boards to keep c_i, as in the paper, one frame for all could carry c. But a board would have to
be told which of its updates were used, and one that loses its disk takes a c_i along that is still
part of c. The price of the other way is a frame for each board, and N vectors of the trained values
at the coordinator, in memory and in its checkpoint; 2 N where the way down loses something.

Deviations. (1) w_i is a board's share of the examples in S, unless server.weighting = uniform: then
w_i = 1 / |S| and p_i = 1 / N as in the paper. How many examples a board has is known once it was
heard; until then it counts as much as the mean of those that were. (2) The server's step is 1;
`outer` = heavy-ball with momentum 0 has another. (3) An update with a mean gradient GRADIENT_RATIO
times as long as the round's typical one leaves c_i: its K gamma is next to nothing, or not what it
says. (4) A board of which nothing was used while TURNS updates a board were, as it is gone, left
out or always late, is again like one that was never heard: its gradient of long ago would pull the
model away from the optimum of the others, without end. (5) Values that are not trained (statistics
of batch norm) have no correction. (6) A control variate goes only a part of the way to c_i', 1 / (1
+ e^2), where e is the relative error of the updates' codec: c_i' has the noise of an update, and
all of it would make the next update longer than the last from e = 1 on, without end. It is the rule
of DIANA (Mishchenko, Gorbunov, Takac, Richtarik 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgegossip.codecs.base import Codec
from edgegossip.codecs.checks import all_finite
from edgegossip.gossip.averaging import follows, lost_of_normal, on_probe
from edgegossip.types import NodeId, Vec

GRADIENT_RATIO = 30.0  # a board of other data has a longer one, near the optimum of all
TURNS = 10  # of N boards drawn at random, one a round or more, hardly any waits so long


def way_of(codec: Codec[Any], values: int) -> float:
    """Return the part of the way that control variates go, with the codec of the updates of a model
    with so many values; of one whose rate follows the link, for its coarsest messages."""
    if follows(codec):
        from edgegossip.codecs import auto  # here: a board has in memory what its run needs

        codec = auto.Auto(bytes=1)  # as few as there may be
    return 1.0 / (1.0 + lost_of_normal(on_probe(codec, values)))


class ControlVariates:
    """Keeps c_i of all boards, and c, their weighted mean. `boards`: how many the run has, N;
    `size`, `trained`: values of the model, and of those the first so many that are trained; `way`:
    the part of the way that a control variate goes.

    Example:
        correction = controls.correction("board-0")  # what its steps add to their gradients
        controls.used("board-0", controls.gradient(sent, correction, 20 * 0.05), weight=60.0)
        controls.settle()  # once a round
    """

    def __init__(self, boards: int, size: int, trained: int, way: float) -> None:
        self._boards, self._trained, self._way = boards, trained, way
        self._own: dict[NodeId, Vec] = {}  # c_i, float32[trained]; zero where none is
        self._heard: dict[NodeId, tuple[float, int]] = {}  # what a board counts for, and updates used since
        self.mean: Vec = np.zeros(size, np.float32)

    def correction(self, board: NodeId) -> Vec:
        """Return c - c_i, float32[size], not to be written to."""
        correction = self.mean
        if board in self._own:
            correction = correction.copy()
            correction[: self._trained] -= self._own[board]
        return correction

    def gradient(self, sent: Vec, correction: Vec, steps_rate: float) -> Vec:
        """Return the mean gradient of an update's steps, float32[trained]: `sent` float32[size] as
        it arrived, `correction` float32[size] as the board had it, `steps_rate` K gamma, above
        0."""
        with np.errstate(over="ignore", invalid="ignore"):
            found: Vec = sent[: self._trained] / np.float32(-steps_rate)
            found -= correction[: self._trained]
        return found

    def used(self, board: NodeId, gradient: Vec | None, weight: float) -> None:
        """Take note of an update that is part of the model; None leaves c_i."""
        self._heard[board] = (weight, 0)
        if gradient is None or not all_finite(gradient):
            return
        own = self._own.get(board, np.zeros(self._trained, np.float32))
        self._own[board] = gradient if self._way == 1.0 else own + np.float32(self._way) * (gradient - own)

    def settle(self) -> None:
        """Make c anew of all c_i, after a round whose updates were noted."""
        used = sum(since == 0 for _, since in self._heard.values())
        self._heard = {
            name: (weight, since + used)
            for name, (weight, since) in sorted(self._heard.items())
            if since + used <= TURNS * self._boards
        }
        self._own = {name: own for name, own in self._own.items() if name in self._heard}
        self._average()

    def _average(self) -> None:
        mean = np.zeros_like(self.mean)  # the one before is on its way to boards
        total = sum(weight for weight, _ in self._heard.values()) * self._boards / max(1, len(self._heard))
        for name in sorted(self._own):
            mean[: self._trained] += np.float32(self._heard[name][0] / total) * self._own[name]
        self.mean = mean

    def snapshot(self) -> Mapping[str, Any]:
        """Return the state; arrays in it are not written to afterwards."""
        return {"of": dict(self._own), "heard": dict(self._heard)}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave."""
        self._own, self._heard = dict(snapshot["of"]), dict(snapshot["heard"])
        self._average()
