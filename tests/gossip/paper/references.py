"""The papers' algorithms on dense matrices in float64: row i of a matrix is node i's vector. Slow
and plain; nothing here knows of the package. Each gives the models of round 1, 2, ... (and what
else it keeps).

With `Run.held` a public copy is kept as float32, as everybody who holds one does: with a codec that
rounds, the references go on with what was sent (compression.py), and sums of it that are rounded
otherwise would drift from the nodes', which make up for it.

Names: gamma the learning rate, eta the averaging rate, C the compression, W[i, j] the weight at i
of what j sends. "LP" is Aketi et al., "Low precision decentralized distributed training with
heterogeneous data" (2021), whose algorithms 2 to 5 these are. Where the package deviates on
purpose, a comment says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.gossip.paper.momentum import Momentum, Plain

Array = np.ndarray  # float64
Mix = Callable[[Array, Array], Array]  # W and what is public -> what each node adds


def as_it_is(x: Array) -> Array:
    return x


@dataclass(frozen=True)
class Run:
    """What a reference is given."""

    w: Callable[[int], Array]  # round -> float64[nodes, nodes]
    x0: Array  # float64[nodes, n]
    g: Callable[[int, int, Array], Array]  # (round, node, model) -> float64[n]
    lr: Callable[[int], float]
    eta: float
    c: Callable[..., Array]  # (round, node, vector) -> float64[n]; part=1: of the second vector of a round
    rounds: int
    period: int = 1  # of w
    momentum: Momentum = field(default_factory=Plain)
    zero_start: bool = True  # of public copies, as in the papers; else they start at the initial models

    held: Callable[[Array], Array] = as_it_is  # what is left of a public copy in the memory of those who hold it

    def hats(self) -> list[Array]:
        """Public copies at the start, one for every round of the period."""
        return [np.zeros_like(self.x0) if self.zero_start else self.x0.copy() for _ in range(self.period)]

    def local(self, t: int, z: Array) -> Array:
        """gamma times the direction of every node, at its model z_i."""
        rows = [self.momentum.direction(i, self.g(t, i, z[i])) for i in range(len(z))]
        return self.lr(t) * np.stack(rows)

    def compress(self, t: int, v: Array, **of_two: int) -> Array:
        return np.stack([self.c(t, i, v[i], **of_two) for i in range(len(v))])

    def mixed(self, t: int, before: Array, after: Array) -> Array:
        for i in range(len(before)):
            self.momentum.mixed(i, before[i], after[i], self.lr(t))
        return after


@dataclass(frozen=True)
class Point:
    """After a round."""

    z: Array  # the models to train and evaluate, float64[nodes, n]
    x: Array  # push-sum: before de-biasing
    u: Array  # push-sum weights, float64[nodes]; ones elsewhere


def lightened(u: Array) -> Array:
    """Deviation: the local update of a node whose push-sum weight is below 0.1 counts u / 0.1
    times."""
    return np.minimum(1.0, u / 0.1)[:, None]


def plain(x: Array) -> Point:
    return Point(x, x, np.ones(len(x)))


def clipped_gossip(w: Array, p: Array, malicious: int) -> Array:
    """He, Karimireddy, Jaggi 2022, algorithm 1, line 6, without x_i itself: sum_j W_ij CLIP(p_j -
    p_i, tau_i), CLIP(z, tau) = min(1, tau / ||z||) z. The authors' experiments take for tau_i the
    second largest of the distances to the neighbours, and have one attacker among them."""
    pulls = []
    for i in range(len(p)):
        away = {j: p[j] - p[i] for j in range(len(p)) if j != i and w[i, j] > 0}
        tau = sorted(np.linalg.norm(z) for z in away.values())[-1 - malicious]
        pulls.append(sum(w[i, j] * z * min(1.0, tau / max(np.linalg.norm(z), 1e-300)) for j, z in away.items()))
    return np.stack(pulls)


class Tie(Exception):
    """Says that rounding decides who is left out, so that two implementations part."""


def nearest_neighbours(w: Array, p: Array, malicious: int) -> Array:
    """Farhadkhani et al. 2023, algorithm 1, line 7 (NNA), with W_ij in place of 1 / (n - f): of the
    neighbours' models the f farthest from p_i are left out, and p_i takes their place. Raises
    Tie."""
    mixed = []
    for i in range(len(p)):
        far = {j: float(np.linalg.norm(p[j] - p[i])) for j in range(len(p)) if j != i and w[i, j] > 0}
        *_, kept, first = sorted(far.values())[: len(far) - malicious + 1]
        if first - kept < 1e-4 * first:
            raise Tie
        farthest = sorted(far, key=lambda j: far[j])[-malicious:]
        mixed.append(sum(w[i, j] * (p[i] if j in farthest else p[j]) for j in range(len(p))))
    return np.stack(mixed) - p


def gossip(w: Array, p: Array) -> Array:
    """sum_j W_ij (p_j - p_i)."""
    return (w - np.eye(len(p))) @ p


def dpsgd(run: Run, *, mix: Mix = gossip) -> Iterator[Point]:
    """Lian et al. 2017, algorithm 1: x <- sum_j W_ij x_j - gamma g_i(x_i). With a codec, neighbours
    see C[x_j]; of what is taken for C[x_i] a node takes the same off itself, so that the mean
    stays."""
    x = run.x0
    for t in range(run.rounds):
        seen = run.compress(t, x)
        x = run.mixed(t, x, x + run.eta * mix(run.w(t), seen) - run.local(t, x))
        yield plain(x)


def dpsgd_after_the_step(run: Run, *, mix: Mix = gossip) -> Iterator[Point]:
    """Lin et al. 2021, "Quasi-global momentum", algorithm 1 (adapt-then-combine): x_(t+1/2) = x -
    gamma g(x); x_(t+1) = sum_j W_ij x_(t+1/2),j. With a codec as in `dpsgd`."""
    x = run.x0
    for t in range(run.rounds):
        half = x - run.local(t, x)
        x = run.mixed(t, x, half + run.eta * mix(run.w(t), run.compress(t, half)))
        yield plain(x)


def parallel_choco(run: Run, *, mix: Mix = gossip) -> Iterator[Point]:
    """Koloskova, Lin, Stich, Jaggi 2020, the authors' `ParallelCHOCO.step` (epfml/ChocoSGD,
    dl_code/pcode/optim/parallel_choco.py), line by line: apply the gradient; mix by the public
    copies of the step before; compress and send x - xhat, for the next step. Deviation: what is
    sent before the first step is the initial model, where theirs sends nothing."""
    x, (hat, *_) = run.x0, run.hats()
    hat = run.held(hat + run.compress(0, x - hat))
    for t in range(run.rounds):
        half = x - run.local(t, x)  # apply_gradient
        x = run.mixed(t, x, half + run.eta * mix(run.w(t), hat))  # update_params_from_neighbor
        yield plain(x)
        if t + 1 < run.rounds:
            hat = run.held(hat + run.compress(t + 1, x - hat))  # compressor.pipeline


def deep_squeeze(run: Run, *, mix: Mix = gossip) -> Iterator[Point]:
    """Tang et al. 2019; LP algorithm 2."""
    x, delta = run.x0, np.zeros_like(run.x0)
    for t in range(run.rounds):
        half = x - run.local(t, x)  # 3, 4
        v = half + delta  # 5
        c = run.compress(t, v)  # 6
        delta = v - c  # 7
        x = run.mixed(t, x, half + run.eta * mix(run.w(t), c))  # 10
        yield plain(x)


def choco_sgd(run: Run, *, mix: Mix = gossip) -> Iterator[Point]:
    """Koloskova et al. 2019; LP algorithm 3. On a graph that changes with the rounds, a public copy
    for every round of the period: those who hold one have then heard everything that was added to
    it."""
    x, hats = run.x0, run.hats()
    for t in range(run.rounds):
        hat = hats[t % run.period]
        half = x - run.local(t, x)  # 3, 4
        hat[:] = run.held(hat + run.compress(t, half - hat))  # 5, 7
        x = run.mixed(t, x, half + run.eta * mix(run.w(t), hat))  # 9
        yield plain(x)


def sgp(run: Run) -> Iterator[Point]:
    """Assran et al. 2019, "Stochastic gradient push for distributed deep learning", algorithm 1;
    averaging rate and codec as in LP algorithm 4, without its memory."""
    x, u = run.x0, np.ones(len(run.x0))
    z = x
    for t in range(run.rounds):
        w, eye = run.w(t), np.eye(len(x))
        half = x - lightened(u) * run.local(t, z)  # gradient at the de-biased z
        c = run.compress(t, half)
        x = half + run.eta * (w - eye) @ c
        u = u + run.eta * (w - eye) @ u
        z = run.mixed(t, z, x / u[:, None])
        yield Point(z, x, u)


def sparse_push(run: Run) -> Iterator[Point]:
    """Aketi et al. 2021; LP algorithm 4."""
    x, u, delta = run.x0, np.ones(len(run.x0)), np.zeros_like(run.x0)
    z = x
    for t in range(run.rounds):
        w, eye = run.w(t), np.eye(len(x))
        half = x - lightened(u) * run.local(t, z)  # 3, 4
        v = half + delta  # 5
        c = run.compress(t, v)  # 6
        delta = v - c
        x = half + run.eta * (w - eye) @ c  # 9
        u = u + run.eta * (w - eye) @ u
        z = run.mixed(t, z, x / u[:, None])  # 10
        yield Point(z, x, u)


def quant_sgp(run: Run) -> Iterator[Point]:
    """Taheri et al. 2020; LP algorithm 5 with its line 9 corrected: (W_ij - I_ij) multiplies the
    public copies themselves. As printed it multiplies their differences, and mass is lost unless
    the rows of W sum to 1 too. A public copy for every round of the period, as in `choco_sgd`."""
    x, u = run.x0, np.ones(len(run.x0))
    z, hats = x, run.hats()
    for t in range(run.rounds):
        w, eye = run.w(t), np.eye(len(x))
        hat = hats[t % run.period]
        half = x - lightened(u) * run.local(t, z)  # 3, 4
        hat[:] = run.held(hat + run.compress(t, half - hat))  # 5, 7
        x = half + run.eta * (w - eye) @ hat  # 9
        u = u + run.eta * (w - eye) @ u
        z = run.mixed(t, z, x / u[:, None])  # 10
        yield Point(z, x, u)


def bagua_lp(run: Run) -> Iterator[Point]:
    """Bagua's low precision decentralized SGD, on a ring of three nodes or more, eta = 1. Every
    node keeps replicas of its neighbours, which start equal to their models: z = x_after_step + (L
    + R) / 3 - (5/3) x; x <- x + Q(z); L <- L + Q(z_L); R <- R + Q(z_R)."""
    x = run.x0
    n = len(x)
    left, right = np.roll(x, 1, axis=0), np.roll(x, -1, axis=0)  # of node i: node i - 1's and node i + 1's
    for t in range(run.rounds):
        stepped = x - run.local(t, x)
        z = stepped + (left + right) / 3 - 5 / 3 * x
        q = run.compress(t, z)
        new = run.held(x + q)
        left = run.held(np.stack([left[i] + q[(i - 1) % n] for i in range(n)]))
        right = run.held(np.stack([right[i] + q[(i + 1) % n] for i in range(n)]))
        x = run.mixed(t, x, new)
        yield plain(x)


def dcd_psgd(run: Run, *, mix: Mix = gossip) -> Iterator[Point]:
    """Tang et al. 2018, "Communication compression for decentralized training", algorithm 1, of
    which Bagua's is the ring: any W, replicas of all neighbours. With an averaging rate, (1 - eta)
    I + eta W stands for W."""
    x = run.x0
    for t in range(run.rounds):
        mixed = x + run.eta * mix(run.w(t), x)  # weighted average of the replicas
        half = mixed - run.local(t, x)
        x = run.mixed(t, x, run.held(x + run.compress(t, half - x)))
        yield plain(x)


def d2(run: Run) -> Iterator[Point]:
    """Tang et al. 2018, "D2: decentralized training over decentralized data", algorithm 1: x_1 = W
    (x_0 - gamma g_0), x_(t+1) = W (2 x_t - x_(t-1) - gamma g_t + gamma g_(t-1)). With a codec, C of
    what is in the brackets travels."""
    x, old, last = run.x0, run.x0, np.zeros_like(run.x0)
    for t in range(run.rounds):
        w, eye = run.w(t), np.eye(len(x))
        now = run.local(t, x)
        half = x - now if t == 0 else 2 * x - old - now + last
        new = run.mixed(t, x, half + run.eta * (w - eye) @ run.compress(t, half))
        old, x, last = x, new, now
        yield plain(x)


def parallel_sgd(run: Run, *, mu: float = 0.0, nesterov: bool = False) -> Iterator[Point]:
    """ElastiQuant (Sudharsan et al. 2022), sections 3 and 3.4: everybody broadcasts its encoded
    gradient, decodes all and steps by their sum (over the number of nodes), with one rule for heavy
    ball (l = 0) and Nesterov (l = 1). What travels is -gamma g rather than g: the step that a board
    asks for."""
    w, l = run.x0, 1.0 if nesterov else 0.0  # noqa: E741
    y_dash = w
    for t in range(run.rounds):
        sent = run.compress(t, -run.local(t, w))
        a_g = -np.broadcast_to(sent.mean(axis=0), w.shape)
        y = w - a_g
        y_dash_next = w - l * a_g
        w = run.mixed(t, w, y + mu * (y_dash_next - y_dash))
        y_dash = y_dash_next
        yield plain(w)


def gradient_tracking(run: Run) -> Iterator[Point]:
    """Pu, Nedic 2018, equations 4 and 5: x' = W (x - gamma y), y' = W y + g(x') - g(x), first y =
    g. With an averaging rate (1 - eta) I + eta W stands for W; with a codec a node takes C of its
    own off itself, so that the means stay."""
    x = run.x0
    for t in range(run.rounds):
        w, eye, gamma = run.w(t), np.eye(len(x)), run.lr(t)
        g = run.local(t, x) / gamma
        y = g if t == 0 else mixed_y + g - old  # noqa: F821
        half = x - gamma * y
        mixed_y = y + run.eta * (w - eye) @ run.compress(t, y, part=1)  # noqa: F841
        x, old = run.mixed(t, x, half + run.eta * (w - eye) @ run.compress(t, half)), g  # noqa: F841
        yield plain(x)


def k_gt(run: Run, *, steps: int) -> Iterator[Point]:
    """Liu et al. 2023, "Decentralized gradient tracking with local steps", algorithm 1, with a
    server's step of 1."""
    x, c = run.x0, np.zeros_like(run.x0)
    for t in range(run.rounds):
        w, eye, gamma = run.w(t), np.eye(len(x)), run.lr(t)
        local = x
        for k in range(steps):
            g = np.stack([run.g(t * steps + k, i, local[i]) for i in range(len(x))])
            local = local - gamma * (g + c)
        z = (x - local) / (steps * gamma)
        c = c + run.eta * (w - eye) @ run.compress(t, z, part=1)
        half = x - steps * gamma * z
        x = half + run.eta * (w - eye) @ run.compress(t, half)
        yield plain(x)


def motef(run: Run, *, momentum: float) -> Iterator[Point]:
    """Islamov, Gao, Stich 2024, algorithm 1; with momentum 0 (lambda = 1) Zhao et al. 2022, BEER,
    algorithm 1. Deviation: H starts at the initial models, and the first direction is said before
    the first step."""
    x, lam, gamma = run.x0, 1.0 - momentum, run.eta
    h, grad = run.x0.copy(), np.zeros_like(run.x0)
    for t in range(run.rounds):
        w, eye = run.w(t), np.eye(len(x))
        g = run.local(t, x) / run.lr(t)
        if t == 0:
            m = v = g
        else:
            new = (1 - lam) * m + lam * g
            v = v + gamma * (w - eye) @ grad + new - m
            m = new
        h = run.held(h + run.compress(t, x - h))
        grad = run.held(grad + run.compress(t, v - grad, part=1))
        x = run.mixed(t, x, x + gamma * (w - eye) @ h - run.lr(t) * v)
        yield plain(x)
