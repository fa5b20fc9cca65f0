"""A transport whose peers are members: the mesh's word on a neighbour and the members' word on
everybody make one sequence of PeerUp and PeerDown. The latest word counts: a neighbour is down when
its connection is gone or when the members named it dead, and back when its connection is or when it
told the members so. A process that is busy (it loads PyTorch) may answer no member for seconds
while its connection lives on: then the members' word counts only when it still stands after HOLD_S.
So it does when they say that it left: a board that leaves says so to its neighbours itself, and
members may be wrong, or lie, about each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from edgegossip.engine.joining import RemoteMembers
from edgegossip.engine.node import neighbours_of
from edgegossip.memory import Spool
from edgegossip.mesh import address as addresses
from edgegossip.mesh.base import Moved, Notice, PeerDown, PeerUp, SendReceipt, TransportEvent, Verdict
from edgegossip.mesh.connections import MACHINE, MeshMachine
from edgegossip.mesh.membership.agent import Agent
from edgegossip.mesh.membership.protocol import Status
from edgegossip.mesh.transport import GrpcTransport
from edgegossip.node.bootstrap import JoinedRun, advertised
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec, make_topology, mesh_limits
from edgegossip.telemetry.records import Sink
from edgegossip.types import EdgegossipError, NodeId, UsageError

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity

HOLD_S = 10.0


class NeighbourStatus:
    """Merges what the mesh and the members say of neighbours. Pure: events in, events out."""

    def __init__(self, neighbours: Collection[NodeId]) -> None:
        self._neighbours = frozenset(neighbours)
        self._link: dict[NodeId, bool] = {}  # the connection's last word
        self._up: set[NodeId] = set()
        self._down: set[NodeId] = set()
        self._gone: set[NodeId] = set()  # of these, whom it is no use to wait for: who left, or disagrees
        self._closed: set[NodeId] = set()
        # Who was named dead or gone, but whose connection lives: until when to wait.
        self._held: dict[NodeId, tuple[float, PeerDown]] = {}

    @property
    def due_s(self) -> float | None:
        """When `tick` is due."""
        return min((due_s for due_s, _ in self._held.values()), default=None)

    def tick(self, now_s: float) -> list[TransportEvent]:
        """Return the members' word on whom nobody heard of for long enough."""
        due = [(peer, event) for peer, (due_s, event) in self._held.items() if due_s <= now_s]
        for peer, _ in due:
            del self._held[peer]
        return [out for _, event in due for out in self._mark_down(event)]

    def take(self, event: PeerUp | PeerDown | Verdict, now_s: float) -> list[TransportEvent]:
        """Take in what the mesh or the members say; return what that comes to."""
        _, held = self._held.pop(event.peer, (0.0, None))
        match event:
            case PeerUp(peer):
                self._link[peer] = True
                return self._mark_up(peer)
            case PeerDown(peer, closed=closed):
                self._link[peer] = False
                if closed:
                    self._closed.add(peer)
                elif held is not None and held.left and not event.disagrees:
                    event = held  # it had been said to have left, and its connection bears that out
                return self._mark_down(event, again=closed or event.disagrees)
            case Verdict(peer, True):
                if peer in self._neighbours and not self._link.get(peer):
                    return []  # its connection will tell
                return self._mark_up(peer)
            case Verdict(peer, _, reason, left) if self._link.get(peer) and peer in self._up:
                self._held[peer] = now_s + HOLD_S, PeerDown(peer, reason, left)  # who leaves says so on its stream, too
                return []
            case Verdict(peer, _, reason, left):
                return self._mark_down(PeerDown(peer, reason, left))
        return []

    def _mark_up(self, peer: NodeId) -> list[TransportEvent]:
        if peer in self._up or peer in self._closed:
            return []
        self._up.add(peer)
        self._down.discard(peer)
        self._gone.discard(peer)
        return [PeerUp(peer)]

    def _mark_down(self, event: PeerDown, again: bool = False) -> list[TransportEvent]:
        news = event.left and event.peer not in self._gone
        if event.peer in self._down and not again and not news:
            return []
        if event.left or event.disagrees:
            self._gone.add(event.peer)
        self._down.add(event.peer)
        self._up.discard(event.peer)
        return [event]


class MemberTransport(GrpcTransport):
    """Moves frames between members, as far as they are `neighbours`, who get streams as soon as
    their address is known; what the members say of all others comes as it is. `agent`'s service is
    among `services`; the rest is a GrpcTransport's."""

    def __init__(
        self, *where: Any, agent: Agent, neighbours: Collection[NodeId], machine: MeshMachine = MACHINE, **how: Any
    ) -> None:
        super().__init__(*where, services=[agent.service], machine=machine, **how)
        self._agent, self._neighbours, self._now = agent, frozenset(neighbours), machine.threads.now
        self._status = NeighbourStatus(neighbours)
        self._ready: deque[TransportEvent] = deque()

    def start(self, address: str, *, certain: bool = True) -> None:
        """Take part, reachable at this address, which may be a guess."""
        self.expect(sorted(self._neighbours))
        self.connect({})
        self.call(self._agent.start(address, certain=certain), 10.0)

    @override
    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        until_s = None if timeout_s is None else self._now() + timeout_s
        while not self._ready:
            due_s = self._status.due_s
            bounds = [t for t in (until_s, due_s) if t is not None]
            event = super().incoming(max(0.0, min(bounds) - self._now()) if bounds else None)
            now_s = self._now()
            self._ready.extend(self._status.tick(now_s))
            if event is not None:
                self._take(event)
            elif due_s is None or now_s < due_s or (until_s is not None and now_s >= until_s):
                break  # time is over, or the transport is closed
        return self._ready.popleft() if self._ready else None

    @override
    def close(self) -> None:
        with suppress(TimeoutError, UsageError):  # the members hear that we leave, or notice
            self.call(self._agent.stop(), 5.0)
        super().close()

    @override
    def _note(self, event: TransportEvent) -> None:
        if isinstance(event, SendReceipt):  # who has taken a frame in need not be asked
            self._agent.note_heard(event.to)
        super()._note(event)

    def _take(self, event: TransportEvent) -> None:
        match event:
            # A founder that was started again refuses us, and so does who disagrees: it is there.
            case PeerUp(peer) | Notice(str(peer), answered=True) | PeerDown(peer, disagrees=True):
                self.submit(_do(lambda: self._agent.mark_alive(peer)))
            case PeerDown(peer, left=False, closed=False):
                self.submit(_do(lambda: self._agent.suspect(peer)))
            case Moved(peer, address):
                if peer in self._neighbours:
                    self.connect({peer: address})
                return
            case Verdict(peer) if peer not in self._neighbours:
                self._ready.append(event)
                return
        if isinstance(event, PeerUp | PeerDown | Verdict):
            self._ready.extend(self._status.take(event, self._now()))
        else:
            self._ready.append(event)


async def _do(what: Callable[[], None]) -> None:
    what()


def open_member(
    spec: NodeSpec,
    joined: JoinedRun,
    sink: Sink,
    meters: NodeMeters,
    security: TlsSecurity | None,
    *,
    listen: str,
    advertise: str | None,
    insecure: bool,
    spool: Spool,
    machine: MeshMachine = MACHINE,
) -> tuple[MemberTransport, Callable[[], None], RemoteMembers]:
    """Return this board's transport as a member of its run, listening; what makes it take part; and
    who else is in the run. `advertise`: HOST[:PORT] at which others reach it, if not where it
    listens; `spool`: see GrpcTransport."""

    def log(kind: str, text: str, peer: NodeId | None = None, **fields: str) -> None:
        with suppress(EdgegossipError):  # a full disk is told by whoever writes next
            sink.event(spec.name, kind, text, **({"peer": peer} if peer else {}), **fields)

    agent = Agent(
        joined.manifest,
        spec.name,
        lambda event: transport.post(event),
        log,
        known=joined.known,
        seeds=dict(joined.reached),
        security=security,
        machine=machine,
    )
    neighbours = neighbours_of(spec.name, spec.members, make_topology(spec.recipe, spec.members))
    transport = MemberTransport(
        spec.name,
        spec.run_id,
        listen,
        agent=agent,
        neighbours=neighbours,
        # Members probe each other and say who is gone; that a link carries nothing one way only its
        # pings tell. The listening end's timer, which gRPC starts anew whatever arrives, took a
        # fifth of what a board that waits needs.
        limits=replace(mesh_limits(spec.recipe.network.grace_s), server_keepalive_factor=10.0),
        insecure=insecure,
        before_disconnect=meters.sample_sockets,
        security=security,
        spool=spool,
        machine=machine,
    )
    # Members that had not left when the one through which we joined said who is there.
    known = ((joined.manifest.members[k], row) for k, row in joined.known if row.status is not Status.LEFT)
    others = {m: row.here for m, row in known if m not in neighbours and m != spec.name}
    address = advertised(transport.address, advertise, joined.seen_as)
    listening = addresses.parse(transport.address, "listen address")
    certain = bool(advertise) or listening.host not in ("0.0.0.0", "::")
    return transport, lambda: transport.start(address, certain=certain), RemoteMembers(others)
