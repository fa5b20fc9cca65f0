"""The Grid that strategies see inside the coordinator: who can be asked, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from edgegossip.types import LocalError


class BoardGrid(Grid):
    """Boards that are idle now. Messages are sent by the coordinator's rounds, not by strategies."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self._node_ids = list(node_ids)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._node_ids)

    def set_run(self, run: Any) -> None:
        _no()

    @property
    def run(self) -> Any:
        _no()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        _no()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        _no()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        _no()


def _no() -> NoReturn:
    raise LocalError("a strategy only chooses boards and aggregates; the coordinator sends the messages itself")
