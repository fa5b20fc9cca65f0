"""The server: a usual Flower ServerApp. Compression is the one line around the strategy."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Krum

from digits_app.codec import MODELS, UPDATES
from digits_app.task import build
from edgegossip.flower import compressed

STRATEGIES = {"fedavg": FedAvg, "fedadam": FedAdam, "fedmedian": FedMedian, "krum": Krum}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients = int(config["clients"])
    least = {"min_train_nodes": clients, "min_evaluate_nodes": clients, "min_available_nodes": clients}
    strategy = compressed(STRATEGIES[str(config["strategy"])](**least), UPDATES, downlink=MODELS)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord({"lr": float(config["lr"])}),
    )
    found = {
        "accuracy": [metrics["accuracy"] for metrics in result.evaluate_metrics_clientapp.values()],
        "times_smaller": strategy.traffic.ratio,
        "bytes": {"down": strategy.traffic.down_bytes, "up": strategy.traffic.up_bytes},
    }
    print(f"accuracy {found['accuracy'][-1]:.3f}, {found['times_smaller']:.1f} times fewer bytes than fp32")
    if config["report"]:
        Path(str(config["report"])).write_text(json.dumps(found))
