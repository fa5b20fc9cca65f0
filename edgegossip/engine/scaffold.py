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
batch norm) have no correction."""

from __future__ import annotations

import numpy as np

from edgegossip.codecs.checks import all_finite
from edgegossip.types import Vec


def control_of_board(own: Vec, control: Vec, sent: Vec, steps_rate: float) -> Vec:
    """Return c_i', float32[trained], of a board that had c_i (`own`) and c (`control`) in a round,
    and whose update arrives as `sent`; `steps_rate` is K gamma. A round without a step leaves c_i.

    Example:
        own = control_of_board(own, control, codec.decode(body, layout), 20 * 0.05)
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        after: Vec = own - control - sent[: len(own)] / np.float32(steps_rate)
    return after if all_finite(after) else own


def control_of_all(control: Vec, moved: Vec, steps_rate: float, share: float) -> Vec:
    """Return c of the next round, float32[trained], where the updates of a `share` |S| / N of the
    boards moved the model by `moved` on average. A round without a step leaves c."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        change: Vec = control + moved[: len(control)] / np.float32(steps_rate)
        after: Vec = control - np.float32(share) * change
    return after if all_finite(after) else control
