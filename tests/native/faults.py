"""Verdicts on a section, and that all ways to ask for one agree."""

import numpy as np

from edgegossip.native import coding
from edgegossip.native.coding import FAULTS
from tests.native.sections import decode

ENDS_EARLY, BAD_CODER, BAD_SCALE, BAD_TABLE, BAD_STREAM, BAD_CODE, BAD_PADDING = -2, -3, -4, -5, -6, -7, -8


def survives(q, body, n, tables=coding.NO_TABLES):
    """A body's verdict, the same for a check and a decoding on one thread and three."""
    verdict = decode(q, body, n, tables=tables, threads=1)
    assert verdict in FAULTS or 0 < verdict <= len(body)
    for threads in (1, 3):
        out = np.full(n, np.nan, np.float32)
        assert decode(q, body, n, out, tables=tables, threads=threads) == verdict
        assert verdict < 0 or np.isfinite(out).all()
    return verdict
