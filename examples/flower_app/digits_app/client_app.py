"""The client: a usual Flower ClientApp. Compression is the list of mods."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.codec import MODELS, UPDATES
from digits_app.task import build, load, test, train
from edgegossip.flower import compression_mod

app = ClientApp(mods=[compression_mod(UPDATES, downlink=MODELS)])


def _share(context: Context) -> tuple[int, int]:
    """(number of this client, number of all), as SuperNodes and the simulation engine say it."""
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


@app.train()
def train_model(message: Message, context: Context) -> Message:
    inputs, labels, _, _ = load(*_share(context))
    model = build()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(model, inputs, labels, float(message.content["config"]["lr"]))
    metrics = MetricRecord({"num-examples": len(labels), "train-loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    _, _, inputs, labels = load(*_share(context))
    model = build()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss, accuracy = test(model, inputs, labels)
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
