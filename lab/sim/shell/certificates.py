"""The fleet whose boards have certificates, of which one ends while the run goes on, and the rule
`certificate`: who is refused for that is refused for the reason that is true, its own board says
so, and with a new one it comes back."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgegossip.security import certificates
from edgegossip.security.certificates import EPOCH, Authority, certificate_pem, key_pem
from edgegossip.security.identity import CA, CERTIFICATE, CRL, KEY, Identity
from lab.sim.faults import CERTIFICATE as KIND
from lab.sim.faults import Fault

BEGIN, END = EPOCH.replace(year=2030), EPOCH.replace(year=2040)  # of runs; and of their fleet
TAKES_S = 5.0  # until a new one is in use: a board looks every 2 s
SAYS_S = 6.0  # until it is said that one has ended
LATELY_S = 15.0  # for which what failed may be told of
OWN, THEIRS, OURS = "our own certificate has expired", "its certificate has expired", "our certificate is expired"


class Handshakes:
    """Knows which handshakes failed because of a certificate that had ended."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.failed_s: dict[tuple[int, int], float] = {}  # (listener, caller): when last
        self.first_s: dict[tuple[int, int], float] = {}  # and when first, with nothing else between them

    def made(self, listener: int, caller: int, whose: int, *, failed: bool) -> None:
        """One has got as far as to look at a certificate, which is this board's."""
        world, now = self._world, self._world.clock.now
        if failed:
            self.failed_s[listener, caller] = now
            if world.unhurt_s(listener, caller, world.certificates.faults) > LATELY_S:
                self.first_s.setdefault((listener, caller), now)
            world.certificates.failed(whose)

    def lately(self, i: int, j: int, within_s: float = LATELY_S) -> bool:
        """Tell whether one between the two has failed."""
        last_s = max(self.failed_s.get((i, j), -math.inf), self.failed_s.get((j, i), -math.inf))
        return bool(last_s > self._world.clock.now - within_s)


def ends_s(fault: Fault) -> float:
    """Return when the certificate ends: at a whole second."""
    return math.ceil(fault.start)


@lru_cache(maxsize=1)
def _authority() -> Authority:
    return certificates.new_authority("simulated", END)


class Fleet:
    """Has a folder for each board, whose certificate ends when the schedule says so."""

    def __init__(self, names: tuple[str, ...], faults: list[Fault]) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="edgegossip-sim-"))
        self._names, self._faults = names, faults
        for i in range(len(names)):
            self.folder(i).mkdir()
            (self.folder(i) / CA).write_bytes(certificate_pem(_authority().certificate))
            (self.folder(i) / CRL).write_bytes(certificate_pem(certificates.revocation_list(_authority(), 1, ())))
            self.renew(i, 0.0)

    def folder(self, i: int) -> Path:
        """Return where a board's identity is."""
        return self.path / self._names[i]

    def renew(self, i: int, now_s: float) -> None:
        """Give a board a new certificate, which ends with the next fault that says so."""
        ends = (ends_s(f) for f in self._faults if f.nodes == (i,) and f.start > now_s)
        until_s = BEGIN.timestamp() + min(ends, default=1e6)
        until = EPOCH.fromtimestamp(until_s, BEGIN.tzinfo)
        issued = certificates.issue(_authority(), self._names[i], "board", not_after=until)
        (self.folder(i) / CERTIFICATE).write_bytes(certificate_pem(issued.certificate))
        key = self.folder(i) / KEY
        key.write_bytes(key_pem(issued.key))
        key.chmod(0o600)

    def identity(self, i: int) -> Identity:
        """Load a board's identity, as its program does."""
        return Identity.load(self.folder(i))

    def close(self) -> None:
        """Remove the folders."""
        shutil.rmtree(self.path, ignore_errors=True)


class CertificateRule:
    """Hears what boards say of certificates, and looks whether they do."""

    def __init__(self, world: Any) -> None:
        self._world, self.handshakes = world, Handshakes(world)
        self.faults = [f for f in world.schedule.faults if f.kind == KIND.name]
        self._own_s: dict[int, float] = {}  # when a board last said that its own has ended
        self._refused: set[tuple[int, int]] = set()  # (who, whom) it said to have refused

    def ended_s(self, i: int, within_s: float = 0.0) -> float:
        """Return when a board's certificate ended that has not been renewed for longer than that;
        infinite when it has not."""
        now = self._world.clock.now
        own = ((ends_s(f), f.end + within_s) for f in self.faults if f.nodes == (i,))
        return min((begin_s for begin_s, end_s in own if begin_s <= now < end_s), default=math.inf)

    def failed(self, whose: int) -> None:
        """A handshake has failed: the certificate is no newer one."""
        self._world.looked.add("certificate")
        self._world.seen[KIND.name] += 1
        if self.ended_s(whose, TAKES_S) == math.inf:
            self._world.violate(
                "certificate", whose, "shows a certificate that has ended, and has had a new one for long"
            )

    def said(self, board: Any, name: str, text: str) -> None:
        """A board has said something."""
        if "certificate" not in text:
            return
        i, world = board.index, self._world
        others = {int(k) - 1 for k in re.findall(r"10\.0\.0\.(\d+)", text)}
        if OWN in text:
            true = self.ended_s(i, SAYS_S) < math.inf
            world.seen[KIND.name] += 1
            self._own_s[i] = world.clock.now
        else:
            subject = others if THEIRS in text else {i} if OURS in text else set()
            ended = {k for k in subject if self.ended_s(k, LATELY_S) < math.inf}
            true = bool(ended) and any(self.handshakes.lately(i, k) for k in others)
            self._refused |= {(i, k) for k in others if true}
        if not true:
            world.violate("certificate", i, f"of no certificate is that true: {text}")

    def look(self) -> None:
        """Whose certificate has ended says so, and so does who refused it or was refused."""
        world, now = self._world, self._world.clock.now
        for board in world.nodes:
            i, ended_s = board.index, self.ended_s(board.index)
            since_s = max(ended_s, world.booted_s[i], board.resumed_s)
            if board.node is not None and board.up and not board.paused and now - since_s > SAYS_S:
                world.looked.add("certificate")
                if self._own_s.get(i, -1.0) < max(ended_s, world.booted_s[i]):
                    world.violate("certificate", i, f"has not said that its certificate ended at {ended_s:.1f} s")
        for (listener, caller), first_s in self.handshakes.first_s.items():
            board = world.nodes[listener]
            if not board.up or board.paused or board.resumed_s > first_s or world.booted_s[listener] > first_s:
                continue
            if now - first_s > SAYS_S + 10.0 and (listener, caller) not in self._refused:
                world.violate(
                    "certificate", listener, f"has not said that a handshake with {caller} failed at {first_s:.1f} s"
                )
