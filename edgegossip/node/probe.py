"""What a training script would train as a board of a run: it runs up to its `join`, or its first
round, in a process like a board's, and ends there."""

from __future__ import annotations

import os

from edgegossip.files import write_json
from edgegossip.node.main import NodeOptions, Parent, parent_pipe
from edgegossip.recipe import Recipe
from edgegossip.telemetry.machine import peak_rss_bytes
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.types import EdgegossipError


def run_probe(recipe: Recipe, options: NodeOptions, ends_at: str) -> None:
    """Write to the file `options.save_to` what joined, the most memory that this took, and what a
    run would say of it; then the parent hears the event `probed`. Raises UsageError, which it is
    told, when the script does not come to its join, or with `ends_at` "first round" to that."""
    pipe = parent_pipe(0.0)
    Parent()  # this process ends when it does
    assert options.save_to is not None
    index = -1 if options.name == COORDINATOR else options.members.index(options.name)
    try:
        from edgegossip.training.script import ScriptWorkload

        told: list[tuple[str, str]] = []
        joined = ScriptWorkload(
            recipe, index, options.name, lambda event, text, **_: told.append((event, text)), ends_at=ends_at
        )
    except EdgegossipError as error:
        pipe.event(options.name, "error", str(error), code=error.exit_code)
        raise
    document = {
        "layout": joined.layout.plain(),
        "agreement": dict(joined.agreement().facts),
        "peak_rss_bytes": peak_rss_bytes(os.getpid()),
        "notices": [text for event, text in told if event in ("notice", "doubt")],
    }
    write_json(options.save_to, document)
    pipe.event(options.name, "probed", f"the script has come to its {ends_at}")
