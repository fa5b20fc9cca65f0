"""Who may talk to a coordinator: the end in its own process. What is refused, and why, is decided
by `security.Admission`.

The `AdmissionMiddleware` (`_private/superlink.py`) stands before Flower's SuperLink, in that
process, and asks the `AdmissionController` once for every key, over a socket. Line by line in JSON:

    middleware -> controller
    {"join": number, "key", "proof", "time", "from"}   may this key come in?
    {"revoked": number, "list", "from"}                a revocation list (base64 of DER)
    {"recipe": number, "proof", "time", "from"}        what is run here? (proof: with TLS)
    {"handshake": reason, "from"}                      somebody did not manage TLS
    {"refused": reason, "from", "board"}               so was a request; of this board, or ""
    {"sockets": number, "totals": [...] or null}
    {"news": true}                                     a board has sent something

    controller -> middleware
    {"in": key, "board": name}                         this key may come in
    {"out": key}                                       not any more
    {"answer": number, "why": "" or the reason}        to a "revoked" with "has": its list's number;
                                                       to a "recipe" with "recipe" and "boards"
    {"most": bytes}                                    a frame of this run has no more
    {"sockets": number}                                what have boards' connections carried?
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from edgegossip.flower.connection import ASK_DOMAIN, KEY_DOMAIN
from edgegossip.security import tls
from edgegossip.security.admission import Admission, shut_out
from edgegossip.security.limits import RateLimitedLog, TokenBuckets, host_of, network_of
from edgegossip.telemetry.records import Value
from edgegossip.types import EdgegossipError, NodeId, PeerError
from edgegossip.untrusted import Refusal

ADMISSION_VARIABLE = "EDGEGOSSIP_ADMISSION"  # descriptor,0 or 1 with TLS,file of the secret
OBJECTS_VARIABLE = "EDGEGOSSIP_OBJECTS"  # names the folder of the SuperLink's large objects

LOOK_S = 1.0  # between two looks at the revocation list
SOCKETS_S = 2.0
AHEAD_S, BEHIND_S = 5.0, 305.0  # Flower takes signatures of no other time
MAX_KEYS = 4  # of one board: each process of it has one
KEYS_PER_S, KEY_BURST = 0.5, 16.0  # new ones of one certificate


def token_of(secret: bytes) -> str:
    """Return what only the coordinator and its SuperLink know."""
    return hashlib.sha256(b"edgegossip admission\0" + secret).hexdigest()


@dataclass(frozen=True, slots=True)
class _Admitted:
    """Says whose key came in."""

    name: NodeId
    serial: int
    node_id: int


class AdmissionController:
    """Decides which boards may come in, and which not any more, and says so. A thread. `admission`
    None: without TLS, where nobody shows who it is. `recipe` (TOML) is told to boards that ask for
    it. `register` gives a key (PEM) to Flower, by name; the board's id there. `refused` hears every
    refusal; `lose` of a board that was revoked, and why; `news` that a board has sent something,
    `taken` that one has taken in more of a large message. All on the controller's thread."""

    def __init__(
        self,
        line: socket.socket,
        admission: Admission | None,
        boards: Sequence[NodeId],
        register: Callable[[bytes, NodeId], int],
        refused: Callable[[Refusal], None],
        lose: Callable[[NodeId, str], None],
        news: Callable[[], None] = lambda: None,
        recipe: str = "",
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket, self._admission, self._boards = line, admission, tuple(boards)
        self._register, self._refused, self._lose = register, refused, lose
        self._on_news, self._on_taken, self._recipe = news, taken, recipe
        self._admitted: dict[str, _Admitted] = {}  # by key
        self._log_limit, self._new_keys = RateLimitedLog(), TokenBuckets(KEYS_PER_S, KEY_BURST)
        self._lock = threading.Lock()
        self._totals: dict[int, list[int] | None] = {}
        self._carried = [0, 0, 0]
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._checked_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True, name="admission")

    def start(self, most_bytes: int = 0) -> None:
        """Start the thread. `most_bytes`: no frame of this run has more, where that is known."""
        if most_bytes:
            self._send({"most": most_bytes})
        self._thread.start()

    def close(self) -> None:
        """End the thread and the line. Idempotent."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(LOOK_S + 1.0)
        self._socket.close()

    def name_of(self, node_id: int) -> NodeId | None:
        """Return whose certificate that board showed; None without TLS."""
        return next((a.name for a in list(self._admitted.values()) if a.node_id == node_id), None)

    def sockets(self) -> dict[str, Value]:
        """Return what boards' connections have carried since the last call, as the kernel counts it
        in the SuperLink's process; nothing where it does not say."""
        number = time.monotonic_ns()
        self._send({"sockets": number})
        with self._news:
            self._news.wait_for(lambda: number in self._totals or self._closed.is_set(), SOCKETS_S)
            found = self._totals.pop(number, None)
            self._totals.clear()
        if found is None:
            return {}
        new = [total - before for total, before in zip(found, self._carried, strict=True)]
        self._carried = found
        return dict(zip(("net/sent_bytes", "net/received_bytes", "net/link_bytes"), new, strict=True))

    def _run(self) -> None:
        self._socket.settimeout(LOOK_S)
        rest = b""
        while not self._closed.is_set():
            try:
                data = self._socket.recv(65_536)
                if not data:
                    return
            except TimeoutError:
                data = b""
            except OSError:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._safely(partial(self._receive, line))
            self._safely(self._check_revocations)

    def _safely(self, work: Callable[[], None]) -> None:
        """Do it whatever comes of it: nobody could come in any more if this thread ended, such as
        by a record that a full disk did not take."""
        try:
            work()
        except Exception as error:
            if self._log_limit.worth(f"{type(error).__name__}: {error}", time.monotonic()):
                logging.getLogger(__name__).exception("the coordinator's admission failed")

    def _receive(self, line: bytes) -> None:
        news = json.loads(line)
        if "news" in news:
            self._on_news()
        elif "taken" in news:
            self._on_taken()
        elif "sockets" in news:
            with self._news:
                self._totals[news["sockets"]] = news["totals"]
                self._news.notify_all()
        elif "handshake" in news and self._admission is not None:
            self._log_refusal(news["from"], tls.words_of(news["handshake"]))
        elif "refused" in news:
            self._log_refusal(news["from"], news["refused"], news["board"])
        elif "join" in news:
            self._answer(news["join"], news["from"], lambda: self._admit(news["key"], news["proof"], news["time"]))
        elif "recipe" in news:
            self._answer(news["recipe"], news["from"], lambda: self._describe(news))
        elif "revoked" in news and self._admission is not None:
            self._answer(news["revoked"], news["from"], partial(self._take_list, self._admission, news["list"]), has=0)

    def _answer(self, number: int, asker: str, work: Callable[[], dict[str, Any]], **otherwise: Any) -> None:
        """Answer with what `work` gives, or why it did not."""
        try:
            self._send({"answer": number, "why": "", **work()})
        except EdgegossipError as error:
            self._send({"answer": number, "why": str(error), **otherwise})
            self._log_refusal(asker, str(error))
        except Exception:  # a bug: nobody waits for its answer
            self._send({"answer": number, "why": "the coordinator failed at this question", **otherwise})
            raise

    def _take_list(self, admission: Admission, text: str) -> dict[str, Any]:
        try:
            admission.identity.revocations.offer(b64decode(text))
            return {"has": admission.identity.revocations.number}
        finally:
            self._check_revocations(at_once=True)

    def _admit(self, key: str, proof: str, clock: str) -> dict[str, Any]:
        """Let a key in. Raises EdgegossipError with the reason."""
        if self._admission is None:
            raise PeerError("this coordinator runs without TLS and keys")
        name, serial = self._authenticate(self._admission, KEY_DOMAIN, key, proof, clock)
        if key not in self._admitted:
            if not self._new_keys.take(serial, time.monotonic()):
                raise PeerError(f"{name} has introduced more keys than one board needs: start it again in a minute")
            self._admitted[key] = _Admitted(name, serial, self._register(key.encode(), name))
            for old in [k for k, a in self._admitted.items() if a.name == name][:-MAX_KEYS]:
                self._send({"out": old})  # of a process that has ended
                del self._admitted[old]
        # Not with the answer, which waits for the event loop there: a revocation may be quicker,
        # and the key would come in after it went out.
        self._send({"in": key, "board": name})
        return {}

    def _describe(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what is run here, for a board of this run. Raises EdgegossipError with the
        reason."""
        if self._admission is not None:
            self._authenticate(self._admission, ASK_DOMAIN, asked["time"], asked["proof"], asked["time"])
        return {"recipe": self._recipe, "boards": list(self._boards)}

    def _authenticate(
        self, admission: Admission, domain: bytes, text: str, proof: str, clock: str
    ) -> tuple[NodeId, int]:
        """Return which board of this run signed `text` in that domain, and its certificate's serial
        number. Raises EdgegossipError."""
        try:
            data, signature = domain + text.encode(), b64decode(proof, validate=True)
            ahead_s = datetime.fromisoformat(clock).timestamp() - time.time()
        except (ValueError, OverflowError):
            raise PeerError("it did not say who it is") from None
        caller = admission.by_signature("board", self._boards, data, signature)
        name = caller.subject.name
        if not -BEHIND_S < ahead_s < AHEAD_S:
            words = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the coordinator's"
            raise PeerError(f"the clock of {name} is {words}: set it and start the board again")
        return name, caller.serial

    def _check_revocations(self, at_once: bool = False) -> None:
        """Put out whose certificate was revoked; now and then, unless `at_once`."""
        if self._admission is None or (not at_once and time.monotonic() - self._checked_s < LOOK_S):
            return
        self._checked_s = time.monotonic()
        if not self._admission.look():
            return
        gone = {key: a for key, a in self._admitted.items() if self._admission.revoked(a.serial)}
        for key in gone:
            self._send({"out": key})
            del self._admitted[key]
        for name in sorted({a.name for a in gone.values()} - {a.name for a in self._admitted.values()}):
            self._lose(name, shut_out(name))

    def _log_refusal(self, address: str, why: str, board: NodeId = "") -> None:
        who = board or network_of(address)
        if self._log_limit.worth((who, why), time.monotonic(), who):
            self._refused(Refusal(board, host_of(address), why))

    def _send(self, document: dict[str, Any]) -> None:
        with suppress(OSError), self._lock:
            self._socket.sendall(json.dumps(document).encode() + b"\n")
