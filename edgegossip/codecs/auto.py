"""`auto`: the rate is chosen for every message, by how fast its link is.

It says what it is to be used for; `engine/rates.py` has the control, and asks for so many bytes
(`Ctx.bytes`) a message. The messages are those of `dither`, or of `deadzone` where a scheme makes
up for what they lose (`for_scheme`). They decode without knowing the rate, so nothing of it
travels. Where nobody asks for bytes, as for `error`, the error is fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from typing_extensions import override

from edgegossip.codecs.base import Body, Codec, Ctx, StatelessCodec
from edgegossip.codecs.per_tensor import PerTensor
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.codecs.stepped import DeadZone, Dither, SteppedCodec, require_bytes
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, Vec

_LEAST_BITS = 1 / 4  # a value of dither: what stays must not be all noise
_LEAST_BYTES = 64
NOMINAL_ERROR = 0.5  # where nobody asks for bytes; the averaging rate of gossip follows from it


@dataclass(frozen=True, slots=True)
class Auto(StatelessCodec):
    """`dither` or `deadzone` at the rate that is asked for."""

    error: float = 0.0
    bytes: int = 0
    seconds: float = 0.0
    repaired: bool = False  # later messages make up for what one loses

    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        check_fields(self, self.name, PARAMS)
        if self.error and (self.bytes or self.seconds):
            other = "bytes" if self.bytes else "seconds"
            raise ConfigError(f"codec auto: error and {other} are both given, and error fixes the rate; leave out one")
        if self.repaired:
            self._at(0)  # an error that is too large for a dead zone is refused before a run

    @property
    @override
    def wire_id(self) -> int:
        return DeadZone.wire_id if self.repaired else Dither.wire_id

    @property
    def adapts(self) -> bool:
        """Whether the rate follows the link."""
        return not self.error

    @override
    def init(self, layout: Layout) -> Layout:
        require_bytes(self, layout)
        return layout

    def least_bytes(self, layout: Layout) -> int:
        """Return the fewest bytes of a message about such a model, whatever is asked for."""
        if self.repaired:
            return max(_LEAST_BYTES, math.ceil(DeadZone.least_bits * layout.size / 8))
        return max(_LEAST_BYTES, Dither().least_bytes(layout), math.ceil(_LEAST_BITS * layout.size / 8))

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        limits = [max(limit, self.least_bytes(state)) for limit in (self.bytes, ctx.bytes) if limit]
        return self._at(min(limits, default=0)).encode(x, state, ctx)

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return self._at(0).decode(body, layout, out, weight)

    def check(self, body: Body, layout: Layout) -> None:
        """Raise DecodeError unless it can be decoded; writes nothing."""
        self._at(0).check(body, layout)

    def _at(self, bytes: int) -> SteppedCodec:
        kind: type[SteppedCodec] = DeadZone if self.repaired else Dither
        if self.adapts and bytes:
            return kind(bytes=bytes)
        return kind(error=self.error or NOMINAL_ERROR)


def for_scheme(codec: Codec[Any], repaired: bool) -> Codec[Any]:
    """Return the codec of a scheme that makes up for what its messages lose, or does not; only
    `auto` differs."""
    if isinstance(codec, PerTensor):
        return replace(codec, codecs=tuple(for_scheme(inside, repaired) for inside in codec.codecs))
    return replace(codec, repaired=repaired) if isinstance(codec, Auto) else codec


PARAMS = (
    Param("error", 0.0, "fixed relative error; 0: the rate follows the link", low=0.0, high=16.0),
    Param("bytes", 0, "most bytes of a message; 0: as many as pay", low=0, high=2**32),
    Param("seconds", 0.0, "that a round's messages may be under way; 0: as long as pays", low=0.0, high=86_400.0),
)


FAMILIES = (Family("auto", Auto, "dither or deadzone at the rate that suits each link", PARAMS),)
