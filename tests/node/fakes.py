"""A network in memory and a workload with a known answer, for tests of the driver."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.agreement import Agreement
from edgegossip.layout import Layout, TensorSpec
from edgegossip.mesh.base import Buffers, PeerDown, Received, SendFailed, SendReceipt, TransportEvent, Woken
from edgegossip.telemetry.records import Value
from edgegossip.types import LocalUpdate, Metrics, NodeId, Round, Vec


@dataclass
class MemoryTransport:
    """One end of a network whose other ends are in `peers`; delivery is immediate, everything is
    kept."""

    node: NodeId
    peers: dict[NodeId, MemoryTransport] = field(default_factory=dict)
    events: queue.Queue[TransportEvent] = field(default_factory=queue.Queue)
    closed: list[tuple[NodeId, str]] = field(default_factory=list)
    frame_ids: int = 0
    came_bytes: int = 0
    to_come_bytes: int = 0

    def send(self, to: NodeId, frame: Buffers) -> int:
        self.frame_ids += 1
        data = b"".join(frame)
        if to not in self.peers:
            self.events.put(SendFailed(self.frame_ids, to, "down"))
            return self.frame_ids
        self.peers[to].events.put(Received(self.node, data))
        receipt = SendReceipt(self.frame_ids, to, len(data), len(data) + 20, 0.0, 0.0, 0.0)
        threading.Timer(0.0, self.events.put, [receipt]).start()
        return self.frame_ids

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        try:
            return self.events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def wake(self) -> None:
        self.events.put(Woken())

    def close_peer(self, peer: NodeId, reason: str, *, disagrees: bool = False) -> None:
        self.closed.append((peer, reason))

    def limit_frames(self, max_frame_bytes: int) -> None:
        pass

    def arriving(self) -> tuple[int, int]:
        return self.came_bytes, self.to_come_bytes

    def close(self) -> None:
        pass

    def lose(self, peer: NodeId) -> None:
        self.peers.pop(peer, None)
        self.events.put(PeerDown(peer, "connection refused"))


def network(names: Sequence[NodeId]) -> dict[NodeId, MemoryTransport]:
    ends = {name: MemoryTransport(name) for name in names}
    for name, end in ends.items():
        end.peers.update({other: e for other, e in ends.items() if other != name})
    return ends


class Quadratic:
    """f(x) = ||x - target||^2 / 2, one step of plain gradient descent a round."""

    def __init__(self, target: Vec, lr: float = 0.1) -> None:
        self.layout = Layout.of(
            [TensorSpec("a", (target.size // 2,)), TensorSpec("b", (target.size - target.size // 2,))]
        )
        self.target, self.lr = target, lr

    def initial(self, seed: int) -> Vec:
        return np.zeros(self.layout.size, np.float32)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        delta = (-self.lr * (x - self.target)).astype(np.float32)
        return LocalUpdate(delta, self.lr, float(np.sum((x - self.target) ** 2) / 2), 1, 1)

    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics:
        return Metrics(float(np.sum((x - self.target) ** 2) / 2), 1, {"accuracy": 0.0})

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        pass

    def agreement(self) -> Agreement:
        return Agreement({"values": self.layout.size})

    def over(self, x: Vec | None) -> None:
        self.final = x

    def state(self, x: Vec | None) -> Mapping[str, NDArray[Any]]:
        return {} if x is None else self.layout.views(x)


@dataclass
class ListSink:
    """Keeps what it is given."""

    rows: list[tuple[NodeId, Round, Mapping[str, Value]]] = field(default_factory=list)
    events: list[tuple[NodeId, str, str]] = field(default_factory=list)

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Value]) -> None:
        self.rows.append((node, step, values))

    def event(self, node: NodeId, name: str, text: str, **fields: Value) -> None:
        self.events.append((node, name, text))

    def close(self) -> None:
        pass

    def names(self) -> list[str]:
        return [name for _, name, _ in self.events]
