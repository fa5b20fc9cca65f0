from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

from edgegossip.flower._private import runtime
from edgegossip.types import NodeId, Round


class Memory:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[NodeId, str, str, dict[str, Any]]] = []
        self.records: list[tuple[NodeId, Round, dict[str, Any]]] = []

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Any]) -> None:
        self.records.append((node, step, dict(values)))

    def event(self, node: NodeId, name: str, text: str, **fields: Any) -> None:
        self.events.append((node, name, text, fields))

    def close(self) -> None: ...

    def texts(self, name: str) -> list[str]:
        return [text for _, event, text, _ in self.events if event == name]

    def evaluations(self) -> dict[Round, float]:
        return {step: values["eval/loss"] for _, step, values in self.records if "eval/loss" in values}


@pytest.fixture
def sink() -> Memory:
    return Memory()


@pytest.fixture
def in_run() -> Iterator[int]:
    """Flower's messages can only be made by a process that serves a run."""
    identity = runtime.TaskIdentity
    before = identity._run_id, identity._node_id, identity._task_id
    identity.run_id, identity.node_id, identity.task_id = 77, runtime.SERVER_NODE_ID, 5
    yield 77
    identity._run_id, identity._node_id, identity._task_id = before
