"""What a machine of `fleet serve` can do to boards that has a coordinator's key, and no operator's:
the attacks of The Update Framework's and Uptane's lists."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.fleet import kitfile, orders, provisioning, releases
from edgegossip.fleet.checkins import Server, open_check_ins, status, table
from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.security.identity import Identity
from edgegossip.types import DataError, DecodeError, PeerError, UsageError
from edgegossip.update.order import Order
from tests.sentence import done_or_told
from tests.update.place import Machine, Place

DAY_S = 86_400
RUN = {"coordinator": "10.0.0.9:8000"}


def sign(place: Place, name: str = "pi-01", **given: Any) -> dict[str, str]:
    """An order of the operator's, as it travels."""
    now_s = int(time.time())
    order = Order(name, 9, now_s, now_s + DAY_S, 1, ("--coordinator", "10.0.0.1:1"))
    return replace(order, **given).signed(Identity.load(place.fleet.folder / "operator"))


@contextmanager
def lying(place: Place, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[Server]:
    """Stand in for the fleet's machine with a copy of its folder and a coordinator's key: every
    answer to a check-in goes through `answer`."""
    copy = place.folder / f"taken-{time.monotonic_ns()}"
    shutil.copytree(place.fleet.folder, copy)
    check_ins = open_check_ins(copy, coordinator_of(copy), place.said.append)
    honest = check_ins.check_in
    check_ins.check_in = lambda *about: answer(honest(*about))  # type: ignore[method-assign]
    with Server(check_ins, "127.0.0.1:0") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        before = json.loads((place.config / "board.json").read_text())
        (place.config / "board.json").write_text(json.dumps({**before, "check_in": server.address}))
        yield server
        (place.config / "board.json").write_text(json.dumps(before))
        server.shutdown()


def files_below(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def untouched(place: Place, machine: Machine) -> bool:
    """Whether a board runs what it ran, and fetched nothing."""
    return machine.restarts == machine.guards == 0 and not (place.home / "wanted").exists()


@pytest.mark.parametrize(
    ("attack", "order", "why"),
    [
        ("another board's", lambda p: sign(p, "pi-02"), "an order for pi-02; this is pi-01"),
        ("a board signs", lambda p: Order("pi-01", 9, 0, 1, 1).signed(p.identity("pi-02")), "operator is due"),
        ("changed", lambda p: {**sign(p), "body": sign(p)["body"].replace("10.0", "10.1")}, "does not fit"),
        ("roll-back", lambda p: sign(p, number=1), "number 1, which is not newer"),
        ("replay", lambda p: sign(p, number=2), "number 2, which is not newer"),
        ("an old one, long kept back", lambda p: sign(p, signed_s=0, until_s=DAY_S), "counted until 1970-01-02 only"),
        ("a list kept back", lambda p: sign(p, revocations=7), "revocation list 7 was there, and no list after 1"),
        ("another line", lambda p: sign(p, arguments=("a\n--set",)), "no command line"),
        ("a comment", lambda p: sign(p, arguments=("#",)), "no command line"),
        ("no end", lambda p: sign(p, arguments=("a",) * 257), "no command line"),
        ("any release", lambda p: sign(p, release=1), "does not say which that is"),
        ("no sense", lambda p: {"body": "{}"}, "no sense"),
        ("nothing", lambda p: {}, "no sense"),
    ],
)
def test_an_order_that_no_operator_gave_this_board_now_is_refused(
    place: Place, attack: str, order: Callable[[Place], dict[str, str]], why: str
) -> None:
    orders.change(place.fleet, ("pi-01",), RUN)
    orders.renew(place.fleet, ("pi-01",))
    place.check_in()
    machine = Machine()
    with lying(place, lambda honest: {**honest, "order": order(place)}), pytest.raises(PeerError, match=why):
        place.check_in(machine)
    assert untouched(place, machine) and "10.0.0.9:8000" in (place.config / "node.args").read_text()
    assert place.check_in(machine).restarts == 0, "and it goes by its own order as before"


def test_a_canary_stays_with_the_board_that_it_is_for(place: Place) -> None:
    """Arbitrary installation: a release that the operator signed, but for another board."""
    place.push("2", "pi-02")
    theirs = json.loads((place.fleet.folder / "orders/pi-02.json").read_text())
    machine = Machine()
    with lying(place, lambda honest: {**honest, "order": theirs}), pytest.raises(PeerError, match="for pi-02"):
        place.check_in(machine)
    assert untouched(place, machine)


@pytest.mark.parametrize("attack", ["mix-and-match", "withdrawn release"])
def test_another_release_than_the_order_names_is_not_taken(place: Place, attack: str) -> None:
    """Both were signed by the operator, once: with one number, or for another order."""
    place.push("2", "pi-01")
    old = releases.bundle_file(place.fleet.folder, 1).read_bytes()
    place.push("3", "pi-01")
    machine = Machine()
    with lying(place, lambda honest: honest) as server:
        if attack == "withdrawn release":  # under the number of the new one
            releases.bundle_file(server.check_ins.folder, 2).write_bytes(old)
        else:
            other = place.folder / "other.bundle"
            site = place.folder / "site-3"
            (site / "edgegossip/version.py").write_text('VERSION = "4"\n')
            manifest = releases.build(place.fleet, replace(releases.examine(site), machine="x86_64"), other)
            index = json.loads((place.fleet.folder / "releases.json").read_text())
            (place.fleet.folder / "releases.json").write_text(json.dumps({**index, "next": 2}))
            again = releases.build(place.fleet, releases.examine(site), other)
            assert (manifest.sequence, again.sequence) == (3, 2)
            releases.bundle_file(server.check_ins.folder, 2).write_bytes(other.read_bytes())
        with pytest.raises(PeerError, match="another than the operator's order names"):
            place.check_in(machine)
    assert untouched(place, machine)
    assert place.check_in(machine).guards == 1 and json.loads((place.home / "wanted").read_text())["sequence"] == 2


def test_whoever_keeps_orders_back_is_seen_by_the_day_that_the_last_one_ends(place: Place) -> None:
    """Freeze: what the operator said since does not come. The board goes on, and says so."""
    orders.change(place.fleet, ("pi-01",), RUN)
    place.check_in()
    with lying(place, lambda honest: {k: v for k, v in honest.items() if k != "order"}):
        orders.change(place.fleet, ("pi-01",), {"coordinator": "10.0.0.10:8000"})
        machine = place.check_in(Machine(synchronised=True))
        assert machine.restarts == 0 and machine.said == [], "a day without an order is nothing special"
        for days in (orders.DAYS + 0.5, orders.DAYS + 0.51, orders.DAYS + 2):
            machine.behind_s = -days * DAY_S
            place.check_in(machine)
    said = [line for line in machine.said if "counted until" in line]
    assert len(said) == 2 and all("fleet renew" in line and "keeps orders back" in line for line in said), "once a day"
    (one, _) = status(Fleet.open(place.fleet.folder), time.time())
    assert one.order == "order 2 is on its way", "and the operator sees it"


def test_the_operator_is_told_before_orders_end_and_renews_them_without_a_restart(place: Place) -> None:
    orders.change(place.fleet, ("pi-01", "pi-02"), RUN)
    machine = place.check_in()
    rows = status(place.fleet, time.time() + (orders.DAYS - 20) * DAY_S)
    assert "edgegossip fleet renew" in rows[0].order and "fleet renew" in "".join(table(rows, str))
    assert orders.renew(place.fleet, place.fleet.boards) == ("pi-01", "pi-02")
    assert place.check_in(machine).restarts == 1, "of the first order, for the second changes nothing"
    assert json.loads(json.loads((place.config / "order.json").read_text())["body"])["number"] == 2
    assert status(place.fleet, time.time())[0].order == "order 2 is on its way", "until it has said that it has it"
    place.check_in(machine)
    assert status(place.fleet, time.time())[0].order == ""


def test_a_clock_is_not_set_to_before_the_last_order(place: Place) -> None:
    """Freeze by the clock: an order does not come to its end where time stands still."""
    orders.change(place.fleet, ("pi-01",), RUN)
    machine = place.check_in()
    with lying(place, lambda honest: {**honest, "time_s": time.time() - 30 * DAY_S}):
        place.check_in(machine)
    assert abs(machine.behind_s) < 2 and "set the clock of the coordinator's machine" in machine.said[-1]


def test_a_coordinator_that_was_revoked_is_not_believed_however_it_hides_the_list(place: Place) -> None:
    orders.change(place.fleet, ("pi-01",), RUN)
    machine = place.check_in()
    with lying(place, lambda honest: {**honest, "crl_number": 1}):
        place.fleet = place.fleet.revoke("the-coordinator")
        orders.renew(place.fleet, ("pi-01",))
        new = json.loads((place.fleet.folder / "orders/pi-01.json").read_text())
    with (
        lying_as_before(place, new),
        pytest.raises(PeerError, match="revocation list 2 was there, and no list after 1"),
    ):
        place.check_in(machine)


@contextmanager
def lying_as_before(place: Place, order: dict[str, str]) -> Iterator[None]:
    """The machine with the revoked coordinator's key and the list of before, and a new order."""
    server = place.server
    honest = server.check_ins.check_in
    server.check_ins.check_in = lambda *about: {**honest(*about), "order": order, "crl_number": 1}  # type: ignore[method-assign]
    yield
    server.check_ins.check_in = honest  # type: ignore[method-assign]


def test_a_new_kit_counts_more_than_the_order_from_before_it(place: Place) -> None:
    """And the order that it was made with brings the release along."""
    orders.change(place.fleet, ("pi-01",), RUN)
    machine = place.check_in()
    board = json.loads((place.config / "board.json").read_text())
    (place.config / "board.json").write_text(json.dumps({**board, "number": 5}))
    (place.config / "node.args").write_text("of the kit\n")
    place.check_in(machine)
    assert machine.restarts == 1 and (place.config / "node.args").read_text() == "of the kit\n"
    for _ in range(4):
        orders.renew(place.fleet, ("pi-01",))
    place.push("2", "pi-01")
    place.check_in(machine)
    assert machine.guards == 1 and machine.restarts == 2


def test_a_kit_never_says_another_command_line_under_the_number_of_an_order(place: Place) -> None:
    """As when the fleet has grown since: else the order would set the board back."""
    mesh = {"join": ("10.0.0.1:7700",), "founder": "pi-01"}
    orders.change(place.fleet, ("pi-01", "pi-02"), mesh)
    place.fleet = place.fleet.add("pi-03", "board", 20)
    kit = kitfile.parse(orders.make_bundle(place.fleet, "pi-01", time.time()))
    assert "pi-01,pi-02,pi-03" in kit.node
    orders.renew(place.fleet, ("pi-01", "pi-02"))
    one, two = (orders.last(place.fleet.folder, name) for name in ("pi-01", "pi-02"))
    assert one is not None and two is not None
    assert one.arguments == kit.node and one.number == kit.number + 1 and "pi-03" not in " ".join(two.arguments)


def test_who_has_no_operators_key_changes_nothing(place: Place) -> None:
    (place.fleet.folder / "operator").rename(place.folder / "at-home")
    provisioning.keep_profile(place.fleet.folder, "pi-02", provisioning.Profile(coordinator="10.0.0.9:8000"))
    before = files_below(place.fleet.folder)
    with pytest.raises(UsageError):
        orders.change(place.fleet, ("pi-01", "pi-02"), {"listen": "0.0.0.0:7701"})  # pi-01 runs nothing yet
    assert files_below(place.fleet.folder) == before
    assert provisioning.load_profile(place.fleet.folder, "pi-01") == provisioning.Profile()


def test_a_number_is_signed_once_whoever_signs_beside_us(place: Place) -> None:
    """Two windows, or a laptop that is in two minds."""
    orders.change(place.fleet, ("pi-01",), RUN)
    seen = set[tuple[int, str]]()

    def sign_often(k: int) -> None:
        for n in range(8):
            orders.change(place.fleet, ("pi-01",), {"coordinator": f"10.0.{k}.{n}:8000"})
            order = orders.last(place.fleet.folder, "pi-01")
            assert order is not None
            seen.add((order.number, order.arguments[1]))

    threads = [threading.Thread(target=sign_often, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = orders.last(place.fleet.folder, "pi-01")
    assert last is not None and last.number == 17 and len({number for number, _ in seen}) == len(seen)


def test_a_refused_order_takes_no_release_back(place: Place) -> None:
    """A board on trial is at work, whatever the machine there says."""
    (place.home / "checked-in").unlink(missing_ok=True)
    with lying(place, lambda honest: {**honest, "order": {}}), pytest.raises(PeerError, match="no sense"):
        place.check_in()
    assert (place.home / "checked-in").read_text() == "factory"


def test_an_operator_who_was_revoked_since_leaves_no_way_back(place: Place) -> None:
    orders.change(place.fleet, ("pi-01",), RUN)
    first = json.loads((place.fleet.folder / "orders/pi-01.json").read_text())
    orders.renew(place.fleet, ("pi-01",))
    machine = place.check_in()
    place.fleet = place.fleet.add("second", "operator", 20).revoke("the-operator")
    with lying(place, lambda honest: {**honest, "order": first}), pytest.raises(PeerError):
        place.check_in(machine)
    assert machine.restarts == 1


@given(st.binary(max_size=200), st.integers(0, 2**16))
def test_any_bytes_are_an_order_or_refused_in_a_sentence(noise: bytes, at: int) -> None:
    body = bytearray(json.dumps(asdict(Order("a", 1, 1, 2, 1, ("--set", "a=b")))).encode())
    assert Order.parse(body.decode()).number == 1
    body[at % len(body) : at % len(body) + len(noise)] = noise
    with done_or_told(DecodeError):
        Order.parse(body.decode(errors="replace"))


def test_what_is_signed_is_read_again(place: Place) -> None:
    order = Order("pi-01", 3, 5, 6, 7, ("quickstart-server", "--set", "a=b"), 8, "ab" * 32)
    signed = json.loads(json.dumps(order.signed(Identity.load(place.fleet.folder / "operator"))))
    assert Order.read(signed, place.identity(), "pi-01") == order


def test_a_damaged_order_is_named_with_its_cure(place: Place) -> None:
    orders.change(place.fleet, ("pi-01",), RUN)
    for text in ("", "[]", "{}", '{"body": "{}", "signature": ""}'):
        (place.fleet.folder / "orders/pi-01.json").write_text(text)
        with pytest.raises(DataError, match="orders/pi-01.json is no order for pi-01.*fleet set pi-01"):
            orders.last(place.fleet.folder, "pi-01")
    one, two = status(place.fleet, time.time())
    assert "fleet set pi-01" in one.order
    assert two.name == "pi-02" and "fleet set" not in two.order, "and the others are shown"
