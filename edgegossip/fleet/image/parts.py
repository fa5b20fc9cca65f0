"""Parts of an image on their own: our wheel for cards with another system, and a folder that
becomes a release for boards that run already (docs/updates.md). They are steps of the same build,
from the same cache."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from edgegossip.fleet.image import boards, client, steps, tools
from edgegossip.fleet.image.build import Request, check_machine, plan, request_of
from edgegossip.fleet.image.steps import Done, Tell
from edgegossip.types import ConfigError, HostError
from edgegossip.update.bundle import LOCK


def build_wheel(
    name: str, output: Path, mirror: str | None, source: Path | None, cache: Path | None, tell: Tell
) -> Path:
    """Our wheel for the Debian of a kind of board, in the folder `output`. Raises
    EdgegossipError."""
    request = request_of(boards.client_board(name).name, output, mirror, source, cache)
    (made,) = _made(request, ("wheel",), tell)["wheel"].folder.glob("*.whl")
    try:
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(made, output / made.name))
    except OSError as error:
        raise HostError(f"{output}: {(error.strerror or str(error)).lower()}") from error


def build_release(
    name: str,
    output: Path,
    mirror: str | None,
    source: Path | None,
    cache: Path | None,
    tell: Tell,
    *,
    with_packages: bool = False,
) -> Path:
    """Our package as a board of that kind has it, and the list of packages that it needs, in the
    new folder `output`; on request with these packages. Raises EdgegossipError."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already: name a new folder, as all that is in it becomes the release")
    request = request_of(boards.client_board(name).name, output, mirror, source, cache)
    layers = ("packages", "release") if with_packages else ("release",)
    done = _made(request, layers, tell)
    aside = output.with_name(f".{output.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        for layer in layers:
            shutil.copytree(done[layer].folder / "site", aside, dirs_exist_ok=True)
        shutil.copyfile(client.lock_file(request.source, request.board.debian), aside / LOCK)
        tools.run(["chmod", "--recursive", "a+rX", aside], 600)  # made with sudo, read without
        aside.rename(output)
    except OSError as error:
        raise HostError(f"{output}: {(error.strerror or str(error)).lower()}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return output


def _made(request: Request, names: Sequence[str], tell: Tell) -> dict[str, Done]:
    """These steps of a build, and those that they need."""
    check_machine()
    every = {step.name: step for step in plan(request)}
    wanted, left = set[str](), list(names)
    while left:
        step = every[left.pop()]
        wanted.add(step.name)
        left.extend(step.needs)
    return steps.carry_out([step for step in every.values() if step.name in wanted], request.cache, tell)
