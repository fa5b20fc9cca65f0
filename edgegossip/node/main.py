"""What `edgegossip node` does: one board, in either mode, on its own or under `run`.

Under `run` ("managed") a board prints its records as JSON lines, gets its peers' addresses as one
JSON line on its standard input, and ends when that input ends, so that no board outlives the
process that started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.choices import did_you_mean
from edgegossip.engine.joining import RemoteMembers
from edgegossip.memory import Spool
from edgegossip.mesh import address as addresses
from edgegossip.mesh.base import MeshLimits, Transport
from edgegossip.node.guard import GuardedWorkload
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec, default_members, make_topology, mesh_limits
from edgegossip.recipe import Recipe
from edgegossip.telemetry.sinks import PipeSink, RecordSink
from edgegossip.telemetry.spans import RoundClock
from edgegossip.training.base import Workload
from edgegossip.types import EXIT_INTERRUPTED, ConfigError, EdgegossipError, NodeId

if TYPE_CHECKING:
    from edgegossip.mesh import GrpcTransport
    from edgegossip.mesh.tls_security import TlsSecurity
    from edgegossip.node.bootstrap import JoinedRun
    from edgegossip.security.identity import Identity

BEAT_S = 1.0
MANAGED_PATIENCE_S = 60.0  # under `run` a coordinator that is away does not come back


class Runtime:
    """Offers what a gossip board runs on: the machine as it is. A subclass may be an emulated
    device, with a clock of its own, and a transport and a workload around the board's."""

    clock: RoundClock | None = None  # of the board's rounds; None: one that starts with the board

    def limits(self, limits: MeshLimits) -> MeshLimits:
        """Return the bounds of the board's transport, which by default has these."""
        return limits

    def transport(self, inner: Transport) -> Transport:
        """Return what the board sends and receives with."""
        return inner

    def workload(self, inner: Workload) -> Workload:
        """Return what the board trains with. Called once, when it is about to begin."""
        return inner

    def round_over(self) -> None:
        """Take note that a round has ended and is about to be reported."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Holds the command line of `edgegossip node`."""

    name: NodeId
    listen: str  # HOST:PORT, gossip mode
    peers: tuple[str, ...]  # NAME=HOST:PORT each, gossip mode
    coordinator: str | None  # HOST:PORT, server mode
    insecure: bool
    identity: Path | None  # folder of `edgegossip fleet add`
    runs_dir: Path
    managed: bool
    restarted_s: float | None  # managed only: this board's first process began so long ago; None: this is the first
    members: tuple[NodeId, ...]  # every board of the run in order; gossip may leave it to `peers`, sorted by name
    run_id: bytes  # managed only; otherwise derived from the recipe
    save_to: Path | None  # managed only; otherwise in the run folder. Checkpoints go into a folder beside it
    resume: Path | None = None  # gossip by hand: the run folder of an earlier process that did not finish the run
    joined: JoinedRun | None = None  # gossip by hand: how it came into a run that was founded
    advertise: str | None = None  # with `joined`: HOST[:PORT] at which others reach it, if not where it listens
    make_runtime: Callable[[], Runtime] = Runtime  # gossip only
    test_average: bool = False  # managed gossip only: at the end test the average model that the parent makes


OnNews: TypeAlias = Callable[[Mapping[str, Any]], None]
# Where a board's records and its final model go.
OpenOutput: TypeAlias = Callable[[NodeSpec], tuple[RecordSink, Path | None]]


def run_node(recipe: Recipe, options: NodeOptions, open_output: OpenOutput) -> None:
    """Be one board until the run is over. `open_output` is called once the board's place in the run
    is known to be right. Raises EdgegossipError."""
    spec, peers = _place(recipe, options)
    sink, save_to = open_output(spec)
    try:
        if recipe.run.mode == "gossip":
            _gossip(spec, peers, sink, save_to, options)
        else:
            _client(spec, sink, save_to, options)
    except EdgegossipError as error:
        sink.event(options.name, "error", str(error), code=error.exit_code)
        raise
    finally:
        sink.close()


def run_managed(recipe: Recipe, options: NodeOptions) -> None:
    """Be one board under `run`: records go to the parent, which is told before an error is
    raised."""
    pipe = parent_pipe(options.restarted_s or 0.0)
    threading.Thread(target=_heartbeat, args=(pipe,), daemon=True, name="heartbeat").start()
    run_node(recipe, options, lambda spec: (pipe, options.save_to))


def _heartbeat(pipe: PipeSink) -> None:
    """Send signs of life: a board that computes for long says nothing else meanwhile; one that is
    stopped does not even say this."""
    with suppress(OSError):  # the parent is gone, and so will we be
        while True:
            pipe.beat()
            time.sleep(BEAT_S)


def _server_members(recipe: Recipe, options: NodeOptions) -> tuple[NodeId, ...]:
    """Return every board of a server run; a board's place among them decides its share of the data.
    Raises ConfigError."""
    members = options.members or default_members(recipe.run.nodes)
    if len(set(members)) != recipe.run.nodes:
        count = f"run.nodes = {recipe.run.nodes}, but {len(set(members))} boards are named"
        raise ConfigError(f"{count}: name every board of the run once with --boards, the same on each")
    if options.name not in members:
        hint = did_you_mean(options.name, members)
        raise ConfigError(
            f"--name {options.name}: not one of {', '.join(members)}{hint} (or name the boards with --boards)"
        )
    return members


def parse_peers(pairs: tuple[str, ...]) -> dict[NodeId, str]:
    """Return a mapping of ("pi-02=10.0.0.2:7700", ...). Raises ConfigError."""
    peers: dict[NodeId, str] = {}
    for pair in pairs:
        name, equals, address = pair.partition("=")
        if not equals or not name or ":" not in address:
            raise ConfigError(f"--peer {pair}: write it as NAME=HOST:PORT, such as --peer pi-02=10.0.0.2:7700")
        if name in peers:
            raise ConfigError(f"--peer {pair}: there are two peers named {name}; names must be unique")
        peers[name] = address
    return peers


def peer_members(options: NodeOptions) -> tuple[NodeId, ...]:
    """Return the boards of a run whose addresses are all given. Raises ConfigError."""
    return tuple(sorted({options.name, *parse_peers(options.peers)}))


def _place(recipe: Recipe, options: NodeOptions) -> tuple[NodeSpec, Mapping[NodeId, str] | None]:
    """Return who we are in the run, and our peers' addresses (None: they will come on standard
    input)."""
    run_id = options.run_id or recipes.run_id(recipe)
    if options.managed:
        return NodeSpec(recipe, options.name, options.members, run_id, options.restarted_s is not None), None
    if recipe.run.mode == "server":
        if options.coordinator is None:
            raise ConfigError(f"{recipe.run.name} is a server recipe: say --coordinator HOST:PORT")
        members = _server_members(recipe, options)
        check_coordinator(options.coordinator, options)
        load_identity(options)
        return NodeSpec(recipe, options.name, members, run_id), {}
    if options.joined is not None:
        manifest = options.joined.manifest
        addresses.listen_address(options.listen, insecure=options.insecure or options.identity is not None)
        was_here = options.joined.was_here(options.name) or options.resume is not None
        return NodeSpec(recipe, options.name, manifest.members, manifest.run_id, restarted=was_here), {}
    peers = parse_peers(options.peers)
    members = peer_members(options)
    if options.name in peers:
        raise ConfigError(f"--peer {options.name}=...: that is this board itself; name the others only")
    if len(members) != recipe.run.nodes:
        count = f"run.nodes = {recipe.run.nodes}, but this board and its {len(peers)} peers make {len(members)}"
        raise ConfigError(f"{count}: name every other board with --peer, or --set run.nodes={max(2, len(members))}")
    spec = NodeSpec(recipe, options.name, members, run_id, restarted=options.resume is not None)
    _check_before_output(spec, peers, options)
    return spec, peers


def _check_before_output(spec: NodeSpec, peers: Mapping[NodeId, str], options: NodeOptions) -> None:
    """Check what would be found wrong later anyway: a mistake must not leave an empty run folder
    behind."""
    make_topology(spec.recipe, spec.members)
    addresses.listen_address(options.listen, insecure=options.insecure or options.identity is not None)
    for peer, address in peers.items():
        addresses.parse(address, f"address of {peer}")
    load_security(options)


def parent_pipe(age_s: float) -> PipeSink:
    """Take standard output for the records; what a user's model prints goes to the log with
    standard error. `age_s`: how long this board's records have been going on."""
    return PipeSink(_taken(sys.stdout.fileno(), sys.stderr.fileno()), time.monotonic() - age_s)


def _taken(standard: int, instead: int) -> int:
    """Return a descriptor of a standard stream for this process alone, which a user's code finds
    replaced by `instead`. A process that it starts may outlive the board; the parent would wait for
    its records."""
    own = os.dup(standard)  # not inherited by programs
    os.register_at_fork(after_in_child=partial(os.close, own))
    os.dup2(instead, standard)
    return own


def _gossip(
    spec: NodeSpec, peers: Mapping[NodeId, str] | None, sink: RecordSink, save_to: Path | None, options: NodeOptions
) -> None:
    """Listen, join, train, leave. A board that is known to come late loads first: once it is there,
    the others wait for it. One whose model or data are a user's own loads before it looks for
    anybody, so that it can say what it must have alike with them."""
    from edgegossip.engine.node import neighbours_of
    from edgegossip.node import gossip_node

    near = neighbours_of(spec.name, spec.members, make_topology(spec.recipe, spec.members))
    compares = training.is_custom(spec.recipe)
    far = [] if options.joined is not None else [m for m in spec.members if m != spec.name and m not in near]
    parent = Parent() if options.managed else None
    security = load_security(options)
    checkpoints = None if save_to is None else save_to.with_suffix("")
    spool = Spool(None if save_to is None else save_to.parent)
    loaded = None
    if spec.restarted:
        sink.event(spec.name, "loading", f"{spec.name} loads its model and data before it takes part again")
        loaded = gossip_node.load(spec, sink, checkpoints, spool)
        options = _refreshed(options, security)
    meters, runtime = NodeMeters(), options.make_runtime()
    addresses_of = parent.addresses if parent is not None else lambda: peers or {}
    avoided = () if compares else far
    transport, begin, remote = _open(spec, addresses_of, avoided, options, sink, meters, security, spool, runtime)
    meters.watch(transport.tasks)
    try:
        sink.event(spec.name, "listening", f"{spec.name} listens on {transport.address}", address=transport.address)
        if options.joined is not None:
            sink.event(spec.name, "entered", options.joined.describe(), run_id=spec.run_id.hex())
        if compares:
            loaded = loaded or gossip_node.load(spec, sink, checkpoints, spool)
            transport.agree(loaded.workload.agreement())
        begin()
        average = Future[Path | None]()

        def hear(news: Mapping[str, Any]) -> None:
            if "average" in news:
                average.set_result(None if news["average"] is None else Path(news["average"]))
            else:
                transport.close_peer(news["lost"], news["why"], disagrees=news.get("disagrees", False))

        def await_average() -> Path | None:
            transport.close()  # the others do not wait for us
            sink.event(spec.name, "trained", f"{spec.name} has trained, and waits for the average of all models")
            return average.result()

        if parent is not None:
            parent.listen(hear)

        def round_over() -> None:
            if far:  # all have compared what they must have alike
                transport.let_go(far)
                far.clear()
            runtime.round_over()

        def load() -> gossip_node.Model:
            model = loaded or gossip_node.load(spec, sink, checkpoints, spool)
            guarded = GuardedWorkload.of(model.workload, spec.recipe.guard, spec.name, meters.readings, sink)
            return replace(model, workload=runtime.workload(guarded))

        node = gossip_node.GossipNode(
            spec,
            runtime.transport(transport),
            sink,
            meters,
            load,
            remote=remote,
            clock=runtime.clock,
            round_over=round_over,
            settle=spool.settle,
        )
        node.run(save_to, await_average if options.test_average else None)
    finally:
        transport.close()


def _refreshed(options: NodeOptions, security: TlsSecurity | None) -> NodeOptions:
    """Return the options with what the members of the run know by now."""
    if options.joined is None:
        return options
    from edgegossip.node import bootstrap

    return replace(options, joined=bootstrap.refresh(options.joined, options.name, security))


def _open(
    spec: NodeSpec,
    addresses_of: Callable[[], Mapping[NodeId, str]],
    avoided: Collection[NodeId],
    options: NodeOptions,
    sink: RecordSink,
    meters: NodeMeters,
    security: TlsSecurity | None,
    spool: Spool,
    runtime: Runtime,
) -> tuple[GrpcTransport, Callable[[], None], RemoteMembers]:
    """Return a transport that listens, what makes it look for its peers, and who else is in the run
    as far as that is known. To those that are `avoided` it opens no stream: that takes 6 kB, and
    pings for as long as it is there."""
    if options.joined is not None:
        from edgegossip.node.members import open_member

        return open_member(
            spec,
            options.joined,
            sink,
            meters,
            security,
            listen=options.listen,
            advertise=options.advertise,
            insecure=options.insecure,
            spool=spool,
        )
    from edgegossip.mesh import GrpcTransport

    transport = GrpcTransport(
        spec.name,
        spec.run_id,
        options.listen,
        limits=runtime.limits(mesh_limits(spec.recipe.network.grace_s)),
        insecure=options.insecure,
        before_disconnect=meters.sample_sockets,
        security=security,
        spool=spool,
    )

    def begin() -> None:
        told = addresses_of()
        transport.expect(told)
        transport.connect({peer: where for peer, where in told.items() if peer not in avoided})

    return transport, begin, RemoteMembers()


def load_identity(options: NodeOptions) -> Identity | None:
    """Load the board's certificate, when it has one. Raises ConfigError when it is another's,
    DataError and UsageError when it cannot be used."""
    if options.identity is None:
        return None
    from edgegossip.security.identity import Identity

    identity = Identity.load(options.identity)
    if (identity.name, identity.role) != (options.name, "board"):
        raise ConfigError(
            f"--identity {options.identity}: this is {identity.name} ({identity.role}), not the board {options.name}: "
            f"say --name {identity.name}, or name the folder of {options.name}"
        )
    return identity


def load_security(options: NodeOptions) -> TlsSecurity | None:
    """Load TLS with it; raises as `load_identity` does."""
    if (identity := load_identity(options)) is None:
        return None
    from edgegossip.mesh.tls_security import TlsSecurity

    return TlsSecurity(identity)


def check_coordinator(text: str, options: NodeOptions) -> None:
    """Raise ConfigError for an address that is none, and for one elsewhere that is not to be
    trusted."""
    where = addresses.parse(text, "--coordinator")
    if where.is_local or options.identity is not None or options.insecure:
        return
    raise ConfigError(
        f"--coordinator {text}: without TLS anybody on that network can read and change what is sent: give this board an "
        "identity (`edgegossip fleet add NAME`, then --identity DIR), or say --insecure on a network you trust"
    )


def _client(spec: NodeSpec, sink: RecordSink, save_to: Path | None, options: NodeOptions) -> None:
    """Be a client of the coordinator, in this one process."""
    from edgegossip.node.server_node import PATIENCE_S, run_client

    if options.managed:
        Parent().listen(lambda _: None)
    assert options.coordinator is not None
    patience_s = MANAGED_PATIENCE_S if options.managed else PATIENCE_S
    checkpoints = None if save_to is None else save_to.with_suffix("")
    run_client(spec, options.coordinator, sink, checkpoints, patience_s, load_identity(options))


class Parent:
    """Listens to the process that started this board under `run`, on standard input: the other
    boards' addresses, then news, of boards that are lost and of the average of all models; at its
    end this process ends, so that no board outlives a run however that dies.

    It reads on a thread of its own from the moment it is made: a board that is still loading ends
    with its parent, too."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._lines: list[bytes] = []  # that nobody has asked for yet
        self._on_news: OnNews | None = None
        with open(os.devnull, "rb") as nothing:  # what asks a question there reads no news, and does not wait
            self._input = _taken(0, nothing.fileno())
        threading.Thread(target=self._read, daemon=True, name="parent").start()

    def addresses(self) -> dict[NodeId, str]:
        """Return the first line, a JSON object of the other boards' addresses. Waits for it."""
        with self._news:
            while not self._lines:
                self._news.wait(BEAT_S)  # a signal that comes just before a wait does not end it
            line = self._lines.pop(0)
        return {str(name): str(address) for name, address in json.loads(line).items()}

    def listen(self, on_news: OnNews) -> None:
        """Give every further line, {"lost": name, "why": reason, "disagrees": whether} or
        {"average": path}, to `on_news`, on either thread."""
        with self._news:
            self._on_news = on_news
            for line in self._lines:
                _notify(on_news, line)
            self._lines.clear()

    def _read(self) -> None:
        while (line := _read_line(self._input)) is not None:
            with self._news:
                if self._on_news is not None:
                    _notify(self._on_news, line)
                else:
                    self._lines.append(line)
                    self._news.notify_all()
        os._exit(EXIT_INTERRUPTED)


def _notify(on_news: OnNews, line: bytes) -> None:
    """Call `on_news`. What goes wrong must not end the thread that watches for the parent's end: a
    peer that is no neighbour of ours, a transport that is closed, a loop that is too busy to answer
    in time."""
    with suppress(EdgegossipError, TimeoutError, RuntimeError):
        on_news(json.loads(line))


def _read_line(fd: int) -> bytes | None:
    """Read one line; None at its end. Not through a file: a thread that holds its lock when the
    interpreter ends aborts the process."""
    line = bytearray()
    while byte := os.read(fd, 1):
        if byte == b"\n":
            return bytes(line)
        line += byte
    return None
