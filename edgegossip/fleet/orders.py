"""Orders in the fleet's folder (orders/NAME.json): what each board runs and which release it has.

The operator's key signs when the operator speaks: with each change of a profile, each push of a
release, each revocation, and `edgegossip fleet renew`. `fleet serve` hands orders to boards without
any key of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgegossip.files import refused_as, write_file
from edgegossip.fleet import provisioning, releases
from edgegossip.fleet.lock import locked
from edgegossip.fleet.store import Fleet
from edgegossip.security.identity import Identity
from edgegossip.types import DataError, EdgegossipError, NodeId, UsageError
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
    with _changing(fleet):
        new = {name: provisioning.load_profile(fleet.folder, name).changed(**given) for name in names}
        runs = {name: provisioning.node_arguments(p, name, fleet.boards) for name, p in new.items() if p.runs}
        orders = _orders(fleet, {name: (new[name].number, arguments) for name, arguments in runs.items()})
        _keep(fleet.folder, new, orders)


def push(fleet: Fleet, file: Path, boards: Sequence[NodeId]) -> tuple[int, tuple[NodeId, ...]]:
    """Order these boards (none: all of the fleet) to have the release in that file. Returns its
    number, and them. Raises ConfigError, DataError, UsageError."""
    number, names = releases.push(fleet, file, boards)
    renew(fleet, names)
    return number, names


def make_bundle(fleet: Fleet, name: NodeId, now_s: float) -> bytes:
    """Make a board's provisioning bundle. Where that says another command line than its order, as
    when the fleet has grown, the order is signed anew first: a number stands for one of them."""
    board = fleet.valid_board(name).name
    with _changing(fleet):
        before, profile = last(fleet.folder, board), provisioning.load_profile(fleet.folder, board)
        arguments = provisioning.node_arguments(profile, board, fleet.boards)
        if before is not None and before.arguments not in ((), arguments):
            _keep(fleet.folder, {board: profile}, _orders(fleet, {board: (profile.number, arguments)}))
    return provisioning.make_bundle(fleet, board, now_s)


def renew(fleet: Fleet, names: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Sign anew what these boards run and have, for `DAYS` days more; return those for whom there
    is something to say. What they run stays, whoever has joined or left the fleet since. Raises
    ConfigError, DataError, UsageError."""
    with _changing(fleet):
        wanted = releases.load(fleet.folder).wanted
        profiles, what = dict[NodeId, provisioning.Profile](), dict[NodeId, tuple[int, tuple[str, ...]]]()
        for name in names:
            before = last(fleet.folder, fleet.valid_board(name).name)
            if before is not None or name in wanted:  # else its kit says what it runs
                profiles[name] = profile = provisioning.load_profile(fleet.folder, name)
                what[name] = profile.number, before.arguments if before else ()
        _keep(fleet.folder, profiles, _orders(fleet, what))
    return tuple(what)


@contextmanager
def _changing(fleet: Fleet) -> Iterator[None]:
    with refused_as(UsageError, fleet.folder), locked(fleet.folder):
        yield


def _orders(
    fleet: Fleet, what: Mapping[NodeId, tuple[int, tuple[str, ...]]]
) -> dict[NodeId, tuple[int, dict[str, str]]]:
    """Sign the next order of each board, of whose last one `what` has the number, with these
    arguments; return its number, and it."""
    if not what:
        return {}
    wanted, now_s, operator = releases.load(fleet.folder).wanted, int(time.time()), fleet.operator()
    until_s, revoked = now_s + DAYS * 86_400, operator.revocations.number
    found = {}
    for name, (number, arguments) in what.items():
        release = wanted.get(name, 0)
        manifest = releases.read_head(releases.bundle_file(fleet.folder, release))[0].digest if release else ""
        order = Order(name, number + 1, now_s, until_s, revoked, arguments, release, manifest)
        found[name] = order.number, order.signed(operator)
    return found


def _keep(
    folder: Path,
    profiles: Mapping[NodeId, provisioning.Profile],
    orders: Mapping[NodeId, tuple[int, dict[str, str]]],
) -> None:
    for name, profile in profiles.items():
        number, signed = orders.get(name, (profile.number, None))
        # Before its order: a number that is signed is never given to another one.
        provisioning.keep_profile(folder, name, replace(profile, number=number))
        if signed is not None:
            file = _file(folder, name)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_file(file, (json.dumps(signed, indent=1) + "\n").encode(), 0o600)


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
