"""A board's provisioning bundle, made of what the fleet's folder knows of it: its identity, and its
profile, which is kept as profiles/NAME.json, for its owner only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.choices import did_you_mean
from edgegossip.files import refused_as, write_file
from edgegossip.fleet.kitfile import ProvisioningBundle, Wifi
from edgegossip.fleet.store import Fleet
from edgegossip.mesh import address as addresses
from edgegossip.security.identity import CA, CERTIFICATE, CRL, KEY
from edgegossip.types import ConfigError, DataError, NodeId, UsageError

BOARDS = (
    *("raspberry-pi-3", "raspberry-pi-4", "raspberry-pi-5", "raspberry-pi-zero-2-w"),
    *("jetson-nano", "jetson-orin-nano", "jetson-xavier-nx", "jetson-agx-xavier", "coral-dev-board"),
    "other",
)
LISTEN = "0.0.0.0:7700"
# What a board that joins says itself (node/bootstrap.py): its own matters, and functions that it
# trusts.
_OWN = ("data.dir=", "data.name=", "model.name=", "run.threads=", "evaluation.", "network.", "checkpoint.")
_KEY_TYPES = ("ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-")


@dataclass(frozen=True, slots=True)
class Profile:
    """Says what a board is and runs. One of `coordinator` and `join` says what it runs; neither:
    nothing yet."""

    board: str = "other"
    wifi: tuple[Wifi, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    recipe: str = ""  # of a mesh: a name in the package
    settings: tuple[str, ...] = ()  # KEY=VALUE of that recipe; with a coordinator only what is the board's own matter
    coordinator: str = ""  # HOST:PORT
    join: tuple[str, ...] = ()  # HOST:PORT of boards; the first is the founder's
    founder: NodeId = ""  # who begins a run of the mesh
    boards: tuple[NodeId, ...] = ()  # of the run of a mesh; none: all of the fleet
    listen: str = LISTEN
    check_in: str = ""  # HOST:PORT of `edgegossip fleet serve`
    number: int = 0  # of the last order to it, see edgegossip.fleet.orders

    @property
    def runs(self) -> bool:
        """Whether it says what the board runs, so that a bundle can be made."""
        return bool(self.coordinator or self.join)

    def changed(self, **given: Any) -> Profile:
        """Return the profile with what is given and not None. A board that gets a coordinator after
        peers, or the other way round, also loses the recipe and settings that were for those, if
        none are given. Raises ConfigError for what cannot be."""
        new = replace(self, **{key: value for key, value in given.items() if value is not None})
        if given.get("coordinator") and given.get("join"):
            raise ConfigError("--coordinator is for runs through a server, --join for runs of the mesh: leave one out")
        if given.get("coordinator"):
            new = replace(new, join=(), founder="", boards=given.get("boards") or ())
        elif given.get("join"):
            new = replace(new, coordinator="")
        if (self.join and new.coordinator) or (self.coordinator and new.join):
            new = replace(new, recipe=given.get("recipe") or "", settings=given.get("settings") or ())
        checked = _checked(new)
        _check_run(checked)
        return checked


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
            addresses.parse(place, option)
    for line in profile.ssh_keys:
        if "\n" in line or not line.startswith(_KEY_TYPES):
            raise ConfigError("--ssh-key: not a public key; name the file that ends in .pub")
    if "/" in profile.recipe or profile.recipe.endswith(".toml"):
        raise ConfigError(
            f"--recipe {profile.recipe}: boards have the package's recipes only: name one, and change its keys with --set"
        )
    return profile


def _check_run(profile: Profile) -> None:
    """Refuse what `edgegossip node` would not take: no board could say it to anybody. Raises
    ConfigError."""
    if profile.coordinator:
        _check_client(profile)
    if profile.join and not profile.founder:
        raise ConfigError(
            "--join also takes --founder NAME: the board that begins the run, which listens at the first --join"
        )
    recipe = profile.recipe or ("quickstart-server" if profile.coordinator else "quickstart-gossip")
    found = recipes.load(recipe, profile.settings)
    if profile.join and found.run.mode != "gossip":
        raise ConfigError(
            f"--recipe {recipe} is for runs through a coordinator: say --coordinator HOST:PORT, or another recipe"
        )


def _check_client(profile: Profile) -> None:
    """The coordinator tells its boards recipe and members, so that they cannot differ."""
    there = "the coordinator tells its boards: say it to `edgegossip coordinator`"
    if profile.recipe:
        raise ConfigError(f"--recipe {profile.recipe}: {there}, and leave it out here")
    if profile.boards:
        raise ConfigError(f"--boards: {there}, and leave it out here")
    for setting in profile.settings:
        recipes.load("quickstart-server", (setting,))
        if not setting.startswith(_OWN):
            own = ", ".join(key.removesuffix("=") for key in _OWN)
            raise ConfigError(f"--set {setting}: {there}; boards themselves have only {own}")


def node_arguments(profile: Profile, name: NodeId, fleet: Sequence[NodeId]) -> tuple[str, ...]:
    """Return the arguments of `edgegossip node` on that board. `fleet`: all boards of it. Raises
    ConfigError when the profile does not say, or what no board would take."""
    if profile.coordinator:
        own = [part for setting in profile.settings if setting.startswith(_OWN) for part in ("--set", setting)]
        return ("--coordinator", profile.coordinator, *own)
    _check_run(profile)
    boards = profile.boards or tuple(fleet)
    if name not in boards:
        raise ConfigError(f"{name} is not among the boards of its run ({', '.join(boards)}): say --boards again")
    settings = [part for setting in profile.settings for part in ("--set", setting)]
    if not any(setting.startswith("run.nodes=") for setting in profile.settings):
        settings += ["--set", f"run.nodes={len(boards)}"]
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


def load_profile(folder: Path, name: NodeId) -> Profile:
    """Read a board's profile of a fleet's folder; the default where none was kept. Raises
    DataError."""
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


def keep_profile(folder: Path, name: NodeId, profile: Profile) -> None:
    """Write a board's profile into the fleet's folder. Raises OSError."""
    file = _file(folder, name)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(file, (json.dumps(asdict(profile), indent=1) + "\n").encode(), 0o600)


def _file(folder: Path, name: NodeId) -> Path:
    return folder / "profiles" / f"{name}.json"


def make_bundle(fleet: Fleet, name: NodeId, now_s: float) -> bytes:
    """Make the provisioning bundle of that board: the bytes of `NAME.kit`, signed by the fleet's
    operator. Raises ConfigError for a name that has no valid certificate or no run, DataError,
    UsageError."""
    board = fleet.valid_board(name)
    profile = load_profile(fleet.folder, name)
    folder = fleet.folder / board.folder
    try:
        identity = {file: (folder / file).read_text() for file in (CA, CERTIFICATE, KEY, CRL)}
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {(error.strerror or str(error)).lower()}; edgegossip fleet add --again {name}"
        ) from error
    bundle = ProvisioningBundle(
        name=name,
        board=profile.board,
        fleet=fleet.name,
        fleet_id=fleet.fleet_id,
        serial=board.serial,
        issued_s=int(now_s),
        identity=identity,
        node=node_arguments(profile, name, fleet.boards),
        number=profile.number,
        check_in=profile.check_in,
        wifi=profile.wifi,
        ssh_keys=profile.ssh_keys,
    )
    return bundle.signed(fleet.operator())


def write_bundle(file: Path, data: bytes) -> None:
    """Put a bundle into `file`, for its owner only, whatever was there. Raises UsageError."""
    with refused_as(UsageError, file):
        write_file(file, data, 0o600)


def in_repository(file: Path) -> bool:
    """Return whether a git repository is around it, which does not ignore `*.kit`."""
    for folder in file.absolute().parents:
        if (folder / ".git").exists():
            try:
                return "*.kit" not in (folder / ".gitignore").read_text().splitlines()
            except OSError:
                return True
    return False


def check_others(fleet: Fleet, given: dict[str, Any], new: Sequence[NodeId] = ()) -> None:
    """Check that the boards that are named in there are in the fleet, or among those that are to be
    added. Raises ConfigError."""
    for name in (*filter(None, [given.get("founder")]), *(given.get("boards") or ())):
        if name not in new:
            fleet.valid_board(name)
