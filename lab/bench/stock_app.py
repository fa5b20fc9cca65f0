"""The rival of `lab.bench server`: a Flower app as Flower's PyTorch template writes it, run by
stock SuperNodes with FedAvg.

It travels to them as the app.py of a Flower app bundle, so it stands alone: what plays rounds there
imports nothing of this package.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

STEP = 0.001

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Do the least training there is: what remains is the round itself.

    Flower reads PyTorch models only where PyTorch is loaded."""
    importlib.import_module("torch")  # as every PyTorch app does, in the process that Flower starts for each message
    state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
    for tensor in state.values():
        tensor.add_(STEP)
    metrics = MetricRecord({"num-examples": 1, "train-loss": 1.0})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Play plain FedAvg over every node; after each round one line with the time goes to the file
    `times`."""
    config = context.run_config
    values, tensors, nodes = int(config["values"]), int(config["tensors"]), int(config["nodes"])
    flat = np.random.default_rng(1).standard_normal(values).astype(np.float32)
    parts = np.array_split(flat, tensors)
    arrays = ArrayRecord({f"layer{k}": Array(part) for k, part in enumerate(parts)})
    times = Path(str(config["times"]))

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        moved = float(arrays["layer0"].numpy()[0] - parts[0][0])
        if abs(moved - server_round * STEP) > STEP / 2:
            raise RuntimeError(f"after round {server_round} the model has moved by {moved:g}: clients did not train")
        with times.open("a") as file:
            file.write(f"{server_round} {time.time()}\n")
        return MetricRecord({"round": server_round})

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy.start(grid, arrays, num_rounds=int(config["rounds"]), evaluate_fn=note)


def plain_updates(model: Mapping[str, NDArray[np.float32]], examples: Sequence[float]) -> list[RecordDict]:
    """Return the contents of replies with this model, one for each number of examples."""
    record = ArrayRecord({name: Array(value) for name, value in model.items()})
    return [RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": n})}) for n in examples]


def average_plain(updates: list[RecordDict]) -> ArrayRecord:
    """Average updates as Flower itself does."""
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    return aggregate_arrayrecords(updates, "num-examples")
