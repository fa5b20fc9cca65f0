"""Boards that this machine plays: how much slower than a core of it they are. `python -m edgegossip.scale.played` is a process
that computes what a board does: recipe (TOML) in, median CPU seconds of a local update out."""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.launch.nursery import environment_of
from edgegossip.recipe import Recipe
from edgegossip.scale.devices import load_device
from edgegossip.types import HostError

BOARD = "raspberry-pi-4"  # who is played where nobody says which board
_TIMEOUT_S = 300.0


def slower_than_here(recipe: Recipe, device: str) -> float:
    """So many CPU seconds of that board for one of this machine: operations a second of the recipe's own local updates, measured
    here and now, over those of the board's profile on as many threads. Measured as boards are played, in processes on all cores
    at a time, which share caches and memory. Takes some seconds.

    Raises ConfigError for an unknown profile or a model without a product that is counted, HostError when it could not be
    measured."""
    from edgegossip.scale import calibrate, cost

    profile = load_device(device)
    operations = calibrate.counted(recipe, cost.of_recipe(recipe)[1]) * recipe.training.local_steps
    there_s = operations / profile.training_rate(recipe.training.precision, recipe.run.threads)
    return there_s / statistics.mean(_seconds_here(recipe))


def _seconds_here(recipe: Recipe) -> Sequence[float]:
    """CPU seconds of a local update, of each of as many processes as compute at a time."""
    cores = max(1, len(os.sched_getaffinity(0)) // recipe.run.threads)
    command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
    environment = environment_of(recipe.run.threads)
    each = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) for _ in range(cores)]
    try:
        for process in each:
            assert process.stdin is not None
            process.stdin.write(recipes.to_toml(recipe))
            process.stdin.close()
            process.stdin = None  # `communicate` would close it again
        return [float(process.communicate(timeout=_TIMEOUT_S)[0]) for process in each]
    except (ValueError, OSError, subprocess.TimeoutExpired):
        raise HostError("a local update of this recipe could not be timed here") from None
    finally:
        for process in each:
            process.kill()
            process.wait()


def workload_of(recipe: Recipe) -> str:
    """What a local update is made of, as a digest: recipes with the same one are as fast."""
    parts = (asdict(recipe.model), asdict(recipe.training), recipe.data.name, recipe.data.augment, recipe.run.threads)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def pace_key(how: Mapping[str, Any]) -> str:
    """Of what decides how much slower boards are; empty where no profile says it."""
    return f"{how['profiles']} {how['workload']}" if "profiles" in how and "workload" in how else ""


def known_paces(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Of finished cells, by their `pace_key`: a run that goes on plays the same boards, whatever this machine does now."""
    return {
        key: r["row"]["slower"]
        for r in results.values()
        if r.get("state") == "done" and (key := pace_key(r["how"])) and "slower" in r["row"]
    }


def main() -> None:
    from edgegossip.scale import calibrate

    recipe = recipes.from_dict(tomllib.loads(sys.stdin.read()))
    print(statistics.median(calibrate.update_seconds(recipe, time.process_time)))


if __name__ == "__main__":
    main()
