"""`edgegossip node` with the settings of a fleet under test: python -m tests.mesh.malformed.node
node ...

It is the product's board but for this, without which an attacker would be out after its first
message: quarantine is short, rates of connections and streams are high, and a neighbour whose frame
was bad may send the next one. One bad frame in AMNESTY still goes all the way of a refusal. What
reaches each decoder and why it is refused is counted into the file of the environment variable
COUNTS.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from edgegossip import frame
from edgegossip.cli.main import main
from edgegossip.engine.node import NodeEngine
from edgegossip.mesh import MeshLimits, inbound, tls_security
from edgegossip.mesh import services as standard
from edgegossip.mesh.membership import agent as service
from edgegossip.mesh.membership import wire as members_wire
from edgegossip.node import spec
from edgegossip.security import admission, front_end, handshake
from edgegossip.untrusted import Refusal

VARIABLE = "EDGEGOSSIP_TEST_COUNTS"
AMNESTY = 256
MAX_REASONS = 400
_NUMBERS = re.compile(r"\b[0-9a-f]{12,}\b|\d+")


class Counts:
    """What came to each decoder, and reasons of refusals, their numbers left out. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reached: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def reached(self, decoder: str) -> None:
        with self._lock:
            self._reached[decoder] += 1

    def refused(self, where: str, reason: str) -> None:
        text = f"{where}: {_NUMBERS.sub('N', reason)[:160]}" if reason.strip() else f"{where}: NO REASON"
        with self._lock:
            self._refused[where] += 1
            if text in self._reasons or len(self._reasons) < MAX_REASONS:
                self._reasons[text] += 1

    def write(self, path: Path) -> None:
        with self._lock:
            document = {"reached": self._reached, "refused": self._refused, "reasons": self._reasons}
            text = json.dumps(document)
        beside = path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(path)


def count_decoders(counts: Counts) -> None:
    for module, name, decoder in (
        (inbound, "parse_request", "exchange message"),
        (frame, "parse", "frame"),
        (members_wire, "parse_request", "probe"),
        (members_wire, "parse_join_request", "join"),
        (standard, "parse", "health or reflection"),
        (handshake, "parse_hello", "admission"),
        (handshake, "parse_blob", "revocation list"),
    ):
        setattr(module, name, _counted(getattr(module, name), partial(counts.reached, decoder)))


def _counted(function: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    def counting(*arguments: Any, **named: Any) -> Any:
        note()
        return function(*arguments, **named)

    return counting


def count_refusals(counts: Counts) -> None:
    tell_stream, tell_member, at_front_end = (
        inbound.Inbound._log_refusal,
        service.EventDelegate.refused,
        front_end.FrontEnd._refuse,
    )

    def of_stream(self: Any, refusal: Refusal, code: Any) -> None:
        counts.refused("stream", refusal.why)
        tell_stream(self, refusal, code)

    def of_member(self: Any, refusal: Refusal) -> None:
        counts.refused("membership", refusal.why)
        tell_member(self, refusal)

    def of_pending(self: Any, pending: Any, reason: str) -> None:
        counts.refused("front end", reason)
        at_front_end(self, pending, reason)

    inbound.Inbound._log_refusal = of_stream  # type: ignore[method-assign]
    service.EventDelegate.refused = of_member  # type: ignore[method-assign]
    front_end.FrontEnd._refuse = of_pending  # type: ignore[method-assign]


def forgive(counts: Counts) -> None:
    """A neighbour may send on after a bad frame, and keeps its connection after a bad stream."""
    shut, refuse, misbehaved = inbound.Inbound.shut, NodeEngine._refuse, tls_security.TlsSecurity.misbehaved
    bad, broken = 0, 0

    def forgetful(self: Any, peer: str, reason: str) -> None:
        shut(self, peer, reason)
        del self._closed[peer]

    def forgiving(self: Any, sender: str, reason: str) -> None:
        nonlocal bad
        bad += 1
        counts.refused("frame", reason)
        if bad % AMNESTY == 1:
            refuse(self, sender, reason)
            self._refused.discard(sender)

    def lenient(self: Any, context: Any, reason: str) -> None:
        nonlocal broken
        broken += 1
        if broken % AMNESTY == 1:
            misbehaved(self, context, reason)

    inbound.Inbound.shut, NodeEngine._refuse = forgetful, forgiving  # type: ignore[method-assign]
    tls_security.TlsSecurity.misbehaved = lenient  # type: ignore[method-assign]


def let_in() -> None:
    """Short quarantine, and rates that an attacker does not reach."""
    admission.Quarantine.FIRST_S = admission.Quarantine.LONGEST_S = 0.05
    tls_security._LAST_WORDS_S = 1.0
    for questions in (service, standard):
        questions.CALLS_PER_S = questions.CALL_BURST = 1e6
    rates = {"hellos_per_s": 1e6, "hello_burst": 10**6, "connections_per_s": 1e4, "connection_burst": 10**4}
    spec.MeshLimits = partial(MeshLimits, **rates)  # type: ignore[misc, assignment, arg-type]


def _write_on(counts: Counts, path: Path) -> None:
    while True:
        counts.write(path)
        time.sleep(1.0)


if __name__ == "__main__":
    kept = Counts()
    count_decoders(kept)
    count_refusals(kept)
    forgive(kept)
    let_in()
    threading.Thread(target=_write_on, args=(kept, Path(os.environ[VARIABLE])), daemon=True).start()
    main()
