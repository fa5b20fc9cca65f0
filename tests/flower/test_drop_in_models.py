"""Models that a strategy changes behind the rounds' back, or hands out one by one: clients train
from what it means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from edgegossip import codecs
from edgegossip.flower import compressed, compression_mod
from edgegossip.flower.combine import BoardGrid
from tests.flower.test_drop_in import CONFIG, Contexts, watched
from tests.flower.test_drop_in import _app as train_app
from tests.flower.test_drop_in import _arrays as arrays_of


@pytest.mark.parametrize("down", [None, "8-bit-elastiquant", "fp32"])
@pytest.mark.parametrize("again", [1, 2])  # how often the strategy changes it
def test_a_model_that_changed_after_it_was_evaluated_is_what_clients_train_from(
    down: str | None, again: int, in_run: int
) -> None:
    """As of a strategy whose own start() goes back to the best model, or trains on the server."""
    codec, downlink = codecs.get("fp32"), None if down is None else codecs.get(down)
    each = Contexts()
    strategy = compressed(FedAvg(**{**CONFIG, "fraction_evaluate": 1.0}), codec, downlink=downlink)
    mod = compression_mod(codec, downlink=downlink)
    seen: list[np.ndarray[Any, Any]] = []

    app = watched(seen)

    def train(server_round: int, arrays: ArrayRecord, clients: list[int]) -> ArrayRecord:
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), BoardGrid(clients))
        replies = [mod(m, each[m.metadata.dst_node_id], app) for m in messages]
        new, _ = strategy.aggregate_train(server_round, replies)
        assert new is not None
        return new

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        messages = strategy.configure_evaluate(server_round, arrays, ConfigRecord(), BoardGrid([1, 2]))
        strategy.aggregate_evaluate(server_round, [mod(m, each[m.metadata.dst_node_id], app) for m in messages])

    arrays = train(1, arrays_of(), [1, 2])
    evaluate(1, arrays)
    for k in range(again):
        changed = ArrayRecord({name: Array(np.asarray(a.numpy() + (7 + k), a.dtype)) for name, a in arrays.items()})
        if k + 1 < again:
            evaluate(1, changed)
    seen.clear()
    arrays = train(2, changed, [1])  # the other one holds what was evaluated
    np.testing.assert_array_equal(seen, [changed["bias"].numpy()])
    seen.clear()
    train(3, arrays, [1, 2])
    for found in seen:
        np.testing.assert_allclose(found, arrays["bias"].numpy(), atol=1e-2)
    assert len(seen) == 2


def test_a_client_that_got_a_model_of_its_own_gets_the_next_one_whole(in_run: int) -> None:
    class Personal(FedAvg):
        """In the first round the second client gets another model."""

        def configure_train(self, server_round: int, arrays: ArrayRecord, *rest: Any) -> list[Message]:
            messages = list(super().configure_train(server_round, arrays, *rest))
            if server_round == 1:
                other = {name: Array(np.asarray(a.numpy() + 7, a.dtype)) for name, a in arrays.items()}
                (own,) = (m for m in messages if m.metadata.dst_node_id == 2)
                own.content = RecordDict({**own.content, "arrays": ArrayRecord(other)})
            return messages

    codec, down = codecs.get("fp32"), codecs.get("8-bit-elastiquant")
    each = Contexts()
    strategy = compressed(Personal(**CONFIG), codec, downlink=down)
    arrays = arrays_of()
    for server_round in (1, 2):
        seen: dict[int, np.ndarray[Any, Any]] = {}

        def app(message: Message, context: Context, seen: Any = seen) -> Message:
            seen[message.metadata.dst_node_id] = message.content["arrays"]["bias"].numpy()
            return train_app(message, context)

        trained_from = arrays
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), BoardGrid([1, 2]))
        mod = compression_mod(codec, downlink=down)
        replies = [mod(m, each[m.metadata.dst_node_id], app) for m in messages]
        new, _ = strategy.aggregate_train(server_round, replies)
        assert new is not None
        arrays = new
    for found in seen.values():
        np.testing.assert_allclose(found, trained_from["bias"].numpy(), atol=1e-1)
