"""edgegossip: train one model together on 2-18 small boards over slow links, with a coordinator or
without a server.

A training script takes part in a run by `join`:

    import edgegossip

    with edgegossip.join(model, state=[optimizer]) as run:
        for round in run.rounds():
            loss = train_some_steps(model, optimizer)
            run.exchange(loss=loss)

and is started by `edgegossip run train.py --nodes 4`, or from Python:

    result = edgegossip.run("train.py", {"run.rounds": 50}, nodes=4)
    result.state_dict()

What goes wrong is an `EdgegossipError`: a `UsageError` is of this side (`ConfigError`, `DataError`,
`HostError`, `RunError`), a `PeerError` of the other. Its text is a sentence that a user can act on.

Importing this package costs nothing: every part is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgegossip.encoding import Encoded, decode, encode
    from edgegossip.notebook import local, resume, run
    from edgegossip.research import Plan, StudyResult, plan, study
    from edgegossip.result import Result
    from edgegossip.training.script import Run, join
    from edgegossip.types import ConfigError, DataError, EdgegossipError, HostError, PeerError, RunError, UsageError

__version__ = "0.1.0"
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

    return getattr(import_module(_HOMES.get(name, "edgegossip.types")), name)
