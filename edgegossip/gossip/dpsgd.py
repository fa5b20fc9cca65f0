"""Makes D-PSGD, in little memory where a board has one neighbour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body
from edgegossip.codecs.checks import nonfinite, require_body_bytes
from edgegossip.codecs.floats import Float, Fp32
from edgegossip.frame import Frame
from edgegossip.gossip import messages
from edgegossip.gossip.averaging import Eta
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.publish import Plain
from edgegossip.gossip.requirements import require_doubly_stochastic
from edgegossip.gossip.scheme import Published, RoundContext, Spread
from edgegossip.gossip.symmetric import Gathered, Mixing, Symmetric, before
from edgegossip.gossip.traits import THEN, WITH, Traits
from edgegossip.layout import Layout
from edgegossip.native import half
from edgegossip.types import LocalUpdate, Vec

_BLOCK_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class DPsgd(Symmetric):
    """D-PSGD that needs little memory where a model is large.

    With one neighbour and a codec that encodes each number by itself (fp32, fp16, bf16), the pull
    is added block by block to the vector that becomes the next model: beside it there are only the
    two messages. A state of the middle of a round is then not to be used again, once the next one
    was made of it. With several neighbours the pull is summed up first: a sum of two numbers does
    not depend on who came first, and so neither do models on a ring."""

    @override
    def publish(self, m: Mixing, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]) -> tuple[Mixing, Published]:
        if not self._lean(ctx):
            return Symmetric.publish(self, m, local, ctx, to)
        codec: Float = ctx.view.codec  # type: ignore[assignment]
        base = local.moved(m.x)
        said = m.x if self.rule is before else base
        body = _encode(codec, said, base, ctx.view)
        error = 0.0 if isinstance(codec, Fp32) else _encoding_error(codec, body, said, base, ctx.view.layout)
        early = m.early
        m = replace(m, x=base, start=base, base=base, early=None, body=body)
        if early is not None:
            m = self._add(m, early, ctx)
        return m, Published(body, {}, error)

    @override
    def take(self, m: Mixing, sender: int, frame: Frame, ctx: RoundContext) -> Mixing:
        if not self._lean(ctx):
            return Symmetric.take(self, m, sender, frame, ctx)
        # All that may be wrong with it is looked for before a number is added.
        codec: Float = ctx.view.codec  # type: ignore[assignment]
        require_body_bytes(frame.body, half.BYTES[codec.name] * ctx.view.layout.size, codec.name)

        def squares(part: slice) -> float:
            return sum(messages.squares_of(block) for _, block in _parts(codec, frame.body, part))

        if tensor := messages.disproportion(squares, m.latest, ctx.view.layout):
            raise messages.too_large(ctx.name(sender), tensor)
        return self._add(m, frame.body, ctx) if m.base is not None else replace(m, early=frame.body)

    @override
    def mix(self, m: Mixing, ctx: RoundContext, fresh: Sequence[int]) -> tuple[Mixing, Spread]:
        if not self._lean(ctx):
            return Symmetric.mix(self, m, ctx, fresh)
        assert m.base is not None
        row = {j: ctx.neighbours.weights[j] for j in fresh}
        row[ctx.index] = 1.0 - sum(row.values())
        return replace(self._clean(m), x=m.base, row=row), m.gathered.spread

    def _lean(self, ctx: RoundContext) -> bool:
        lean = self.fragments == 1 and not self.keeps and isinstance(ctx.view.codec, Float)
        return lean and len(ctx.neighbours.in_) == 1

    def _add(self, m: Mixing, body: Body, ctx: RoundContext) -> Mixing:
        """Add eta W (p_j - p_i) to base, in place; of statistics W (p_j - p_i), as `mix`."""
        assert m.base is not None and m.body is not None
        [sender] = ctx.neighbours.in_
        codec: Float = ctx.view.codec  # type: ignore[assignment]
        weight, eta, squares = np.float32(ctx.neighbours.weights[sender]), np.float32(m.eta), 0.0
        exact = self._exact_from(ctx)
        whole = slice(0, m.base.size)
        for (start, theirs), (_, mine) in zip(_parts(codec, body, whole), _parts(codec, m.body, whole), strict=True):
            theirs -= mine
            squares += messages.squares_of(theirs)
            theirs *= weight
            theirs[: max(0, exact - start)] *= eta
            m.base[start : start + theirs.size] += theirs
        return replace(m, gathered=Gathered(1, float(weight), squares, distances={sender: math.sqrt(squares)}))


def _parts(codec: Float, body: Body, part: slice) -> Iterator[tuple[int, Vec]]:
    """Decode a part of a body block by block into the same memory; yield each block with where it
    starts."""
    out = np.empty(min(part.stop - part.start, _BLOCK_VALUES), np.float32)
    for start in range(part.start, part.stop, _BLOCK_VALUES):
        yield start, codec.decode_part(body, start, out[: min(_BLOCK_VALUES, part.stop - start)])


def _encode(codec: Float, x: Vec, base: Vec, view: NodeView) -> Body:
    """Encode the parameters of x and the statistics of base, without a vector of them where there
    is room. Raises UsageError when a value is not finite.

    Where there is, that is so in fp32, too: a message that lends x keeps it until it was sent, and
    the next round may have begun by then. What is base itself is not lent: it becomes the next
    model in place."""
    layout, cut = view.layout, view.layout.trainable_size
    width, tensors = half.BYTES[codec.name], sum(t.trainable for t in layout.tensors)
    body = view.room(width * layout.size)
    if body is None and isinstance(codec, Fp32) and cut == layout.size and x is not base:
        return codec.lend(x, layout)
    body = np.empty(width * layout.size, np.uint8) if body is None else body
    for first, last, values in ((0, tensors, x[:cut]), (tensors, len(layout.tensors), base[cut:])):
        offsets = layout.offsets[first : last + 1] - layout.offsets[first]
        out = body[width * layout.offsets[first] : width * layout.offsets[last]]
        if (bad := half.encode(codec.name, values, offsets, out)) >= 0:
            raise nonfinite(layout, first + bad)
    return body.data.toreadonly()


def _encoding_error(codec: Float, body: Body, x: Vec, base: Vec, layout: Layout) -> float:
    """Return ||decoded - v|| / ||v|| of what `_encode` makes, see
    `messages.relative_error`."""
    lost, parameters = 0.0, layout.trainable_size
    for start, part in _parts(codec, body, slice(0, x.size)):
        cut = min(max(parameters - start, 0), part.size)
        part[:cut] -= x[start : start + cut]
        part[cut:] -= base[start + cut : start + part.size]
        lost += float(part.dot(part))
    whole = float(x[:parameters].dot(x[:parameters])) + float(base[parameters:].dot(base[parameters:]))
    return math.sqrt(lost / whole) if whole else (0.0 if lost == 0.0 else math.inf)


def dpsgd(eta: Eta = 1.0, keeps: bool = False) -> DPsgd:
    """Return decentralised parallel SGD: whole models travel. A coarse codec makes the models
    coarse: see `choco_sgd`.

    Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (2017), algorithm
    1: x_i <- sum_j W_ij x_j - gamma g_i(x_i), gradient at the model before mixing, W symmetric and
    doubly stochastic.

    Deviations. (1) It is computed as x_i + eta sum_j W_ij (xhat_j - xhat_i) + delta_i with xhat =
    decode(encode(x)), which is the same for a lossless codec and eta = 1, and keeps the mean of the
    models for any codec: what i adds, j takes off. (2) delta_i, the local update, may be several
    optimiser steps. (3) W may be directed if it is doubly stochastic in every round."""
    traits = Traits(orders=(WITH, THEN), in_differences="choco-sgd", plain=True)
    return DPsgd("dpsgd", traits, Plain(), before, eta, require_doubly_stochastic, keeps)
