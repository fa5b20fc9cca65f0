"""edgegossip: train one model together on 2-18 small boards over slow links, with a coordinator or
without a server.

Ten names are enough to begin. `help(edgegossip.run)` and so on say more; docs/python.md is a tour.

run: train a recipe, or your own script, on processes of this machine.

    result = edgegossip.run("quickstart-gossip", nodes=4, rounds=100, codec__name="minmax8")

Result: what a run left, also of a folder that is there already.

    result = edgegossip.Result("runs/20260102-030405-quickstart-gossip")
    result.score, result.metrics(), result.model(), result.report()

resume: go on with a run that was stopped.

    result = edgegossip.resume(result.folder)

join: take part in a run with your own model, data and training loop (in a script that `run`, or
`edgegossip node` on a real board, starts).

    with edgegossip.join(model, state=[optimizer]) as run:
        for round in run.rounds():
            loss = train_some_steps(model, optimizer)
            run.exchange(loss=loss)

local: the same for a function, such as one in a notebook's cell.

    result = edgegossip.local(train, nodes=4, rounds=20)

study: compare codecs, algorithms, or any other settings.

    study = edgegossip.study("quickstart-gossip", {"codec.name": ["fp32", "co3"]}, seeds=[1, 2])
    study.table()

plan: work out bytes and seconds on a fleet before anything runs, and what would be faster.

    print(edgegossip.plan("cifar10-gossip", "pi4-wifi"))

encode, decode: any numpy array or torch tensor as the bytes that a board would send, and back.

    encoded = edgegossip.encode(gradient, "e-elastiquant")
    encoded.nbytes, encoded.relative_error(gradient), edgegossip.decode(encoded)

EdgegossipError: whatever goes wrong; its text is a sentence that a user can act on. A `UsageError`
is of this side (`ConfigError`, `DataError`, `HostError`, `RunError`), a `PeerError` of the other.

    try:
        edgegossip.run("quickstart-gossip", codec__name="topq")
    except edgegossip.EdgegossipError as error:
        print(error)  # there is no codec 'topq'; did you mean topk? ...

`edgegossip.codecs.names()` lists the codecs. Modules for more: `edgegossip.int8` (training in
integers), `edgegossip.export` (ONNX), `edgegossip.flower` (codecs in a Flower app) and
`edgegossip.integrations` (Trainer, Lightning, an optimiser). Importing this package costs nothing:
every part is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgegossip.version import VERSION as __version__

if TYPE_CHECKING:
    from edgegossip import codecs
    from edgegossip.encoding import Encoded, decode, encode
    from edgegossip.notebook import local, resume, run
    from edgegossip.research import Plan, StudyResult, plan, study
    from edgegossip.result import Result
    from edgegossip.training.script import Run, join
    from edgegossip.types import ConfigError, DataError, EdgegossipError, HostError, PeerError, RunError, UsageError

__all__ = [
    "ConfigError",
    "DataError",
    "EdgegossipError",
    "Encoded",
    "HostError",
    "PeerError",
    "Plan",
    "Result",
    "Run",
    "RunError",
    "StudyResult",
    "UsageError",
    "__version__",
    "codecs",
    "decode",
    "encode",
    "join",
    "local",
    "plan",
    "resume",
    "run",
    "study",
]

_HOMES = {  # public name -> its module
    "Encoded": "edgegossip.encoding",
    "Plan": "edgegossip.research",
    "Result": "edgegossip.result",
    "Run": "edgegossip.training.script",
    "StudyResult": "edgegossip.research",
    "decode": "edgegossip.encoding",
    "encode": "edgegossip.encoding",
    "join": "edgegossip.training.script",
    "local": "edgegossip.notebook",
    "plan": "edgegossip.research",
    "resume": "edgegossip.notebook",
    "run": "edgegossip.notebook",
    "study": "edgegossip.research",
}
_FORMER = {"LocalError": "UsageError"}  # names of 0.1 that scripts may use


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    name = _FORMER.get(name, name)
    if name not in __all__:
        raise AttributeError(f"module 'edgegossip' has no attribute {name!r}")
    from importlib import import_module

    try:
        if name == "codecs":
            return import_module("edgegossip.codecs")
        return getattr(import_module(_HOMES.get(name, "edgegossip.types")), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "edgegossip"):
            raise
        from edgegossip.types import MissingPackageError

        raise MissingPackageError(f"edgegossip.{name} needs the package {package}, which is not installed") from None
