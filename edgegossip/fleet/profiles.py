"""What goes into a board's kit besides its identity: kept in the fleet's folder as profiles/NAME.json, for its owner only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from edgegossip.choices import did_you_mean
from edgegossip.fleet.kitfile import Wifi
from edgegossip.mesh.security.revocations import write_file
from edgegossip.types import ConfigError, DataError, NodeId

BOARDS = (
    *("raspberry-pi-3", "raspberry-pi-4", "raspberry-pi-5", "raspberry-pi-zero-2-w"),
    *("jetson-nano", "jetson-orin-nano", "jetson-xavier-nx", "jetson-agx-xavier", "coral-dev-board"),
    "other",
)
LISTEN = "0.0.0.0:7700"
# What a board that joins says itself (node/entering.py): its own matters, and functions that it trusts.
_OWN = ("data.dir=", "data.name=", "model.name=", "run.threads=", "evaluation.", "network.", "checkpoint.")
_KEY_TYPES = ("ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-")


@dataclass(frozen=True, slots=True)
class Profile:
    """One of `coordinator` and `join` says what the board runs; neither: nothing yet."""

    board: str = "other"
    wifi: tuple[Wifi, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    recipe: str = ""  # a name in the package
    settings: tuple[str, ...] = ()  # KEY=VALUE of that recipe
    coordinator: str = ""  # HOST:PORT
    join: tuple[str, ...] = ()  # HOST:PORT of boards; the first is the founder's
    founder: NodeId = ""  # who begins a run of the mesh
    boards: tuple[NodeId, ...] = ()  # of the run; none: all of the fleet
    listen: str = LISTEN
    check_in: str = ""  # HOST:PORT of `edgegossip fleet serve`
    number: int = 0  # how many times this was changed: a board that checks in takes over a newer command line

    def changed(self, **given: Any) -> Profile:
        """With what is given and not None. A board that gets a coordinator after peers, or the other way round, also loses the
        recipe and settings that were for those, if none are given. Raises ConfigError for what cannot be."""
        new = replace(self, **{key: value for key, value in given.items() if value is not None})
        if given.get("coordinator") and given.get("join"):
            raise ConfigError("--coordinator is for runs through a server, --join for runs of the mesh: leave one out")
        if given.get("coordinator"):
            new = replace(new, join=(), founder="")
        elif given.get("join"):
            new = replace(new, coordinator="")
        if (self.join and new.coordinator) or (self.coordinator and new.join):
            new = replace(new, recipe=given.get("recipe") or "", settings=given.get("settings") or ())
        return _checked(replace(new, number=self.number + 1))


def _checked(profile: Profile) -> Profile:
    if profile.board not in BOARDS:
        hint = did_you_mean(profile.board, BOARDS) or f"; there are {', '.join(BOARDS)}"
        raise ConfigError(f"--board {profile.board}: not a board that is known{hint}")
    for option, places in (
        ("--coordinator", filter(None, [profile.coordinator])),
        ("--join", profile.join),
        ("--check-in", filter(None, [profile.check_in])),
        ("--listen", [profile.listen]),
    ):
        for place in places:
            check_place(option, place)
    for line in profile.ssh_keys:
        if "\n" in line or not line.startswith(_KEY_TYPES):
            raise ConfigError("--ssh-key: not a public key; name the file that ends in .pub")
    if "/" in profile.recipe or profile.recipe.endswith(".toml"):
        raise ConfigError(
            f"--recipe {profile.recipe}: boards have the package's recipes only: name one, and change its keys with --set"
        )
    return profile


def check_place(option: str, place: str) -> None:
    """Raises ConfigError unless it is HOST:PORT of something that others reach."""
    from edgegossip.mesh import address as addresses

    addresses.parse(place, option)


def arguments(profile: Profile, name: NodeId, fleet: Sequence[NodeId]) -> tuple[str, ...]:
    """Of `edgegossip node` on that board. `fleet`: all boards of it. Raises ConfigError when the profile does not say."""
    boards = profile.boards or tuple(fleet)
    if name not in boards:
        raise ConfigError(f"{name} is not among the boards of its run ({', '.join(boards)}): say --boards again")
    settings = [part for setting in profile.settings for part in ("--set", setting)]
    if not any(setting.startswith("run.nodes=") for setting in profile.settings):
        settings += ["--set", f"run.nodes={len(boards)}"]
    if profile.coordinator:
        recipe = profile.recipe or "quickstart-server"
        return (recipe, *settings, "--boards", ",".join(boards), "--coordinator", profile.coordinator)
    if not profile.join:
        raise ConfigError(
            f"nothing says what {name} runs: edgegossip fleet set {name} --coordinator HOST:PORT, "
            "or --join HOST:PORT --founder NAME for a run without a server"
        )
    if name == profile.founder:
        recipe = profile.recipe or "quickstart-gossip"
        reach = ("--listen", profile.listen, "--advertise", profile.join[0])
        return (recipe, *settings, "--members", ",".join(boards), *reach)
    own = [part for setting in profile.settings if setting.startswith(_OWN) for part in ("--set", setting)]
    return (*(part for seed in profile.join for part in ("--join", seed)), "--listen", profile.listen, *own)


def load(folder: Path, name: NodeId) -> Profile:
    """Of a fleet's folder; the default where none was kept. Raises DataError."""
    file = _file(folder, name)
    try:
        found: Mapping[str, Any] = json.loads(file.read_bytes())
        known = {f.name for f in fields(Profile)}
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if k in known}
        return Profile(**(plain | {"wifi": tuple(Wifi(**w) for w in found.get("wifi", ()))}))
    except FileNotFoundError:
        return Profile()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} is damaged ({error}): remove it, and say it again with `edgegossip fleet set`"
        ) from error


def keep(folder: Path, name: NodeId, profile: Profile) -> None:
    """Raises OSError."""
    file = _file(folder, name)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(file, (json.dumps(asdict(profile), indent=1) + "\n").encode(), 0o600)


def _file(folder: Path, name: NodeId) -> Path:
    return folder / "profiles" / f"{name}.json"
