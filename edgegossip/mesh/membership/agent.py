"""The failure detector on the mesh's port: calls become messages, messages calls, and what is found out becomes events.

Everything happens on the transport's loop. A connection to a member is opened when needed and kept while it is used, without
keepalive questions of its own: the probes are that. One that fails is closed, because TCP would be slow to try again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.base import TransportEvent
from edgegossip.mesh.connections import Security
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.lines import Lines
from edgegossip.mesh.membership.manifest import Manifest, Signer
from edgegossip.mesh.membership.messages import Ack, Changed, Nack, Output, Ping, PingFor, Send
from edgegossip.mesh.membership.news import Log, News
from edgegossip.mesh.membership.service import MembershipService, checked_address
from edgegossip.mesh.membership.settings import SwimSettings
from edgegossip.mesh.membership.table import Rows
from edgegossip.mesh.membership.whereabouts import Whereabouts
from edgegossip.types import EdgegossipError, NodeId, PeerError

_CALL_S = 5.0  # bound of one call; the detector's own times are shorter
_LEAVE_S = 1.0


class Agent:
    """One member of one run. `service` goes into the transport's services, then `start` begins; `known` is what a member told
    about the others, and `seeds` where we reached members ourselves. `post` takes Verdict and Moved, `log` sentences."""

    def __init__(
        self,
        manifest: Manifest,
        name: NodeId,
        post: Callable[[TransportEvent], None],
        log: Log,
        *,
        known: Rows = (),
        seeds: Mapping[NodeId, str] | None = None,
        security: Security | None = None,
        settings: SwimSettings | None = None,
    ) -> None:
        self.manifest, self.name, self.security = manifest, name, security
        self.settings = settings or SwimSettings()
        self.me = manifest.members.index(name)
        self.detector: Detector | None = None
        self.service = MembershipService(self)
        self._known = known
        self._seeds = {
            manifest.members.index(peer): at for peer, at in (seeds or {}).items() if peer in manifest.members
        }
        self._instead: dict[int, str] = {}  # addresses in the table that are of no use here: the seed is
        self._where = Whereabouts("")
        self.news = News(manifest.members, self.me, post, log)
        self._lines = Lines(replace(MeshLimits(), keepalive_s=3600.0), security)
        self._questions: dict[tuple[int, int], asyncio.Future[Ack | Nack]] = {}  # of others, by sender and number
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, address: str, port: int | None = None, known: Rows = ()) -> None:
        """Take part, reachable at this address; empty: not known yet. `port`: the address is a guess, and we listen there on
        all addresses of this machine. `known`: what a member told of the others since we were made."""
        self._known = known or self._known
        self._where = Whereabouts(address, port)
        self._where.beside(entry.address for _, entry in self._known if entry.here)
        address = self._where.address
        life, random = secrets.randbits(63), Random(secrets.randbits(64))
        self.detector = Detector(
            len(self.manifest.members), self.me, address, life, random, time.monotonic(), self.settings, self._known
        )
        self.news.begin(self.detector.table)
        self._arm()

    async def stop(self) -> None:
        """Leave on purpose: tell a few members, for at most a second."""
        if self.detector is None:
            return
        before = set(self._tasks)
        self.act(lambda detector, now_s: detector.leave(now_s))
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        telling = self._tasks - before
        if telling:
            await asyncio.wait(telling, timeout=_LEAVE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVE_S)
        await self._lines.close()

    def act(self, what: Callable[[Detector, float], list[Output]]) -> None:
        """Let the detector take something in, and do what it asks for."""
        if self.detector is None or self._ending:
            return
        try:
            self._perform(what(self.detector, time.monotonic()))
        finally:
            self._arm()

    def doubt(self, peer: NodeId) -> None:
        """The transport lost this peer: probe it now."""
        self.act(lambda detector, now_s: detector.doubt(self.manifest.members.index(peer), now_s))

    def greet(self, peer: NodeId) -> None:
        """The transport reached this peer: it is there, whatever was said."""
        self.act(lambda detector, now_s: detector.greet(self.manifest.members.index(peer), now_s))

    async def on_revocations(self) -> None:
        """Our revocation list is a newer one: who is on it is no member any more, until it shows a better certificate."""
        for k, peer in enumerate(self.manifest.members):
            if k != self.me and self._revoked(peer):
                self.act(lambda detector, now_s, k=k: detector.expel(k, now_s))  # type: ignore[misc]
        await self._lines.drop_revoked()
        signer: Signer | None = getattr(self.security, "identity", None)
        if signer is not None:
            with suppress(
                EdgegossipError
            ):  # our own certificate cannot be read now: others sign, or the next list makes us
                self.manifest = await asyncio.to_thread(_countersigned, self.manifest, signer)

    def _revoked(self, peer: NodeId) -> bool:
        return self.security is not None and self.security.revoked(peer)

    def was_reached(self, at: str, caller: str) -> None:
        """Somebody at the host `caller` says that it reached us at this address."""
        if self._where.reached(checked_address(at), caller):
            self.act(lambda detector, now_s: detector.move(self._where.address, now_s))

    # -- questions of others ---------------------------------------------------------------------------------

    async def answer(self, sender: int, message: Ping | PingFor) -> Ack | Nack | None:
        """None when there is nothing to say in time."""
        key, future = (sender, message.number), asyncio.get_running_loop().create_future()
        self._questions[key] = future
        try:
            self.act(lambda detector, now_s: detector.receive(sender, message, now_s))
            async with asyncio.timeout(_CALL_S):
                return await future
        except TimeoutError:
            return None
        finally:
            self._questions.pop(key, None)

    # -- what the detector asks for --------------------------------------------------------------------------

    def _arm(self) -> None:
        """Call the detector when it wants to be called. A timer that is due stays: messages that keep coming may not put it off
        again and again, and those that are there already may be read before it."""
        now_s = time.monotonic()
        if self._timer is not None:
            if (
                self.detector is not None
                and max(self._timer.when(), self.detector.wake_s) <= now_s
                and not self._ending
            ):
                return
            self._timer.cancel()
        if self.detector is not None and not self._ending:
            wake_s = max(self.detector.wake_s, now_s + 0.001)
            self._timer = asyncio.get_running_loop().call_at(wake_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.act(lambda detector, now_s: detector.tick(now_s))

    def _perform(self, outputs: list[Output]) -> None:
        for output in outputs:
            if not isinstance(output, Send):
                assert self.detector is not None
                self.news.tell(output, self.detector.table)
                if isinstance(output, Changed) and output.after.here and self._where.beside([output.after.address]):
                    self._spawn(self._move())
            elif isinstance(output.message, Ack | Nack):
                future = self._questions.get((output.to, output.message.number))
                if future is not None and not future.done():
                    future.set_result(output.message)
            else:
                self._spawn(self._ask(output.to, output.message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _move(self) -> None:
        self.act(lambda detector, now_s: detector.move(self._where.address, now_s))

    async def _ask(self, to: int, message: Ping | PingFor) -> None:
        """One call; its answer, or that there is none, goes to the detector."""
        assert self.detector is not None
        peer, address = self.manifest.members[to], self.detector.table[to].address
        try:
            told = await self._ask_somewhere(to, address, message)
        except (PeerError, grpc.RpcError, grpc.aio.BaseError, OSError, TimeoutError, asyncio.CancelledError) as error:
            if self._ending:
                raise
            if isinstance(error, PeerError):
                self.news.trouble(to, address, str(error))
            if self._revoked(peer):
                self.act(lambda detector, now_s: detector.expel(to, now_s))
            self.act(lambda detector, now_s: detector.failed(to, message.number, now_s))
            return
        self.act(lambda detector, now_s: detector.receive(to, told, now_s))

    async def _ask_somewhere(self, to: int, address: str, message: Ping | PingFor) -> Ack | Nack:
        """At its address; if that is of no use, where we reached it when we joined. Raises PeerError and gRPC's errors."""
        seed = self._seeds.get(to, address)
        if self._instead.get(to) == address:
            return await self._ask_at(to, seed, message)
        try:
            return await self._ask_at(to, address, message)
        except (PeerError, grpc.RpcError, grpc.aio.BaseError, OSError, TimeoutError):
            if seed == address or self._ending:
                raise
        told = await self._ask_at(to, seed, message)
        self._instead[to] = address
        self.news.found(to, seed)
        return told

    async def _ask_at(self, to: int, address: str, message: Ping | PingFor) -> Ack | Nack:
        peer = self.manifest.members[to]
        envelope = wire.Envelope(self.manifest.run_id, self.manifest.hash, self.name, peer)
        async with asyncio.timeout(_CALL_S):
            data = await self._lines.call(peer, address, wire.request(envelope, message))
        told = wire.parse_response(data, message.number, len(self.manifest.members))
        if isinstance(told, str):
            raise PeerError(f"it refuses us: {told}")
        return told


def _countersigned(manifest: Manifest, signer: Signer) -> Manifest:
    """Signed by us, if who has signed it was revoked: or no board could join any more. Takes some 0.1 s on a small board."""
    try:
        manifest.verify(signer)
        return manifest
    except PeerError:
        return manifest.signed_by(signer)
