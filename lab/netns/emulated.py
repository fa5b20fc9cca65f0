"""Boards that this machine emulates: how much slower than a core of it they are.

`python -m lab.netns.emulated` is a process that computes what a board does: a recipe
(TOML) in, median CPU seconds of a local update and their spread out."""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.fork_server import environment_of
from edgegossip.recipe import Recipe
from edgegossip.scale.devices import DeviceProfile, load_device
from edgegossip.scale.summary import spread_of
from edgegossip.types import HostError

_TIMEOUT_S = 300.0
_HANDLED = ("fp32", "4-bit-elastiquant", "e-elastiquant", "co3")  # codecs from memory's speed to entropy coding
_LAST = 4  # rounds by which the speed of boards is kept


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """Says how much slower than a core of this machine a board is."""

    slower: float = 1.0  # so many CPU seconds of a board for one here while it computes
    handling: float = 1.0  # the same while it encodes, or does anything else with messages
    update_s: float | None = None  # what a local update takes the board by its profile; None: what `slower` makes of it

    def slower_after(self, updates_s: Sequence[float], boards: int) -> float:
        """Return `slower` for the next round, after local updates that took so many CPU seconds
        here, the newest last. What a core of this machine does in a second changes by the minute
        where the machine is a virtual one, and the boards' does not."""
        last = updates_s[-_LAST * boards :]
        if self.update_s is None or not last:
            return self.slower
        # The mean: so that what is charged in all is what the profile says.
        return self.update_s / statistics.mean(last)


def of_profile(recipe: Recipe, device: str) -> EmulatedDevice:
    """Return a board of that profile, measured here and now. Takes some seconds.

    Computing: operations a second of the recipe's own local updates here, over those of the
    profile on as many threads. They are measured as boards are emulated, in processes on all
    cores at a time, which share caches and memory. Raises ConfigError for an unknown profile or
    a model without a product that is counted, HostError when it could not be measured."""
    from edgegossip.scale import cost

    profile = load_device(device)
    operations = cost.counted(recipe, cost.of_recipe(recipe)[1]) * recipe.training.local_steps
    there_s = operations / profile.training_rate(recipe.training.precision, recipe.run.threads)
    slower = there_s / update_here(recipe)[0]
    return EmulatedDevice(slower, handling_of(profile, rates_here()), there_s)


def handling_of(profile: DeviceProfile, rates: Mapping[str, tuple[float, float]]) -> float:
    """Return how many CPU seconds of that board one here is while messages are made and taken
    in: the median over codecs of what this machine encodes and decodes in a second, `rates`,
    over what the profile says. `rates`: by codec, as calibrate.codec_rates gives them."""
    encode = [here / profile.encode_rate(name) for name, (here, _) in rates.items()]
    return statistics.median(encode + [here / profile.decode_rate(name) for name, (_, here) in rates.items()])


def rates_here() -> dict[str, tuple[float, float]]:
    """Measure what `handling_of` compares profiles with. Takes some seconds; imports torch."""
    from edgegossip.scale import calibrate

    return calibrate.codec_rates(_HANDLED)


def update_here(recipe: Recipe) -> tuple[float, float]:
    """Return the CPU seconds of a local update and their `spread_of`, of as many processes as
    compute at a time: they share caches and memory. Takes some seconds. Raises HostError."""
    each = _told_here(recipe)
    return statistics.mean(seconds for seconds, _ in each), statistics.mean(spread for _, spread in each)


def _told_here(recipe: Recipe) -> list[tuple[float, float]]:
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
        told = [process.communicate(timeout=_TIMEOUT_S)[0].split() for process in each]
        return [(float(seconds), float(spread)) for seconds, spread in told]
    except (ValueError, OSError, subprocess.TimeoutExpired):
        raise HostError("a local update of this recipe could not be timed here") from None
    finally:
        for process in each:
            process.kill()
            process.wait()


def workload_of(recipe: Recipe) -> str:
    """Return a digest of what a local update is made of: recipes with the same one are as fast."""
    parts = (asdict(recipe.model), asdict(recipe.training), recipe.data.name, recipe.data.augment, recipe.run.threads)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def emulation_key(how: Mapping[str, Any]) -> str:
    """Return a key of what decides how much slower boards are; empty where no profile says it."""
    return f"{how['profiles']} {how['workload']}" if "workload" in how else ""


def known(results: Mapping[str, Mapping[str, Any]]) -> dict[str, EmulatedDevice]:
    """Return the devices of finished cells, by their `emulation_key`: a run that goes on
    emulates the same boards, whatever this machine does now."""
    return {
        key: EmulatedDevice(**r["row"]["played"])
        for r in results.values()
        if r.get("state") == "done" and (key := emulation_key(r["how"])) and "played" in r["row"]
    }


def main() -> None:
    """Time local updates of the recipe on standard input, and print median and spread."""
    from edgegossip.scale import calibrate

    recipe = recipes.from_dict(tomllib.loads(sys.stdin.read()))
    seconds = calibrate.update_seconds(recipe, time.process_time)
    print(statistics.median(seconds), spread_of(seconds))


if __name__ == "__main__":
    main()
