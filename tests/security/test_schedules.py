"""The parts of admission under random schedules in virtual time, held against models that say what
each may answer. The models are written from what the documentation promises and know nothing of the
code: they keep every event and count."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from edgegossip.fleet.store import Fleet
from edgegossip.security import certificates
from edgegossip.security.admission import Admission, Caller, Quarantine
from edgegossip.security.handshake import OneTimeTokens
from edgegossip.security.identity import Identity, Revocations
from edgegossip.security.limits import ConnectionLimiter, RateLimitedLog, SharedRateLimiter, TokenBuckets
from edgegossip.security.names import Subject
from edgegossip.types import PeerError

every_seed = pytest.mark.parametrize("seed", range(12))


def expect(found: object, promised: object, what: str) -> None:
    assert found == promised, what


@every_seed
def test_buckets(seed: int) -> None:
    """Each key has `burst` at once and `rate` a second; a refusal costs nothing; a flood of other
    keys changes nothing for who asks all the time."""
    random, now_s = Random(seed), 0.0
    rate, burst = random.choice((0.5, 2.0)), random.choice((1.0, 3.0))
    limiter = TokenBuckets(rate, burst)
    left, since = {}, {}
    for step in range(300):
        now_s += random.choice((0.0, 0.1, 0.7, 5.0))
        key = random.choice("abc")
        have = min(burst, left.get(key, burst) + rate * (now_s - since.get(key, now_s)))
        expect(limiter.take(key, now_s), have >= 1.0, f"step {step}, {key}")
        left[key], since[key] = have - (have >= 1.0), now_s
    fresh = TokenBuckets(0.001, 1.0)
    for k in range(1500):
        fresh.take(("other", k), now_s)
    expect([fresh.take("new", now_s) for _ in range(3)], [True, False, False], "a newcomer among many")


@every_seed
def test_lines(seed: int) -> None:
    """The same line once in `quiet_s`; one source has no more than a quarter of all."""
    random, now_s, told = Random(seed), 0.0, {}
    log, count = RateLimitedLog(quiet_s=60.0, per_s=1.0, burst=64.0), Counter()
    for step in range(200):
        now_s += random.choice((0.0, 0.01))
        key, source = random.randrange(60), random.choice("ab")
        if log.worth((source, key), now_s, source):
            if now_s - told.get((source, key), -60.0) < 60.0:
                pytest.fail(f"step {step}: the same line again")
            told[source, key] = now_s
            count[source] += 1
    if max(count.values(), default=0) > 17 or not count:
        pytest.fail(f"one source told {max(count.values(), default=0)} lines at once")


@every_seed
def test_shared(seed: int) -> None:
    """Strangers who ask without end leave boards their turn, and an address is a stranger's for as
    long as was said."""
    random, limiter = Random(seed), SharedRateLimiter()
    now_s = random.uniform(0, 100)
    limiter.refused("stranger", now_s)
    asked = sum(limiter.allows("stranger", now_s) for _ in range(500))
    expect(asked, limiter.STRANGERS_BURST, "a flood of a stranger")
    expect(limiter.allows("board", now_s), True, "a board during the flood")
    later_s = now_s + limiter.STRANGE_S * random.uniform(0.1, 0.9)
    while limiter.allows("board", later_s):  # what boards share is used up, what strangers share is not
        pass
    expect(limiter.allows("stranger", later_s), True, "a stranger has a rate of its own")
    late_s = now_s + 2 * limiter.STRANGE_S
    asked = sum(limiter.allows("stranger", late_s) for _ in range(500))
    expect(asked, limiter.BOARDS_BURST, "it is none any more")


@every_seed
def test_one_time_tokens(seed: int) -> None:
    """A token is good once, within VALID_S, for the newest EACH of one certificate, and until it is
    revoked."""
    random, now_s = Random(seed), 0.0
    box = OneTimeTokens[str](lambda holder: holder[0])
    good: list[tuple[str, str, float]] = []  # token, holder, when; the oldest first
    seen: list[str] = []
    for step in range(300):
        now_s += random.choice((0.0, 0.2, 3.0))
        good = [g for g in good if now_s < g[2] + OneTimeTokens.VALID_S]
        event = random.random()
        if event < 0.55:
            holder = random.choice(("a1", "a2", "b1", "c1"))
            good.append((box.issue(holder, now_s), holder, now_s))
            seen.append(good[-1][0])
            own = [g for g in good if g[1][0] == holder[0]]
            if len(own) > OneTimeTokens.EACH:
                good.remove(own[0])
        elif event < 0.9 and seen:
            token = random.choice(seen[-12:])
            found = next((g for g in good if g[0] == token), None)
            expect(box.redeem(token, now_s), found and found[1], f"step {step}: a token")
            good = [g for g in good if g[0] != token]
        elif event >= 0.9:
            gone = random.choice("abc")
            box.revoke(lambda holder, gone=gone: holder[0] == gone)
            good = [g for g in good if g[1][0] != gone]
    expect(box.redeem("0" * 32, now_s), None, "a token that nobody issued")


@every_seed
def test_kept_out(seed: int) -> None:
    """Each further time twice as long, to a limit; ten minutes of good conduct take one time off;
    one time while inside."""
    random, now_s, box = Random(seed), 0.0, Quarantine()
    times, until_s = 0, -1e9
    for step in range(120):
        wait_s = random.choice((0.0, 1.0, 7.0, 90.0, 700.0, 2000.0))
        now_s = max(now_s, until_s) if random.random() < 0.7 and until_s > now_s else now_s + wait_s
        inside = now_s < until_s
        expect(bool(box.reason("c", now_s)), inside, f"step {step}: kept out")
        expect(box.reason("a", now_s), "", f"step {step}: another board")
        if random.random() < 0.6:
            if not inside:
                times = max(0, times - max(0, int((now_s - until_s) // Quarantine.FORGET_S))) + 1
                until_s = now_s + min(Quarantine.FIRST_S * 2 ** (times - 1), Quarantine.LONGEST_S)
            expect(box.strike("c", "noise", now_s), 0.0 if inside else until_s - now_s, f"step {step}: length")


@dataclass(slots=True)
class Waiting:
    """A connection in its handshake."""

    address: str
    since_s: float
    silent: bool


@every_seed
def test_eviction(seed: int) -> None:
    """Places are bounded; who has to go hesitates if anybody does, is of the largest network, and
    the oldest of these."""
    random, now_s, there = Random(seed), 0.0, list[Waiting]()
    limiter = ConnectionLimiter(per_s=1e9, burst=1_000_000_000, max_pending=12, max_pending_per_address=5)
    for step in range(150):
        now_s += random.choice((0.01, 0.1, 0.3))
        host = random.choice(("10.0.0.1", "10.0.0.2", "10.0.0.3", f"fd00:bad::{step:x}", f"fd00:{step:x}::1"))
        address = f"[{host}]:{step}" if ":" in host else f"{host}:{step}"
        newcomer = Waiting(address, now_s, random.random() < 0.4)
        own = [w for w in there if _network(w) == _network(newcomer)]
        connections = own if len(own) >= 5 else list(there) if len(there) >= 12 else []
        found = limiter.to_evict(host, there, now_s)
        expect(found is not None, bool(connections), f"step {step}: somebody has to go")
        if found is not None:
            if found[0] not in connections:
                pytest.fail(f"step {step}: another address pays for {host}")
            slow = [w for w in connections if w.silent and now_s - w.since_s > 0.25]
            sizes = Counter(map(_network, connections))
            choice = slow or connections
            largest = max(sizes[_network(w)] for w in choice)
            first = min((w for w in choice if sizes[_network(w)] == largest), key=lambda w: w.since_s)
            if found[0] is not first:
                pytest.fail(f"step {step}: {found[0]} goes where it is {first}'s turn")
            there.remove(found[0])
        there.append(newcomer)
        if random.random() < 0.15:
            there.remove(random.choice(there))  # it is through
        for w in there:
            w.silent = w.silent and random.random() < 0.9


def _network(w: Waiting) -> str:
    host = w.address.rpartition(":")[0].strip("[]")
    return ":".join(host.split(":")[:2]) if ":" in host else host


@functools.cache
def _world() -> dict[str, Any]:
    """A fleet with boards, and revocation lists that its authority or another one signed. Made
    once: keys take time."""
    home = tempfile.TemporaryDirectory(prefix="edgegossip-schedules-")
    fleet = Fleet.create(Path(home.name) / "fleet", "schedules", 1)
    for name in ("a", "b", "c"):
        fleet = fleet.add(name, "board", 1)
    boards = {name: Identity.load(fleet.folder / "boards" / name) for name in ("a", "b", "c")}
    other = certificates.new_authority("other", certificates.years_from_now(1))
    lists = {
        (number, own): certificates.revocation_list(
            fleet.authority() if own else other, number, [boards["b"].certificate.serial] if number >= 4 else []
        ).public_bytes(Encoding.DER)
        for number in range(8)
        for own in (True, False)
    }
    operator = Identity.load(fleet.folder / "operator")
    signatures = {who.name: who.sign(b"document") for who in (*boards.values(), operator)}
    return {"home": home, "boards": boards, "operator": operator, "lists": lists, "signatures": signatures}


def _fresh(number: int) -> Identity:
    """Board a, which goes by the list of this number; nothing is written to its folder."""
    world = _world()
    a = world["boards"]["a"]
    present = certificates.parse_revocations(world["lists"][number, True])
    return Identity(a.folder, a.subject, a.authority, a.certificate, Revocations(a.authority, present))


@every_seed
def test_revocation(seed: int) -> None:
    """Lists only ever grow newer, are the authority's, and cost whoever was told that it is of no
    use."""
    random, lists = Random(seed), _world()["lists"]
    number = random.randrange(3)
    revocations = _fresh(number).revocations
    for step in range(40):
        offered, own = random.randrange(8), random.random() < 0.5
        told = random.choice((-1, number))
        useless = told >= offered
        forged = not own and offered > number
        try:
            taken = revocations.offer(lists[offered, own], told)
        except PeerError:
            expect(True, useless or forged, f"step {step}: a complaint about list {offered}")
            continue
        expect(useless or forged, False, f"step {step}: no complaint about list {offered}")
        expect(taken, own and offered > number, f"step {step}: list {offered} taken over {number}")
        number = max(number, offered) if taken else number
        expect(revocations.number, number, f"step {step}: the list in force")


@every_seed
def test_admission(seed: int) -> None:
    """Who comes in, by certificate or signature: of this role and among these names, in time, not
    revoked, and not kept out."""
    random, world = Random(seed), _world()
    boards, signatures = world["boards"], world["signatures"]
    clock, now = [0.0], [0.0]
    end = boards["a"].certificate.valid[1]
    rules = Admission(_fresh(1), clock=lambda: clock[0], monotonic=lambda: now[0])
    revoked: set[str] = set()
    out_until: dict[str, float] = {}
    for step in range(80):
        now[0] += random.choice((0.0, 1.0, 4.0, 3000.0))
        name = random.choice("abc")
        subject, serial = Subject(name, "board", rules.identity.fleet), boards[name].certificate.serial
        caller, inside = Caller(subject, serial, "10.0.0.1:5"), now[0] < out_until.get(name, -1.0)
        event = random.random()
        if event < 0.08 and not revoked:
            expect(
                rules.identity.revocations.offer(world["lists"][random.randrange(4, 8), True]),
                True,
                f"step {step}: a newer list",
            )
            expect([rules.look(), rules.look()], [True, False], f"step {step}: news of a list")
            revoked.add("b")
        elif event < 0.2:
            length = rules.misbehaved(subject, "noise")
            expect(length > 0, not inside, f"step {step}: {name} misbehaves")
            if length:
                out_until[name] = now[0] + length
        elif event < 0.6:
            expect(_passes(rules.check, caller), name not in revoked, f"step {step}: {name} connects")
            may = name not in revoked and not inside
            expect(_passes(rules.check_connection, caller), may, f"step {step}: {name} comes with a token")
            expect(bool(rules.kept_out(subject)), inside, f"step {step}: {name} asks for a token")
        else:
            clock[0] = random.choice((0.0, end - 1000.0, end + 1000.0, -1.0))  # members were made seconds apart
            who = random.choice(("a", "b", "c", world["operator"].name))
            among = random.sample("abc", 2)
            data = random.choice((b"document", b"document", b"another"))
            may = data == b"document" and who in among and who not in revoked and 0.0 <= clock[0] <= end
            found = _passes(rules.by_signature, "board", among, data, signatures[who])
            expect(found, may, f"step {step}: {who} signs, of {among}")


def _passes(check: Callable[..., object], *arguments: object) -> bool:
    try:
        check(*arguments)
    except PeerError:
        return False
    return True
