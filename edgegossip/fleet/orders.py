"""Orders in the fleet's folder (orders/NAME.json): what each board runs and which release it has.

The operator's key signs when the operator speaks: with each change of a profile, each push of a
release, each revocation, and `edgegossip fleet renew`. `fleet serve` hands orders to boards without
any key of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgegossip.files import write_file
from edgegossip.fleet import provisioning, releases
from edgegossip.fleet.store import Fleet
from edgegossip.security.identity import Identity
from edgegossip.types import DataError, EdgegossipError, NodeId
from edgegossip.update.order import Order

ORDERS = "orders"
DAYS = 90  # an order counts so long


def change(fleet: Fleet, names: Sequence[NodeId], given: dict[str, Any]) -> None:
    """Keep what is given (not None) in the profile of each of these boards, and sign what they run
    from now on. All are checked before one is changed. Raises ConfigError, UsageError without a
    valid operator."""
    for name in names:
        fleet.valid_board(name)
    provisioning.check_others(fleet, given)
    new = {name: provisioning.load_profile(fleet.folder, name).changed(**given) for name in names}
    boards = fleet.boards
    runs = {name: provisioning.node_arguments(p, name, boards) for name, p in new.items() if p.runs}
    for name, profile in new.items():
        if name not in runs:
            provisioning.keep_profile(fleet.folder, name, profile)
    _sign(fleet, {name: (new[name], arguments) for name, arguments in runs.items()})


def push(fleet: Fleet, file: Path, boards: Sequence[NodeId]) -> tuple[int, tuple[NodeId, ...]]:
    """Order these boards (none: all of the fleet) to have the release in that file. Returns its
    number, and them. Raises ConfigError, DataError, UsageError."""
    number, names = releases.push(fleet, file, boards)
    renew(fleet, names)
    return number, names


def renew(fleet: Fleet, names: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Sign anew what these boards run and have, for `DAYS` days more; return those for whom there
    is something to say. Raises ConfigError, DataError, UsageError."""
    wanted, found = releases.load(fleet.folder).wanted, {}
    for name in names:
        before, profile = (
            last(fleet.folder, fleet.valid_board(name).name),
            provisioning.load_profile(fleet.folder, name),
        )
        if before is not None or name in wanted:  # else its kit says what it runs
            found[name] = profile, before.arguments if before else ()
    _sign(fleet, found)
    return tuple(found)


def _sign(fleet: Fleet, what: Mapping[NodeId, tuple[provisioning.Profile, tuple[str, ...]]]) -> None:
    if not what:
        return
    index, now_s, operator = releases.load(fleet.folder), int(time.time()), fleet.operator()
    profiles, signed = dict[NodeId, provisioning.Profile](), dict[NodeId, dict[str, str]]()
    for name, (profile, arguments) in what.items():
        profiles[name] = new = replace(profile, number=profile.number + 1)
        release = index.wanted.get(name, 0)
        manifest = str(index.bundles[str(release)]["manifest"]) if release else ""
        until_s, revoked = now_s + DAYS * 86_400, operator.revocations.number
        order = Order(name, new.number, now_s, until_s, revoked, arguments, release, manifest)
        signed[name] = order.signed(operator)
    for name, profile in profiles.items():
        # Before its order: a number that is signed is never given to another one.
        provisioning.keep_profile(fleet.folder, name, profile)
        file = _file(fleet.folder, name)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_file(file, (json.dumps(signed[name], indent=1) + "\n").encode(), 0o600)


def newer(folder: Path, name: NodeId, number: int, reader: Identity) -> dict[str, str] | None:
    """Return that board's order, as the operator signed it, if it came after `number`. Raises
    DataError for one that the board would not take: damaged, of a revoked operator."""
    signed = _signed(folder, name)
    try:
        return signed if signed and Order.read(signed, reader, name).number > number else None
    except EdgegossipError as error:
        raise _damaged(folder, name, error) from error


def last(folder: Path, name: NodeId) -> Order | None:
    """Return that board's order, whoever signed it. Raises DataError for one that is damaged."""
    signed = _signed(folder, name)
    try:
        return Order.parse(signed["body"]) if signed else None
    except EdgegossipError as error:
        raise _damaged(folder, name, error) from error


def _signed(folder: Path, name: NodeId) -> dict[str, str] | None:
    try:
        found = json.loads(_file(folder, name).read_bytes())
        return {key: str(found[key]) for key in ("body", "signature")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, name, error) from error


def _damaged(folder: Path, name: NodeId, error: Exception) -> DataError:
    return DataError(f"{_file(folder, name)} is no order for {name} ({error}): say `edgegossip fleet set {name}` again")


def _file(folder: Path, name: NodeId) -> Path:
    return folder / ORDERS / f"{name}.json"
