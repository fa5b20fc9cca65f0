"""The failure detector on the mesh's port: calls become messages, messages calls, and what is found out becomes events.

Everything happens on the transport's loop. A connection to a member is opened when needed and kept while it is used, without
keepalive questions of its own: the probes are that. One that fails is closed, because TCP would be slow to try again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.base import TransportEvent
from edgegossip.mesh.channels import Security
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.lines import Lines
from edgegossip.mesh.membership.manifest import Manifest
from edgegossip.mesh.membership.messages import Ack, Nack, Output, Ping, PingFor, Send
from edgegossip.mesh.membership.news import Log, News
from edgegossip.mesh.membership.service import MembershipService, checked_address
from edgegossip.mesh.membership.settings import SwimSettings
from edgegossip.mesh.membership.table import Rows
from edgegossip.types import NodeId, PeerError

_CALL_S = 5.0  # bound of one call; the detector's own times are shorter
_LEAVE_S = 1.0


class Agent:
    """One member of one run. `service` goes into the transport's services, then `start` begins; `known` is what a member told
    about the others. `post` takes Verdict and Moved, `log` sentences."""

    def __init__(
        self,
        manifest: Manifest,
        name: NodeId,
        post: Callable[[TransportEvent], None],
        log: Log,
        *,
        known: Rows = (),
        security: Security | None = None,
        settings: SwimSettings | None = None,
    ) -> None:
        self.manifest, self.name, self.security = manifest, name, security
        self.settings = settings or SwimSettings()
        self.me = manifest.members.index(name)
        self.detector: Detector | None = None
        self.service = MembershipService(self)
        self._known = known
        self.news = News(manifest.members, self.me, post, log)
        self._lines = Lines(replace(MeshLimits(), keepalive_s=3600.0), security)
        self._questions: dict[tuple[int, int], asyncio.Future[Ack | Nack]] = {}  # of others, by sender and number
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, address: str) -> None:
        """Take part, reachable at this address; empty: not known yet."""
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

    def _revoked(self, peer: NodeId) -> bool:
        return self.security is not None and self.security.revoked(peer)

    def was_reached(self, at: str) -> None:
        """Somebody reached us at this address, which is ours then if we did not know it."""
        if self.detector is not None and not self.detector.table[self.me].address and checked_address(at):
            self.act(lambda detector, now_s: detector.move(checked_address(at), now_s))

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
        if self._timer is not None:
            self._timer.cancel()
        if self.detector is not None and not self._ending:
            wake_s = max(self.detector.wake_s, time.monotonic() + 0.001)
            self._timer = asyncio.get_running_loop().call_at(wake_s, self._tick)

    def _tick(self) -> None:
        self.act(lambda detector, now_s: detector.tick(now_s))

    def _perform(self, outputs: list[Output]) -> None:
        for output in outputs:
            if not isinstance(output, Send):
                assert self.detector is not None
                self.news.tell(output, self.detector.table)
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

    async def _ask(self, to: int, message: Ping | PingFor) -> None:
        """One call; its answer, or that there is none, goes to the detector."""
        assert self.detector is not None
        peer, address = self.manifest.members[to], self.detector.table[to].address
        try:
            envelope = wire.Envelope(self.manifest.run_id, self.manifest.hash, self.name, peer)
            async with asyncio.timeout(_CALL_S):
                data = await self._lines.call(peer, address, wire.request(envelope, message))
            told = wire.parse_response(data, message.number, len(self.manifest.members))
            if isinstance(told, str):
                raise PeerError(f"it refuses us: {told}")
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
