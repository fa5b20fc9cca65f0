"""What matplotlib draws, for tests of plots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def drawn_texts() -> Iterator[dict[str, bool]]:
    """Collect each text that is drawn, and whether it is drawn as mathematics."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg", reason="an extra: pip install '.[report]'")
    drawn: dict[str, bool] = {}
    draw = agg.RendererAgg.draw_text

    def watched(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        drawn[s.lstrip("\N{ZERO WIDTH SPACE}")] = bool(ismath)
        draw(self, gc, x, y, s, prop, angle, ismath, mtext)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agg.RendererAgg, "draw_text", watched)
        yield drawn
