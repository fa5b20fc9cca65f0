"""How a board comes into a run without a peer list: it founds one, joins through any member's
address, or follows a coordinator whose address is all that it was given.

`found` and `join` end in a `JoinedRun`: the run's manifest, verified, with the recipe in it, and
what is known of the others. `follow` ends in the recipe and the boards of a server run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgegossip import recipe as recipes
from edgegossip.choices import did_you_mean
from edgegossip.files import parse_toml, read_text
from edgegossip.mesh import address as addresses
from edgegossip.mesh.membership import manifest as manifests
from edgegossip.mesh.membership.manifest import Manifest
from edgegossip.mesh.membership.protocol import Rows
from edgegossip.node.spec import check_names, make_topology
from edgegossip.recipe import Recipe
from edgegossip.telemetry.spans import Watch
from edgegossip.types import ConfigError, NodeId, PeerError, UsageError
from edgegossip.untrusted import printable

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity
    from edgegossip.security.identity import Identity

_PAUSE_S = 1.0  # between two rounds of asking all seeds
_FOLLOW_PAUSE_S = 0.5
REFRESH_S = 15.0  # for somebody to answer one who looks again
_DOTS = 1000
_OWN = "data.dir, run.script, run.script_args, run.threads, evaluation.*, network.* and checkpoint.*"


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """Says how a board came into its run."""

    recipe: Recipe
    manifest: Manifest
    known: Rows = ()  # what the member said that we joined through
    seen_as: str = ""  # the host that it sees us at
    signer: NodeId = ""  # who signed the manifest; empty: nobody
    seeds: tuple[str, ...] = ()  # through whom it joined; none: it founded the run
    reached: tuple[tuple[NodeId, str], ...] = ()  # members that answered, and where

    def was_here(self, name: NodeId) -> bool:
        """Return whether this member has taken part before."""
        return name in {self.manifest.members[k] for k, _ in self.known}

    def describe(self) -> str:
        """Return one sentence for the log."""
        m = self.manifest
        signed = (
            f"signed by {self.signer}" if self.signer else "not signed, since this board was started without --identity"
        )
        return (
            f"run {m.run_id.hex()} of {len(m.members)} members, manifest version {m.version} by {m.founder}, {signed}"
        )


def found(
    recipe: Recipe,
    name: NodeId,
    members: Sequence[NodeId],
    security: TlsSecurity | None,
    instance: Callable[[bytes], str] = lambda _: "",
) -> JoinedRun:
    """Make a run of these members. The same recipe and members make the same run, so that a founder
    that was started again comes back to it. `instance`: that of the run with this id, see
    `Manifest`. Raises ConfigError."""
    members = tuple(members)
    if recipe.run.mode != "gossip":
        raise ConfigError(f"--members: {recipe.run.name} is a server recipe; its boards are named with --boards")
    if len(set(members)) != len(members):
        raise ConfigError("--members: a name is there twice; every board has a name of its own")
    if not 2 <= len(members) <= manifests.MAX_MEMBERS:
        count = f"{len(members)} board{'s' if len(members) != 1 else ''}"
        raise ConfigError(f"--members: {count}; a run has 2 to {manifests.MAX_MEMBERS}")
    check_names("--members", members)
    if name not in members:
        raise ConfigError(f"--name {name}: not one of the members {', '.join(members)}{did_you_mean(name, members)}")
    recipe = recipes.with_settings(recipe, {"run.nodes": len(members)})
    topology = make_topology(recipe, members).to_json(members)
    file = json.dumps(topology) if recipe.gossip.topology == "file" else ""
    recipe = _with_topology(recipe, file)
    run_id = _run_id(recipe, members)
    text = recipes.shared_toml(recipes.with_settings(recipe, {"gossip.topology_file": "topology.json" if file else ""}))
    manifest = manifests.make(run_id, name, members, _topology_hash(topology), text, file, instance(run_id))
    if security is None:
        return JoinedRun(recipe, manifest)
    return JoinedRun(recipe, manifest.signed_by(security.identity), signer=name)


def join(
    seeds: Sequence[str],
    name: NodeId,
    security: TlsSecurity | None,
    settings: Iterable[str],
    say: Callable[[str], None],
    patience_s: float = float("inf"),
) -> JoinedRun:
    """Ask the seeds in turn until one answers; every 5 s `say` why none does. Functions that the
    run's recipe names are not called, and no folder of this board is read, unless `settings` say so
    too. Raises ConfigError, PeerError when all of them refuse us or the manifest cannot be trusted,
    UsageError after `patience_s`."""
    from edgegossip.mesh.base import Unreachable
    from edgegossip.mesh.membership.client import RefusedToJoin, request_join

    places = [addresses.parse(seed, "--join") for seed in seeds]
    watch = Watch()
    trouble: dict[str, None] = {}
    refused: set[addresses.Address] = set()
    attempt = 0
    while True:
        seed = places[attempt % len(places)]
        try:
            answer = request_join(seed, name, security, attempt=attempt // len(places))
            break
        except Unreachable as error:
            trouble[str(error)] = None
        except RefusedToJoin as error:
            trouble[str(error)] = None
            refused.add(seed)
            if refused.issuperset(places):
                raise
        attempt += 1
        if watch.due() or attempt == len(places):
            say(f"waiting for a member that answers: {'; '.join(trouble)}")
            trouble.clear()
        if watch.s > patience_s:
            raise UsageError(f"no member answers at {', '.join(seeds)}: start one first, or name another with --join")
        if attempt % len(places) == 0:
            time.sleep(_PAUSE_S)
    manifest = answer.manifest
    if name not in manifest.members:
        raise PeerError(f"{answer.by} passes on a run that {name} is no member of")
    signer, settings = _check_signature(manifest, security), tuple(settings)
    recipe = _recipe_of(manifest)
    if _run_id(recipe, manifest.members) != manifest.run_id:
        raise PeerError(
            f"the recipe that {answer.by} passes on is not that of its run; install the same edgegossip on all boards"
        )
    recipe = _with_own_settings(recipe, settings)
    check_functions(recipe, settings)
    topology = make_topology(recipe, manifest.members).to_json(manifest.members)
    if _topology_hash(topology) != manifest.topology:
        raise PeerError(
            f"{answer.by}'s run has another topology than this edgegossip makes of its recipe: "
            "install the same version on all boards"
        )
    return JoinedRun(recipe, manifest, answer.rows, answer.seen_as, signer, tuple(seeds), ((answer.by, str(seed)),))


def follow(
    coordinator: str,
    name: NodeId,
    identity: Identity | None,
    settings: Iterable[str],
    say: Callable[[str], None],
    patience_s: float,
) -> tuple[Recipe, tuple[NodeId, ...]]:
    """Return the recipe of the run there, with this board's own `settings` in it, and the run's
    boards. Functions that it names are not called, and no folder of this board is read, unless
    `settings` say so too. Every 5 s `say` that nobody answers. Raises ConfigError, PeerError when
    the coordinator refuses us, UsageError after `patience_s`."""
    from edgegossip.flower.connection import BoardCredentials, LinkError, fetch_run

    credentials = None if identity is None else BoardCredentials.of(identity)
    watch = Watch()
    while True:
        try:
            run = fetch_run(coordinator, credentials)
            break
        except LinkError as error:
            if not error.gone:
                raise
            if watch.s > patience_s:
                raise UsageError(f"no coordinator at {coordinator} for {watch.s:.0f} s: {error}") from None
            if watch.due():
                say(f"waiting for the coordinator at {coordinator} for {watch.s:.0f} s: {error}")
            time.sleep(_FOLLOW_PAUSE_S)
    try:
        check_names("its boards", run.boards)
    except ConfigError as error:
        raise PeerError(f"the coordinator's run cannot be used: {printable(str(error), 300)}") from None
    if name not in run.boards:
        known = ", ".join(printable(board, 60) for board in run.boards[:20])
        raise ConfigError(f"--name {name}: not one of the run's boards {known}{did_you_mean(name, run.boards)}")
    recipe, settings = _read_recipe(run.recipe), tuple(settings)
    if recipe.run.mode != "server" or recipe.run.nodes != len(run.boards):
        raise PeerError("the run's recipe and its boards do not fit each other")
    recipe = _with_own_settings(recipe, settings)
    check_functions(recipe, settings)
    return recipe, run.boards


def refresh(joined: JoinedRun, name: NodeId, security: TlsSecurity | None) -> JoinedRun:
    """Ask the members again what they know, for a board that has taken a while to load since it
    asked; as before where none of those it has heard of answers within REFRESH_S."""
    from edgegossip.mesh.membership.client import request_join

    own = joined.manifest.members.index(name)
    known = dict.fromkeys((*joined.seeds, *(row.address for k, row in joined.known if k != own and row.here)))
    until_s = time.monotonic() + REFRESH_S
    for place in filter(None, known):
        with suppress(PeerError, ConfigError):
            answer = request_join(addresses.parse(place, "address"), name, security, joined.manifest.run_id)
            if answer.manifest.hash == joined.manifest.hash:
                return replace(joined, known=answer.rows, seen_as=answer.seen_as or joined.seen_as)
        if time.monotonic() > until_s:
            break
    return joined


def _run_id(recipe: Recipe, members: Sequence[NodeId]) -> bytes:
    """Return 16 bytes of what the run decides."""
    return sha256(recipes.run_id(recipe) + "\0".join(members).encode()).digest()[:16]


def _check_signature(manifest: Manifest, security: TlsSecurity | None) -> NodeId:
    """Return who signed it; empty on a network that is trusted. Raises PeerError."""
    if security is None:
        return ""
    if not manifest.signature:
        raise PeerError("the run's manifest is not signed: its founder must be started with --identity")
    return manifest.verify(security.identity)


def _recipe_of(manifest: Manifest) -> Recipe:
    recipe = _read_recipe(manifest.recipe)
    if recipe.run.mode != "gossip" or recipe.run.nodes != len(manifest.members):
        raise PeerError("the run's manifest and its recipe do not fit each other")
    if recipe.gossip.topology == "file" and not manifest.topology_file.startswith("{"):
        raise PeerError("the run's topology file is not in its manifest; install the same edgegossip on all boards")
    return _with_topology(recipe, manifest.topology_file)


def _read_recipe(text: str) -> Recipe:
    """Read a recipe that came over the network, without the folder of the data and the arguments of
    a script: these this board says itself. Raises PeerError."""
    try:
        if any(line.count(".") > _DOTS for line in text.split("\n")):
            raise ValueError(f"a line with more than {_DOTS} dots")  # tomllib takes minutes for a.a.a.a...
        recipe = recipes.from_dict(parse_toml(text))
    except (ConfigError, ValueError) as error:
        why = printable(str(error), 300)
        raise PeerError(f"the run's recipe cannot be used: {why}; install the same edgegossip on all boards") from error
    return replace(recipe, run=replace(recipe.run, script_args=[]), data=replace(recipe.data, dir=""))


def _with_topology(recipe: Recipe, file: str) -> Recipe:
    """Return the recipe with a topology file's text in the place of its path, so that it is the
    same recipe on every board, each time."""
    if recipe.gossip.topology != "file":
        return recipe
    return replace(recipe, gossip=replace(recipe.gossip, topology_file=file))


def check_functions(recipe: Recipe, settings: Iterable[str]) -> None:
    """Refuse a recipe that came over the network and would decide what this board executes, or
    which of its files it reads. Raises ConfigError."""
    own = {key.strip(): text.strip() for key, _, text in (setting.partition("=") for setting in settings)}
    if recipe.run.script and "run.script" not in own:
        script = printable(recipe.run.script, 100)
        raise ConfigError(f"the run trains with {script}: name this board's own, as in edgegossip node {script} ...")
    named = {
        "data.name": recipe.data.name,
        "model.name": recipe.model.name,
        "training.task": recipe.training.task,
        "training.optimizer": recipe.training.optimizer,
    }
    for key, name in named.items():
        if ":" in name and own.get(key) != name:
            raise ConfigError(
                f"the run's {key} is {printable(name, 100)}, a function that would be called on this board: "
                f"say --set {key}={printable(name, 100)} too if you trust it"
            )
    key, folder = "model.params.weights", recipe.model.params.get("weights")
    if ":" not in recipe.model.name and folder and own.get(key) != folder:
        shown = printable(str(folder), 100)
        raise ConfigError(
            f"the run's {key} is {shown}, a folder of this board: say --set {key}={shown} too if it may be read"
        )


def _with_own_settings(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Return the recipe with what is each board's own matter, which may be set where it joins.
    Raises ConfigError."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: write it as section.key=value, such as --set run.threads=2")
        changed = recipes.with_settings(recipe, {key.strip(): recipes.parse_value(text.strip())})
        if recipes.run_id(changed) != recipes.run_id(recipe):
            raise ConfigError(f"--set {setting}: the run decides that; a board that joins may set {_OWN}")
        recipe = changed
    return recipe


def _topology_hash(topology: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everybody's neighbours and weights, from Topology.to_json: the same on
    every board, whatever its processor makes of the last digits."""
    rounds = [
        {"edges": sorted(r["edges"]), "weights": [[round(w, 12) for w in row] for row in r["weights"]]}
        for r in topology["rounds"]
    ]
    text = json.dumps([topology["members"], rounds], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def advertised(listening: str, advertise: str | None, seen_as: str) -> str:
    """Return the address at which others reach us: what was said, what we listen on, or the host
    that a member sees us at with our port. Empty: not known yet. Raises ConfigError."""
    where = addresses.parse(listening, "listen address")
    if advertise:
        return str(addresses.parse_host(advertise, "--advertise", where.port))
    if where.host not in ("0.0.0.0", "::"):
        return str(where)
    return str(addresses.Address(seen_as, where.port)) if seen_as else ""


def read_members(text: str) -> tuple[NodeId, ...]:
    """Read names from A,B,C, or from the path of a file with one name a line. Raises
    ConfigError."""
    if "," not in text and Path(text).is_file():
        try:
            lines = read_text(Path(text)).splitlines()
        except ValueError as error:
            raise ConfigError(f"--members {text}: the file cannot be read: {error}; write one name a line") from None
        return tuple(filter(None, (line.partition("#")[0].strip() for line in lines)))
    return tuple(filter(None, (name.strip() for name in text.split(","))))
