"""Has boards whose data differ step alike, through a coordinator: SCAFFOLD (Karimireddy, Kale,
Mohri, Reddi, Stich, Suresh 2020), algorithm 1 with option II.

Board i keeps a control variate c_i and the coordinator their mean c, all zero at first. A round is
K steps of rate gamma on each board, g the gradient at y,

    y <- y - gamma (g + c - c_i), from y = x;   c_i' = c_i - c + (x - y) / (K gamma)

and then, of the boards S that were heard out of N,

    x <- x + sum_S w_i (y_i - x);   c <- c + |S| / N sum_S w_i (c_i' - c_i)

What a board adds to its gradients, c - c_i, is its *correction*. Since c_i' - c_i = (x - y_i) / (K
gamma) - c, the coordinator knows it from the update: c travels down beside the model, as the model
does, and nothing but the update goes up. Both ends take what arrived for y_i - x, so with equal
weights c is the mean of all c_i, whatever the updates' codec loses.

Deviations. (1) w_i is a board's share of the examples, unless server.weighting = uniform: the
paper's 1 / |S|. (2) The server's step is 1; `outer` = heavy-ball with momentum 0 has another. (3)
The coordinator takes one K gamma for all, the median. (4) An update that is late or refused is in
c_i and not yet in c: until the board is heard again. (5) Values that are not trained (statistics of
batch norm) have no correction. (6) Control variates go only a part of the way, 1 / (1 + e^2), where
e is the relative error of the updates' codec: c_i' - c_i has the noise of an update, e |g + c -
c_i|, and all of it would make the next update longer than the last from e = 1 on, without end. It
is the rule of DIANA (Mishchenko, Gorbunov, Takac, Richtarik 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.codecs.checks import all_finite
from edgegossip.gossip.averaging import lost_of_normal, on_probe
from edgegossip.types import Vec


def way_of(codec: Codec[Any], values: int) -> float:
    """Return the part of the way that control variates go, with the codec of the updates of a model
    with so many values; of one whose rate follows the link, for its coarsest messages."""
    if codecs.leaves_rate(codec):
        from edgegossip.codecs import auto  # here: a board has in memory what its run needs

        codec = codec if auto.chosen(codec) is None else auto.Auto(bytes=1)  # as few as there may be
    return 1.0 / (1.0 + lost_of_normal(on_probe(codec, values)))


def control_of_board(own: Vec, control: Vec, sent: Vec, steps_rate: float, way: float = 1.0) -> Vec:
    """Return c_i', float32[trained], of a board that had c_i (`own`) and c (`control`) in a round,
    and whose update arrives as `sent`; `steps_rate` is K gamma, `way` the part of the way that it
    goes. A round without a step leaves c_i.

    Example:
        own = control_of_board(own, control, codec.decode(body, layout), 20 * 0.05)
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        change: Vec = control + sent[: len(own)] / np.float32(steps_rate)
        after: Vec = own - np.float32(way) * change
    return after if all_finite(after) else own


def control_of_all(control: Vec, moved: Vec, steps_rate: float, share: float) -> Vec:
    """Return c of the next round, float32[trained], where the updates of a `share` |S| / N of the
    boards moved the model by `moved` on average; times the part of the way that each goes. A round
    without a step leaves c."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        change: Vec = control + moved[: len(control)] / np.float32(steps_rate)
        after: Vec = control - np.float32(share) * change
    return after if all_finite(after) else control
