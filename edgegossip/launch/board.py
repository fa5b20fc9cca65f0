"""What a board that is started by hand shows and keeps: a live line and a run folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgegossip import recipe as recipes
from edgegossip.node.spec import NodeSpec
from edgegossip.profiling.environment import environment
from edgegossip.profiling.run_folder import RunFolder
from edgegossip.profiling.sinks import RecordSink, Tee
from edgegossip.report.live import Live, LiveSink


def board_output(runs_dir: Path) -> Callable[[NodeSpec], tuple[RecordSink, Path | None]]:
    """For `node.main.run_node`: makes the sink, and says where the final model goes."""

    def open_output(spec: NodeSpec) -> tuple[RecordSink, Path | None]:
        name = f"{spec.recipe.run.name}-{spec.name}"
        folder = RunFolder.create(runs_dir, name, recipes.to_toml(spec.recipe), environment())
        live = LiveSink(Live((spec.name,), spec.recipe.run.rounds))
        return Tee(folder, live), folder.checkpoint_dir / f"{spec.name}.npz"

    return open_output
