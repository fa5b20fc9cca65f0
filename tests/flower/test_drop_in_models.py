"""Models that a strategy changes behind the rounds' back, or hands out one by one: clients train
from what it means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.flower.fleet import CONFIG, Fleet
from tests.flower.test_drop_in import _app as train_app
from tests.flower.test_drop_in import _arrays as arrays_of
from tests.flower.test_drop_in import watched


@pytest.mark.parametrize("down", [None, "8-bit-elastiquant", "fp32"])
@pytest.mark.parametrize("again", [1, 2])  # how often the strategy changes it
def test_a_model_that_changed_after_it_was_evaluated_is_what_clients_train_from(
    down: str | None, again: int, in_run: int
) -> None:
    """As of a strategy whose own start() goes back to the best model, or trains on the server."""
    seen: list[np.ndarray[Any, Any]] = []
    fleet = Fleet(FedAvg(**{**CONFIG, "fraction_evaluate": 1.0}), "fp32", watched(seen), down, nodes=[1, 2])
    arrays = fleet.train(1, arrays_of())
    fleet.evaluate(1, arrays)
    for k in range(again):
        changed = ArrayRecord({name: Array(np.asarray(a.numpy() + (7 + k), a.dtype)) for name, a in arrays.items()})
        if k + 1 < again:
            fleet.evaluate(1, changed)
    seen.clear()
    fleet.nodes = [1]
    arrays = fleet.train(2, changed)  # the other one holds what was evaluated
    np.testing.assert_array_equal(seen, [changed["bias"].numpy()])
    seen.clear()
    fleet.nodes = [1, 2]
    fleet.train(3, arrays)
    for found in seen:
        np.testing.assert_allclose(found, arrays["bias"].numpy(), atol=1e-2)
    assert len(seen) == 2 and not fleet.failed


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

    seen: dict[int, np.ndarray[Any, Any]] = {}

    def app(message: Message, context: Context) -> Message:
        seen[message.metadata.dst_node_id] = message.content["arrays"]["bias"].numpy()
        return train_app(message, context)

    fleet = Fleet(Personal(**CONFIG), "fp32", app, "8-bit-elastiquant", nodes=[1, 2])
    arrays = fleet.train(1, arrays_of())
    fleet.train(2, arrays)
    assert not fleet.failed
    for found in seen.values():
        np.testing.assert_allclose(found, arrays["bias"].numpy(), atol=1e-1)
