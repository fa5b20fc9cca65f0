"""A fleet of whole boards in virtual time: what `edgegossip node` is made of, and who watches it.

A board is a member's real process but for its model: `GossipNode`, the mesh over TCP as `rpc` has
it, the membership and its detector, the checkpointer with its writer on a disk in memory. It joins
through another member, is killed, and goes on from what the writer wrote. What it says in its
records is held against the faults that there were."""

from __future__ import annotations

import errno
import math
import posixpath
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from numpy.typing import NDArray
from typing_extensions import override

from edgegossip import frame as wire
from edgegossip import recipe as recipes
from edgegossip.agreement import Agreement
from edgegossip.checkpoint.format import Stored
from edgegossip.engine.node import Stage
from edgegossip.memory import Spool
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.base import MeshLimits
from edgegossip.mesh.connections import ChannelFactory
from edgegossip.mesh.membership import wire as membership
from edgegossip.mesh.membership.manifest import parse as parse_manifest
from edgegossip.mesh.membership.protocol import Status
from edgegossip.mesh.wire import METHOD, ChunkView, parse_request
from edgegossip.node.bootstrap import JoinedRun, found
from edgegossip.node.gossip_node import LATE_S, GossipNode, Model
from edgegossip.node.members import open_member
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec, make_algorithm, make_view
from edgegossip.node.storage import Checkpointer
from edgegossip.recipe import Recipe
from edgegossip.telemetry.records import Sink, Value
from edgegossip.telemetry.spans import RoundClock
from edgegossip.training.base import Workload
from edgegossip.types import DecodeError, LocalUpdate, Metrics, NodeId, PeerError, Round, RunError, Vec
from lab.sim import checkers, naming, trace
from lab.sim.checkers import Violation
from lab.sim.disk import StoredDisk
from lab.sim.faults import CERTIFICATE, CRASHES, EVERY_KIND, FRAMING, Fault
from lab.sim.network import Clock, Network
from lab.sim.schedule import Schedule, layout_of, of
from lab.sim.schedule import Workload as Training
from lab.sim.shell import versions
from lab.sim.shell.certificates import TAKES_S, CertificateRule, Fleet
from lab.sim.shell.process import Process
from lab.sim.shell.rpc import Stack, address_of
from lab.sim.shell.tls import Security
from lab.sim.witness import scheme_of
from lab.sim.world import COMPUTE_S, LOAD_S

FOLDER = Path("/checkpoint")
LIMITS = MeshLimits()
AGAIN_S, ASK_S = 1.0, 5.0  # between two looks for a member to join through, and for its answer
SETTLE_S = 20.0  # after the last fault, until all is as if nothing had been
BEGINS_S = 200.0  # that a board may take to begin its rounds: it waits two minutes for neighbours that are gone
CAUSE_S = 15.0  # after a fault, until nobody can blame anybody for it any more
NOTICED_S = 15.0  # until the members know who is gone, and neighbours, who may wait for a deadline more
DISK_LOSES = frozenset(CRASHES) - {"crash", "power-cut"}  # so that what was written may not be there
KEPT_S = 10.0  # and as long as the disk was ill: from one checkpoint to the next, once it is well
DIES_S = 2.0  # for which one must be away at least, until others hold it for dead
READ_S = 0.3  # until a frame that has come to a machine is read by a process that runs
LIE_S = 1.0  # between two lies of one who frames others: each is refuted, and news for all
GONE = Status.SUSPECT, Status.DEAD, Status.LEFT
SAID = 100  # of a trace's events: those of this kind are of records


def recipe_of(schedule: Schedule, rounds: Round) -> Recipe:
    """Return the recipe of a schedule's run of so many rounds."""
    settings: dict[str, Any] = {
        "run.nodes": schedule.nodes,
        "run.rounds": rounds,
        "run.seed": schedule.seed % 2**31,
        "gossip.algorithm": schedule.algorithm.name,
        "gossip.params": schedule.algorithm.values,
        "gossip.topology": schedule.topology.name,
        "gossip.topology_params": schedule.topology.values,
        "gossip.deadline_s": schedule.deadline_s,
        "codec.name": schedule.codec.name,
        "codec.params": schedule.codec.values,
        "evaluation.every": 0,
        "training.momentum": 0.0,
    }
    return recipes.with_settings(recipes.load("quickstart-gossip"), settings)


class Disk(StoredDisk):
    """Has a board's checkpoints: files in memory, on a disk that may be slow or full, or fail."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self.broke = False  # since it took a checkpoint last
        self.durable, self.kept_s = 0, 0.0  # the round that its newest checkpoint goes on with, and when that came

    @override
    def read(self) -> None:
        return None  # the board itself looks

    @override
    def crash(self, kind: str, depth: int) -> bool:
        if kind != "power-cut":
            return super().crash(kind, depth)
        self.device = self.device.after_power_cut(self._random)
        return True

    def of(self, process: Process) -> Any:
        """Return the files as this process finds them."""

        def before(operation: str, path: str) -> None:
            process.check()
            if (self.full or self.failing) and operation in ("create", "write"):
                self.broke = True
                full = OSError(errno.ENOSPC, "No space left on device")
                raise OSError(errno.EIO, "Input/output error") if self.failing else full
            if self.slow_s and operation == "sync":
                process.sleep(self.slow_s)
            if operation == "rename":
                part = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)[:-5]}.part")
                self.durable = Stored(self.device.open(part)).meta["round"]
                self.broke, self.kept_s = False, process.now()

        self.device.before = before
        return self.device


class Meters(NodeMeters):
    """Measures nothing: a simulated process has no sensors."""

    def __init__(self) -> None:
        pass

    @override
    def begin(self) -> None:
        pass

    @override
    def __call__(self, *, due: bool = True) -> dict[str, Value]:
        return {}

    @override
    def sample_sockets(self) -> None:
        pass


class Trains(Workload):
    """Trains in miniature, and takes its time."""

    def __init__(self, training: Training, board: Board, process: Process, compute_s: Callable[[], float]) -> None:
        self._training, self._index, self._process, self._compute_s = training, board.index, process, compute_s
        self._steps = board.steps
        self._layout = layout_of(training.starts[0].size)

    @property
    @override
    def layout(self) -> Any:
        return self._layout

    @override
    def initial(self, seed: int) -> Vec:
        return self._training.starts[self._index]

    @override
    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        self._process.sleep(self._compute_s())
        self._steps[round] = self._process.now()
        return self._training.update(self._index, x, False, correction)

    @override
    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics | None:
        return None

    @override
    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {}

    @override
    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        pass

    @override
    def agreement(self) -> Agreement:
        return Agreement({})

    @override
    def state(self, x: Vec | None) -> Mapping[str, NDArray[Any]]:
        return {} if x is None else self._layout.views(x)


class Board(Sink):
    """Is a place for processes, one after the other. Takes their records."""

    def __init__(self, world: ShellWorld, index: int) -> None:
        self.world, self.index, self.name = world, index, world.members[index]
        self.disk = Disk(of(world.schedule.seed, f"disk/{index}"))
        self.up = self.paused = False
        self.process = 0  # counts boots
        self.other = versions.RIGHT  # what processes have otherwise from now on
        self.done: Round = -1  # the last round that it reported
        self.reports: list[tuple[Round, float]] = []  # of its life so far: rounds, and when
        self.steps: dict[Round, float] = {}  # of this process: when it had trained a round, and sends it
        self.ends: dict[Round, float] = {}  # and when it reported it
        self.alive: Process | None = None
        self.stack: Stack | None = None
        self.security: Security | None = None
        self.node: GossipNode | None = None
        self.leaves = False
        self.resumed_s, self.gone_s = -math.inf, math.inf  # when it went on; since when no process is here
        self.died_s = math.inf  # when the process before this one did
        self.heard_of_s: dict[int, float] = {}  # when it last said that another is there, or gone
        self.here: set[int] = set()  # who the members hold for here, as it says
        self.dead: set[int] = set()  # and for dead
        self.came: dict[tuple[int, Round], float] = {}  # (sender, round): when such a frame was here first
        self.rows: dict[int, pb.Row] = {}  # what it last told of each member
        self.lies, self.lied_s = 0, -math.inf
        self.loses = False  # a disk that was broken took along what was finished
        self.waited, self.paused_s = False, math.inf  # when it stood still, and since when
        self.says_until_s = math.inf  # by then it says that it stood still
        self.tried: dict[int, tuple[int, float]] = {}  # how often in a row it tried to reach another, and when last
        self.flying: dict[int, float] = {}  # frames that it sent, and since when nobody has said that they came

    @property
    def begun(self) -> bool:
        """Whether its process has its model."""
        return self.node is not None and self.node.engine.view is not None

    # -- processes

    def boot(self) -> None:
        """Begin a new process."""
        world = self.world
        self.disk.crash("crash", 0)  # what the process before had locked is free
        self.up, self.paused, self.leaves, self.node = True, False, False, None
        self.process += 1
        self.died_s, self.gone_s = self.gone_s, math.inf
        self.steps, self.ends = {}, {}
        self.came.clear()
        self.heard_of_s.clear()
        self.tried.clear()
        self.flying.clear()
        self.says_until_s = math.inf
        self.here.clear()
        self.dead.clear()
        seed = Random(f"{world.schedule.seed}/process/{self.index}/{self.process}")
        self.alive = Process(world.clock, seed, self._crashed)
        self.alive.constants = versions.constants_of(self.other)
        world.versions.booted(self)
        self.stack = Stack(self.index, self.alive, world.network, world.stack_of, self._heard, self._says)
        self.alive.start(self._main, self.name)

    def kill(self) -> None:
        """End the process."""
        assert self.alive is not None and self.stack is not None
        self.up = self.paused = False
        self.gone_s = self.world.clock.now
        self.loses = self.loses or self.disk.broke
        self.stack.end()
        self.alive.kill()

    def pause(self) -> None:
        """Let the process stand still."""
        assert self.alive is not None
        self.paused = self.alive.paused = True
        self.waited = self.node is not None and self.node.engine.stage is Stage.EXCHANGING
        self.paused_s = self.world.clock.now

    def unpause(self) -> None:
        """Let it go on."""
        assert self.alive is not None
        self.paused, self.resumed_s = False, self.world.clock.now
        if self.waited and self.resumed_s - self.paused_s > self.world.schedule.deadline_s + LATE_S + 1.0:
            self.says_until_s = self.resumed_s + 1.0
        self.alive.unpause()

    def noted(self, event: str, j: int, now_s: float) -> None:
        """Take note of what it said of another."""
        if event.startswith("peer-"):
            self.heard_of_s[j] = now_s
        if event.startswith("member-"):
            (self.dead.add if event == "member-dead" else self.dead.discard)(j)
            (self.here.add if event == "member-here" else self.here.discard)(j)

    def _crashed(self, error: BaseException) -> None:
        self.world.violate("crash", self.index, f"{type(error).__name__}: {error}")

    def _main(self) -> None:
        """Be a board as `edgegossip node` is one."""
        world = self.world
        try:
            self._play()
        except RunError as error:
            world.gave_up(self, str(error))
        except KeyboardInterrupt:
            pass
        world.clock.at(world.clock.now, world.over, self, self.process)

    def _play(self) -> None:
        world, process = self.world, self.alive
        assert process is not None and self.stack is not None
        if world.fleet is not None:
            self.security = Security(world.fleet.identity(self.index), self.stack, world.certificates.handshakes)
        joined = world.founded if self.index == 0 else self._join()
        spec = NodeSpec(world.recipe, self.name, world.members, joined.manifest.run_id, restarted=self.process > 1)
        model = self._load(spec) if spec.restarted else None
        transport, begin, remote = open_member(
            spec,
            joined,
            self,
            Meters(),
            self.security,
            listen=str(address_of(self.index)),
            advertise=None,
            insecure=True,
            spool=Spool(),
            machine=self.stack.machine(),
        )
        try:
            transport.agree(versions.agreement_of(self.other))
            begin()
            self.node = GossipNode(
                spec,
                transport,
                self,
                Meters(),
                lambda: model or self._load(spec),
                remote=remote,
                clock=RoundClock(lambda: round(process.now() * 1e9), lambda: 0),
                now=process.now,
            )
            self.node.run()
        finally:
            transport.close()

    def _load(self, spec: NodeSpec) -> Model:
        world, process = self.world, self.alive
        assert process is not None
        process.sleep(world.load_s[self.index])
        workload = Trains(world.training, self, process, lambda: world.compute_s[self.index] * world.slow[self.index])
        view = replace(make_view(spec, workload.layout), boot=process.random.getrandbits(48))
        files = self.disk.of(process)
        checkpointer = Checkpointer(spec, view, workload, FOLDER, self, files, process)
        return Model(workload, view, checkpointer, checkpointer.load(make_algorithm(spec.recipe)))

    def _join(self) -> JoinedRun:
        """Ask members until one answers, as `bootstrap.join` does."""
        process, world = self.alive, self.world
        assert process is not None and self.stack is not None
        thread = process.loop("join", lambda: None)
        others = [i for i in range(world.schedule.nodes) if i != self.index]
        while True:
            for other in others:
                try:
                    told = membership.parse(pb.JoinResponse, thread.call(self._ask(other)))
                    if told.refusal:
                        raise PeerError(f"it refuses us: {told.refusal}")
                except Exception as error:  # gRPC's: nobody is there
                    world.trace.line(process.now(), self.index, f"cannot join through {other} yet")
                    if isinstance(error, PeerError):
                        world.versions.said(self, "", str(error))
                    continue
                world.versions.taken_in(other, self.index, (versions.MEMBERSHIP,), world.booted_s[other])
                manifest = parse_manifest(told.manifest, told.signature)
                known = membership.parse_rows(told.rows, len(manifest.members))
                at = str(address_of(other))
                return JoinedRun(world.recipe, manifest, known, seeds=(at,), reached=((told.name, at),))
            process.sleep(AGAIN_S)

    async def _ask(self, other: int) -> bytes:
        assert self.stack is not None
        at = address_of(other)
        channels = ChannelFactory(LIMITS, self.security, machine=self.stack.machine())
        request = pb.JoinRequest(protocol_version=membership.PROTOCOL_VERSION, name=self.name, reached=str(at))
        member = self.world.members[other] if self.security is None else await self.security.check(None, at)
        async with channels.open(member, at) as channel:
            answer = await channel.unary_unary(membership.JOIN)(request.SerializeToString(), timeout=ASK_S)
        return bytes(answer)

    # -- what it says, and what comes to its machine

    @override
    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Value]) -> None:
        if self.up:
            self.world.reported(self, step, values)

    @override
    def event(self, node: NodeId, name: str, text: str, **fields: Value) -> None:
        if self.up:
            self.world.said(self, name, text, fields)

    @override
    def close(self) -> None:
        pass

    def _says(self, method: str, question: bytes) -> bytes:
        """Return a question as it goes out: who frames others tells now and then that one of them
        is gone, for which it names all as witnesses."""
        if method != membership.PROBE:
            return question
        asked = membership.parse(pb.ProbeRequest, question)
        self.rows.update((row.member, row) for row in asked.rows)
        others = sorted(self.rows.keys() - {self.index, self.world.members.index(asked.receiver)})
        if self.index not in self.world.liars or not others or self.world.clock.now < self.lied_s + LIE_S:
            return question
        self.lies, self.lied_s = self.lies + 1, self.world.clock.now
        self.world.seen[FRAMING.name] += 1
        row = pb.Row()
        row.CopyFrom(self.rows[others[int(self.world.lie() * len(others))]])
        row.status = GONE[int(self.world.lie() * len(GONE))].value  # type: ignore[assignment]  # an enum's number
        row.incarnation += 2 * self.lies
        rows = [other for other in asked.rows if other.member != row.member]
        del asked.rows[:]
        asked.rows.extend([*rows, row])
        return asked.SerializeToString()

    def _heard(self, sender: int, kind: str, *rest: Any) -> None:
        now = self.world.clock.now
        if kind == "connect" and rest[0] == METHOD:  # to another, for its frames
            self._tries(sender, now)
        if kind == "close":  # what came just before, or was not read yet, may be lost with the connection
            read_s = (self.paused_s if self.paused else now) - READ_S
            self.came = {key: s for key, s in self.came.items() if key[0] != sender or s < read_s}
        if kind != "message":
            return
        try:
            chunk = parse_request(rest[1])
            if isinstance(chunk, ChunkView):
                frame = wire.parse_header(chunk.data, wire.Limits(2**63))
                if frame.kind not in (wire.Kind.HELLO, wire.Kind.STATE):  # which tell a round, and belong to none
                    self.came.setdefault((sender, frame.round), now)
        except DecodeError:
            pass

    def _tries(self, j: int, now: float) -> None:
        """It connects to another. Half of each pause is at random; an attempt that took long, or
        came off, begins anew."""
        times, last_s = self.tried.get(j, (0, -math.inf))
        least_s = min(LIMITS.backoff_max_s, LIMITS.backoff_min_s * 2 ** (times - 1)) / 2 if times else 0.0
        self.world.looked |= {"rarer"} if times else set()
        if now - last_s < least_s - 1e-9:
            text = f"tries to reach {j} after {now - last_s:.3f} s, and has tried {times} times"
            self.world.violate("rarer", self.index, text)
        self.tried[j] = 1 if now - last_s > LIMITS.hello_s else times + 1, now


class ShellWorld:
    """Holds everything of one run. `violations` is filled as it goes; the clock stops at the
    first one."""

    def __init__(self, schedule: Schedule, say: trace.Say | None) -> None:
        n, seed = schedule.nodes, schedule.seed
        self.schedule, self.clock, self.trace = schedule, Clock(), trace.Trace(say)
        self.seen: Counter[str] = Counter()
        self.violations: list[Violation] = []
        rng = of(seed, "run")
        self.compute_s = [COMPUTE_S[0] + (COMPUTE_S[1] - COMPUTE_S[0]) * rng.random() for _ in range(n)]
        self.load_s = [LOAD_S[0] + (LOAD_S[1] - LOAD_S[0]) * rng.random() for _ in range(n)]
        self.settled_s = schedule.seconds + SETTLE_S  # from then on all is as if nothing had been
        self.rounds = 10 + math.ceil(self.settled_s / max(self.compute_s))
        self.recipe = recipe_of(schedule, self.rounds)
        self.members = tuple(naming.member_names(n))
        self.founded = found(self.recipe, self.members[0], self.members, None)
        self.topology = naming.topology_of(schedule.topology, n)
        self.training = Training(schedule.workload, n, schedule.values, seed, equal=False)
        self.network = Network(self.clock, of(seed, "network"), n, self._deliver, self.seen)
        self.nodes = [Board(self, i) for i in range(n)]
        self.detector = SimpleNamespace(changed=lambda pairs: None, node_changed=lambda i: None)
        self.slow = [1.0] * n  # how many times longer training takes a board
        self.liars: dict[int, list[tuple[str, float]]] = {}  # as in `world.World`
        self.lied: set[int] = set()
        self.lie = of(seed, "byzantine").random
        self.restarts = 0
        self.finishers: set[int] = set()
        self.unfit_ended: set[int] = set()  # boards that ended because they did not fit others
        self.looked = {"crash"}  # rules that had something to look at
        self.versions, self.certificates = versions.VersionRule(self), CertificateRule(self)
        self.fleet = Fleet(self.members, self.certificates.faults) if self.certificates.faults else None
        self.progress_s, self.began_s, self.booted_s = [0.0] * n, [0.0] * n, [0.0] * n
        self.ended: set[int] = set()  # boards that came to the end of the run, or gave up
        # What came of a stream may not fit it any more.
        self.streams = getattr(scheme_of(naming.algorithm_of(schedule.algorithm)), "streams", True)

    def stack_of(self, index: int) -> Stack:
        """Return the machine of a board."""
        stack = self.nodes[index].stack
        if stack is None:  # it has never been there
            nobody = Process(self.clock, Random(0), lambda error: None)
            nobody.alive = False
            stack = Stack(index, nobody, self.network, self.stack_of)
        return stack

    def _deliver(self, receiver: int, segment: Any) -> None:
        segment.pipe.arrived(segment)

    # -- what the fault injector does

    def boot(self, index: int, saved: object) -> None:
        """Start a process of a board."""
        self.trace.event(self.clock.now, index, trace.BOOT)
        self.trace.line(self.clock.now, index, "is started")
        self.progress_s[index] = self.booted_s[index] = self.clock.now
        self.ended.discard(index)
        self.nodes[index].boot()

    def renew(self, index: int) -> None:
        """Give a board a new certificate."""
        assert self.fleet is not None
        self.fleet.renew(index, self.clock.now)

    def kill(self, index: int, why: str, left: bool = False) -> None:
        """End a board's process. `left`: it is asked to, and says goodbye."""
        board = self.nodes[index]
        self.trace.event(self.clock.now, index, trace.CRASH)
        self.trace.line(self.clock.now, index, why)
        if left:
            board.leaves = True
            assert board.alive is not None
            board.alive.interrupt()
        else:
            board.kill()

    def over(self, board: Board, process: int) -> None:
        """A board's process has come to its end."""
        if board.up and board.process == process:
            self.looked.add("end")
            self.trace.event(self.clock.now, board.index, trace.LEAVE)
            self.trace.line(self.clock.now, board.index, "has ended")
            self.ended.add(board.index)
            board.kill()

    # -- what boards say

    def violate(self, rule: str, node: int | None, text: str) -> None:
        """Take note of a broken promise; the run ends with it."""
        self.violations.append(Violation(rule, node, round(self.clock.now, 3), text))
        self.trace.line(self.clock.now, node, f"VIOLATION of {rule}: {text}")
        self.clock.stop()

    def reported(self, board: Board, step: Round, values: Mapping[str, Value]) -> None:
        """A board has reported a round."""
        i, now = board.index, self.clock.now
        assert board.node is not None
        model = board.node.engine.model
        self.trace.event(now, i, trace.DONE, step)
        self.trace.model(model)
        self.trace.line(now, i, f"round {step} is done; heard {values.get('gossip/heard')}")
        self.looked |= {"finite", "rounds"}
        if fault := checkers.finite_fault(model):
            self.violate("finite", i, fault)
        if step <= board.done:
            self.violate("rounds", i, f"round {step} done after {board.done}")
        if now > self.settled_s and (there := [j for j in self._others(i) if self._could_talk(i, j, SETTLE_S)]):
            self.looked.add("shut-out")
            down = board.dead.union(map(self.members.index, board.node.engine.down))
            if out := sorted(down.intersection(there)):
                self.violate("shut-out", i, f"counts {out} as gone, who have been there for long")
        late_s = now - self.recipe.checkpoint.slack_s - READ_S
        early = [r for r, s in board.reports if self.began_s[i] < s < late_s]
        if early and not board.disk.broke:
            self.looked.add("kept")
            if unkept := [r for r in early if r >= board.disk.durable]:
                self.violate("kept", i, f"rounds {unkept} were finished before {late_s:.1f} s, and are not on its disk")
        board.done = step
        board.reports.append((step, now))
        board.ends[step] = now
        self.progress_s[i] = now

    def said(self, board: Board, name: str, text: str, fields: Mapping[str, Value]) -> None:
        """A board has told an event."""
        i, now = board.index, self.clock.now
        self.trace.event(now, i, SAID, float(zlib.crc32(f"{name} {text}".encode())))
        self.trace.line(now, i, f"[{name}] {text}")
        self.versions.said(board, name, text)
        self.certificates.said(board, name, text)
        if name == "started":
            self._started(board, int(fields.get("round", 0) or 0))
        peer = str(fields.get("peer"))
        if peer in self.members:
            j = self.members.index(peer)
            if name in ("suspect", "peer-down", "peer-left", "member-dead"):
                self.looked.add("blame")
                if fault := self._false(board, name, text, j, fields):
                    self.violate("blame", i, f"{fault}: {text}")
            board.noted(name, j, now)
            if name == "peer-up":
                since_s = max(self.booted_s[i], self.booted_s[j])
                self.versions.taken_in(i, j, (versions.MESH, versions.CODEC), since_s)
        if name == "checkpoint-failed" and not board.disk.broke:
            self.violate("blame", i, f"its disk is well: {text}")
        if name == "starved":
            board.says_until_s = math.inf
        if name == "starved" and now > board.resumed_s + 1.0:
            self.violate("blame", i, f"it has not stood still: {text}")
        if name == "finished":
            board.leaves = True
        if name == "refused":
            self.looked.add("refused")
            address = str(fields.get("address", ""))  # of a connection, which may have hung; else it is a message
            host = address.partition(":")[0].rpartition(".")[2]
            if not host or self._could_talk(i, int(host) - 1, CAUSE_S):
                self.violate("refused", i, text)

    def _false(self, board: Board, name: str, text: str, j: int, fields: Mapping[str, Value]) -> str:
        """Say why what a board says of another is false; "" where it is true."""
        i, now = board.index, self.clock.now
        other = self.nodes[j]
        if name == "suspect":
            round = fields["round"]
            assert isinstance(round, int)
            came_s = board.came.get((j, round), math.inf)
            if not self.streams and came_s < now - READ_S:
                return f"its message of that round came at {came_s:.3f} s"
            return self._unexplained(i, j, round, board.steps[round], now)
        told = name == "peer-left" or text.endswith(" left")
        if name != "suspect" and not told and other.leaves and self.began_s[j] and self.unhurt_s(i, j) > CAUSE_S:
            return "it had left, and said so"
        if name == "member-dead" and (why := self._alive(i, j)):
            return why
        return "the two could talk all the time" if self._could_talk(i, j, CAUSE_S) else ""

    def _unexplained(self, i: int, j: int, round: Round, since_s: float, until_s: float) -> str:
        """Say why j's message of a round should have come to i, which waits for it since then; ""
        where it could not: a fault hit one of them or what is between them, or j itself had to wait
        for another, whose message could not come."""
        other = self.nodes[j]
        faults = (f for f in self.schedule.faults if f.start < until_s and self._over_s(f) > since_s - CAUSE_S)
        if any(self._hits(f, i, j) for f in faults):
            return ""
        if (step_s := other.steps.get(round, math.inf)) < until_s - READ_S:
            return f"{j} had trained that round at {step_s:.3f} s, and nothing hit the two"
        passed_s = min((s for r, s in other.steps.items() if r > round), default=math.inf)
        if passed_s < until_s:  # it took over a later model: it had been left behind
            hits = (f for f in self.schedule.faults if f.start < passed_s and self._over_s(f) > passed_s - CAUSE_S)
            return "" if any(hits) else f"{j} left that round out at {passed_s:.3f} s, and nothing had hit anybody"
        newest = max((r for r, s in other.steps.items() if s <= since_s), default=None)
        if newest is None:  # it was not there yet
            return ""
        if newest < round - 1:  # it catches up, if something broke since it was level with i, or came
            level_s = self._level_s(j, self.nodes[i].steps)
            if any(r - 1 not in other.steps and s > level_s for r, s in other.steps.items()):
                # They were level where both had been left behind: what counts is who leads.
                leads: dict[Round, float] = {}
                for r, s in (item for node in self.nodes for item in node.steps.items()):
                    leads[r] = min(s, leads.get(r, math.inf))
                level_s = self._level_s(j, leads)
            if any(f.start < until_s and self._over_s(f) > level_s - CAUSE_S for f in self.schedule.faults):
                return ""
        # The round before this one, or an earlier one, in which it waited the longest meanwhile.
        spans = ((r, s, min(other.ends.get(r, until_s), until_s)) for r, s in other.steps.items() if r < round)
        behind, step_s, end_s = max(spans, key=lambda span: span[2] - max(span[1], since_s), default=(0, math.inf, 0.0))
        late = [k for k in self.topology.neighbours(j, behind).in_ if other.came.get((k, behind), math.inf) > step_s]
        if any(not self._unexplained(j, k, behind, step_s, end_s) for k in late):
            return ""
        return f"nothing hit {j}, nor whom it waited for, since {since_s:.3f} s"

    def _level_s(self, j: int, steps: Mapping[Round, float]) -> float:
        """Say when j last trained a round before the next one of these was trained, or came."""
        trained = self.nodes[j].steps.items()
        return max((s for r, s in trained if s < steps.get(r + 1, 0.0)), default=self.began_s[j])

    def _alive(self, i: int, j: int) -> str:
        """Say why i had no reason to hold j for dead; "" where it may have had."""
        now = self.clock.now
        if any(self._could_talk(i, k, CAUSE_S) and self._could_talk(k, j, CAUSE_S) for k in self._others(i, j)):
            return "others reach it"
        hits = [
            f for f in self.schedule.faults if now - CAUSE_S < self._over_s(f) and f.start < now and self._hits(f, i, j)
        ]
        if not self.nodes[j].up or any(i != k for f in hits if f.kind in CRASHES for k in f.nodes):
            return ""
        if sum(self._over_s(f) - f.start for f in hits) < DIES_S:
            return "it was away for a moment only"
        return "who names it stood still itself" if all(f.kind == "pause" and f.nodes == (i,) for f in hits) else ""

    def _others(self, *those: int) -> list[int]:
        return [k for k in range(self.schedule.nodes) if k not in those]

    def _could_talk(self, i: int, j: int, for_s: float) -> bool:
        """Tell whether both are there, and nothing has hit them for so long."""
        return self.nodes[j].up and not self.nodes[j].leaves and self.unhurt_s(i, j) > for_s

    def unhurt_s(self, i: int, j: int, but: Collection[Fault] = ()) -> float:
        """Return for how long nothing but these faults has hit the two, or what is between them."""
        now = self.clock.now
        hits = (self._over_s(f) for f in self.schedule.faults if f.start < now and f not in but and self._hits(f, i, j))
        return now - max(hits, default=-math.inf)

    def _hits(self, fault: Fault, i: int, j: int) -> bool:
        """Whether a fault concerns two boards, or the link between them."""
        if fault.kind == CERTIFICATE.name:  # connections that stand go on
            return self.certificates.handshakes.lately(i, j)
        match EVERY_KIND[fault.kind].scope:
            case "edge":
                return {i, j} == set(fault.nodes)
            case "side":
                return (i in fault.nodes) is not (j in fault.nodes)
            case "node":
                return i in fault.nodes or j in fault.nodes
            case _:
                return True

    def _over_s(self, fault: Fault) -> float:
        """Return until when a fault lasted so far; what queued at a slow link takes longer, and so
        does a board that has a new certificate until it looks."""
        later_s = {"slow-link": self.network.through_s, CERTIFICATE.name: fault.end + TAKES_S}.get(fault.kind, 0.0)
        return min(max(fault.end, later_s), self.clock.now)

    def _started(self, board: Board, round: Round) -> None:
        """A process has its model: all that was finished long enough before is in it."""
        began_s, died_s = self.began_s[board.index], board.died_s  # of the process before
        since = {
            f.kind for f in self.schedule.faults if board.index in f.nodes and began_s <= f.start <= self.clock.now
        }
        loses, board.loses = board.loses, False
        if board.process > 1 and not loses and not since & DISK_LOSES:
            self.looked.add("kept")
            before_s = died_s - self.recipe.checkpoint.slack_s
            lost = [r for r, s in board.reports if r >= round and began_s < s < before_s]
            if len(lost) > 1:
                self.violate("kept", board.index, f"goes on from round {round}; rounds {lost} were finished before")
        self.progress_s[board.index] = self.began_s[board.index] = self.clock.now
        board.done = round - 1

    def gave_up(self, board: Board, why: str) -> None:
        """A board's process ends before the run does."""
        self.trace.line(self.clock.now, board.index, f"gives up: {why}")
        if self.versions.true(board.index, why):
            self.unfit_ended.add(board.index)
            return
        self.looked.add("end")
        there = [b.index for b in self.nodes if b.up and b is not board and not b.leaves]
        if there:
            self.violate("end", board.index, f"gave up though {there} are there: {why}")

    # -- looks

    def waits(self) -> bool:
        """Tell whether who has not begun may wait without end: for one that left before it came, or
        that never came."""
        gone = any(f.kind == "leave" and f.start <= self.clock.now for f in self.schedule.faults)
        return gone or not all(board.process for board in self.nodes)

    def look(self) -> None:
        """Every second: whoever does not get on has stalled."""
        self.versions.look()
        self.certificates.look()
        for board in self.nodes:
            i, now = board.index, self.clock.now
            if not board.up or board.paused or board.leaves:
                self.progress_s[i] = now
                continue
            begun = board.begun
            if not begun and self.waits():
                continue
            self.looked.add("progress")
            if board.node is not None and board.node.engine.stage is Stage.ALONE:  # for as long as others go on
                self.progress_s[i] = now
            slow_s = sum(f.strength for f in self.schedule.faults if f.kind == "slow-disk" and i in f.nodes)
            most_s = 2 * (self.schedule.deadline_s + slow_s) + LATE_S + 1.0 if begun else BEGINS_S
            if all(self._could_talk(i, j, SETTLE_S) for j in self._others(i)):
                most_s = min(most_s, SETTLE_S + self.schedule.deadline_s)
            if now - self.progress_s[i] > most_s:
                stage = "joining" if board.node is None else board.node.engine.stage.value
                self.violate("progress", i, f"no round done for {now - self.progress_s[i]:.1f} s; it is {stage}")
            if now > board.says_until_s:
                self.violate("blame", i, f"stood still until {board.resumed_s:.1f} s, and has not said so")
            kept_s = max(self.schedule.seconds, self.began_s[i], board.disk.kept_s)
            ill_s = sum(f.end - f.start for f in self.schedule.faults if i in f.nodes)
            if begun and now - kept_s > KEPT_S + ill_s + 2 * self.schedule.deadline_s:
                self.violate("kept", i, f"has kept nothing since {board.disk.kept_s:.1f} s")
            flying = board.node.traffic.in_flight if begun and board.node is not None else {}
            board.flying = {frame: board.flying.get(frame, max(now, self.settled_s)) for frame in flying}
            self.looked |= {"delivered"} if flying else set()
            if any(now - s > SETTLE_S for s in board.flying.values()):
                self.violate("delivered", i, f"waits for {SETTLE_S:g} s for word of what it sent")
            if begun and now - board.resumed_s > NOTICED_S:
                self._look_for_gone(board)
            if begun and now - max(self.began_s[i], self._hit_s(i)) > NOTICED_S:
                gone = {j for j in self._others(i) if now - self.nodes[j].gone_s > NOTICED_S}
                self.looked |= {"noticed"} if gone else set()
                if gone := gone & board.here:
                    self.violate(
                        "noticed", i, f"has not said that {sorted(gone)} are dead or have left, who are gone for long"
                    )

    def _hit_s(self, i: int) -> float:
        """Return until when something hit a board, or what is between it and any other."""
        hits = (f for f in self.schedule.faults if EVERY_KIND[f.kind].scope not in ("node", "edge") or i in f.nodes)
        return max((self._over_s(f) for f in hits if f.start < self.clock.now), default=-math.inf)

    def _cut_s(self, i: int, j: int) -> float:
        """Return since when nothing gets from one to the other."""
        cuts = (f for f in self.schedule.faults if f.kind in ("one-way-cut", "split") and self._hits(f, i, j))
        return min((f.start for f in cuts if f.start < self.clock.now < f.end), default=math.inf)

    def _look_for_gone(self, board: Board) -> None:
        """Whoever is gone for long is known to be."""
        assert board.node is not None
        engine, now = board.node.engine, self.clock.now
        here, noticed_s = engine.config.neighbours - engine.down, NOTICED_S + self.schedule.deadline_s
        gone_s = {j: min(self.nodes[j].gone_s, self._cut_s(board.index, j)) for j in map(self.members.index, here)}
        out = sorted(j for j, since_s in gone_s.items() if now - since_s > noticed_s)
        if out and now - self.began_s[board.index] > noticed_s:
            self.violate("noticed", board.index, f"counts {out} as there, who have been gone for long")
        for j in map(self.members.index, here):
            other, heard_s = self.nodes[j], board.heard_of_s.get(j, 0.0)
            known = self.began_s[board.index] > other.died_s or heard_s > other.died_s
            if other.process > 1 and not known and other.died_s < self.began_s[j] < now - noticed_s:
                self.violate(
                    "noticed", board.index, f"has not said that {j} is another process since {other.died_s:.1f} s"
                )
