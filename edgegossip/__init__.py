"""edgegossip: train one model together on 2-18 small boards over slow links, with a coordinator or without a server.

    import edgegossip

    result = edgegossip.Result("runs/20260102-030405-quickstart-gossip")
    result.state_dict()

Importing this package costs nothing: every part is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgegossip.result import Result

__version__ = "0.1.0"
__all__ = ["Result", "__version__"]

_HOMES = {"Result": "edgegossip.result"}  # public name -> its module


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgegossip' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
