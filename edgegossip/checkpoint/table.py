"""The classes that a checkpoint of a board may hold: gossip's and the codecs' states, and nothing
else.

A new state class is one line here; `tests/checkpoint/test_states.py` keeps a state of every
algorithm with every codec, and fails when one is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgegossip.checkpoint.classes import Adapter, Classes, Entry
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.scheme import RoundContext
from edgegossip.layout import Layout, TensorSpec


@dataclass(frozen=True, slots=True)
class Outside:
    """What the present process has of the run, and no file needs to hold."""

    view: NodeView | None = None
    layout: Layout | None = None

    @classmethod
    def of(cls, view: NodeView) -> Outside:
        return cls(view, view.layout)


def _view_apart(view: NodeView) -> Mapping[str, Any]:
    return {"node": view.node, "run_id": view.run_id, "down": view.down, "boot": view.boot}


def _view_together(found: Mapping[str, Any], outside: Outside) -> NodeView:
    """Members, topology, codec and layout are the run's, and the present process knows them."""
    view = outside.view
    if view is None:
        raise ValueError("no run is given that it could belong to")
    if (view.node, view.run_id) != (found["node"], found["run_id"]):
        raise ValueError(f"it is of {found['node']} in run {found['run_id'].hex()}")
    return replace(view, down=found["down"], boot=found["boot"])


def _context_apart(ctx: RoundContext) -> Mapping[str, Any]:
    return {"view": ctx.view, "index": ctx.index, "round": ctx.round}


def _context_together(found: Mapping[str, Any], outside: Outside) -> RoundContext:
    view, index = found["view"], found["index"]
    if not 0 <= index < len(view.members) or not found["round"] >= 0:
        raise ValueError(f"member {index}, round {found['round']}")
    return RoundContext.at(view, index, found["round"])


def _layout_apart(layout: Layout) -> Mapping[str, Any]:
    return {"hash": layout.hash, "tensors": layout.plain()}


def _layout_together(found: Mapping[str, Any], outside: Outside) -> Layout:
    """The run's own layout where it is that, so that all parts of a state share it."""
    if outside.layout is not None and outside.layout.hash == found["hash"]:
        return outside.layout
    layout = Layout.of(TensorSpec(*t) for t in found["tensors"])
    if layout.hash != found["hash"]:
        raise ValueError("its tensors are not those of its hash")
    return layout


_VIEW = Adapter(_view_apart, _view_together, {"node": str, "run_id": bytes, "down": frozenset[str], "boot": int})
_CONTEXT = Adapter(_context_apart, _context_together, {"view": NodeView, "index": int, "round": int})
_LAYOUT = Adapter(
    _layout_apart, _layout_together, {"hash": int, "tensors": tuple[tuple[str, tuple[int, ...], bool], ...]}
)


def _of(module: str, *attributes: str, stored: str = "", **renamed: str) -> tuple[Entry, ...]:
    """Entries of one module; `stored`: the one that they have in files, `renamed`: see `Entry`."""
    return tuple(
        Entry(f"edgegossip.{module}", attribute, None, f"{stored or module}.{attribute}", renamed)
        for attribute in attributes
    )


STATES = Classes(
    (
        Entry("edgegossip.gossip.base", "NodeView", _VIEW),
        Entry("edgegossip.gossip.scheme", "RoundContext", _CONTEXT, "gossip.here.Here"),
        Entry("edgegossip.layout", "Layout", _LAYOUT),
        *_of("frame", "Frame", "Kind", "Aux"),
        *_of("gossip.rounds", "State", stored="gossip.state", ctx="here", incarnation="life"),
        *_of("gossip.rounds", "Stepped", stored="gossip.state"),
        *_of("gossip.streams", "OutEdge", incarnations="lives"),
        *_of("gossip.streams", "InEdge"),
        Entry("edgegossip.gossip.streams", "EarlyMessages", stored="gossip.inbox.Inbox"),
        *_of("gossip.scheme", "Published"),
        Entry("edgegossip.gossip.symmetric", "Mixing", later=("body", "early")),
        *_of("gossip.symmetric", "Gathered", stored="gossip.mixing"),
        Entry("edgegossip.gossip.symmetric", "ErrorMemory", stored="gossip.publish.Residue"),
        Entry("edgegossip.gossip.symmetric", "PublicCopies", stored="gossip.publish.Told"),
        *_of("gossip.push", "Mass", "Total", incarnation="life"),
        *_of("gossip.parallel", "Streams", "Stream"),
        *_of("gossip.adpsgd", "State"),
        *_of("gossip.adpsgd", "Begun", "Taken", stored="gossip.exchange"),
        *_of("gossip.momentum", "State"),
        *_of("codecs.feedback", "FeedbackState"),
        *_of("codecs.dgc", "DgcState"),
        *_of("codecs.powersgd", "PowerSgdState"),
        *_of("codecs.elasticl", "ElastiClState"),
        *_of("codecs.levels", "LevelRule"),
        *_of("codecs.per_tensor", "PerTensorState", "_Run"),
    )
)
