"""The least-squares workload as a board's program.

`python -m tests.flower.toy NAME ADDRESS INDEX [FAULT]` is one board; it prints its records as JSON
lines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from numpy.typing import NDArray

from edgegossip.agreement import Agreement
from edgegossip.types import EdgegossipError, LocalUpdate, NodeId, Round, Vec
from tests.engine import toy
from tests.engine.toy import LAYOUT, LR, fedavg

__all__ = ["LAYOUT", "LR", "Lines", "Toy", "fedavg"]


class Toy(toy.Toy):
    """As a workload that takes its time."""

    def __init__(self, index: int, delay_s: float = 0.0) -> None:
        super().__init__(index)
        self._delay_s = delay_s
        self.agrees = Agreement({})

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        time.sleep(self._delay_s)
        return super().local_update(x, round)

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        del snapshot

    def agreement(self) -> Agreement:
        return self.agrees

    def over(self, x: Vec | None) -> None:
        del x

    def abandon(self) -> None: ...


class Lines:
    """A sink that prints."""

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Any]) -> None:
        print(json.dumps({"node": node, "step": step, **values}), flush=True)

    def event(self, node: NodeId, name: str, text: str, **fields: Any) -> None:
        print(json.dumps({"node": node, "event": name, "text": text, **fields}), flush=True)

    def close(self) -> None: ...


def main(name: str, address: str, index: str, delay_s: str = "0", fault: str = "") -> None:
    from edgegossip import codecs, flower
    from tests.flower.faults import malformed

    client = flower.NodeClient(
        name, address, lambda: Toy(int(index), float(delay_s)), codecs.get("fp32"), Lines(), patience_s=10.0
    )
    with malformed() if fault == "malformed" else nullcontext():
        try:
            client.run()
        except EdgegossipError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
