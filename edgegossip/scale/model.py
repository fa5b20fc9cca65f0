"""Cells on a virtual clock. Every figure that comes out of it is modelled.

What goes in: the CPU seconds of one local update, measured here and now with the recipe's own
workload; its own algorithm and codec on virtual nodes of this process, with one real update each
round, whose frames are built and parsed as on the wire; and the rate of the link. So sizes are
real, and encoding and decoding are timed by the CPU seconds of the calls that do them, all else
that an algorithm does with a message included. Boards with a profile take for an update what it
says, and with messages so many times what it takes here (`emulated.handling_of`). `predict`
simulates rounds with it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from typing_extensions import override

from edgegossip import codecs, training
from edgegossip import frame as wire
from edgegossip import recipe as recipes
from edgegossip.agreement import Agreement
from edgegossip.codecs.base import Ctx
from edgegossip.gossip.base import GossipAlgorithm, Send
from edgegossip.gossip.base import Message as Received
from edgegossip.layout import Layout
from edgegossip.node.spec import NodeSpec, default_members, make_algorithm, make_topology, make_view
from edgegossip.recipe import Recipe, canonical_toml
from edgegossip.scale import emulated, predict, summary
from edgegossip.scale.cells import Backend, Cell
from edgegossip.scale.devices import DeviceProfile, LinkProfile, devices_of, load_device, load_fleet
from edgegossip.scale.predict import BoardWork, PredictedMessage, RoundParts
from edgegossip.studies.measure import ModelRecorder
from edgegossip.studies.virtual import VirtualFleet
from edgegossip.types import ConfigError, LocalUpdate, Metrics, Round, Vec

LAN_BPS = 10e9  # a board's own interface where only the shared link counts
LATENCY_S = 0.0005
_PARTS = {"cp_s": "compute_s", "en_s": "encode_s", "tx_s": "transmit_s", "de_s": "decode_s", "wait_s": "wait_s"}
FIRST = 1  # round that is looked at: before it caches are cold and error memories empty
_ROUNDS = 2  # and so many, or as many as it takes a graph to come round
# A message on the way in packets of 1448 bytes: headers of Ethernet, IPv4 and TCP with time stamps,
# and half an acknowledgement.
PACKET_BYTES, HEADER_BYTES, ACK_BYTES = 1448, 66, 66
HANDLING_BYTES = 400  # a message's gRPC and HTTP/2 frames, its receipt, and the packets that are not full


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Holds one real local update of a recipe's workload, and what it took."""

    layout: Layout
    initial: Vec
    local: LocalUpdate
    flops: float  # operations of it; 0 where nobody asks
    compute_s: float = 0.0  # CPU seconds here, where boards are cores of this machine
    spread: float = 0.0  # of those, as BoardWork has it


class ModelBackend(Backend):
    """Runs cells on a virtual clock."""

    def __init__(self, device: str = "", fleet: str = "") -> None:
        """`device`: every board is one of this profile; `fleet`: boards and link are those of this
        profile. Without either, boards are as fast as one core of this machine. Raises
        ConfigError."""
        self._fleet = load_fleet(fleet) if fleet else None
        self._device = load_device(device) if device else None
        self._updates: dict[str, Update] = {}
        self._rates: dict[str, tuple[float, float]] = {}  # of codecs here, where profiles are compared with them

    @override
    def check(self, cell: Cell) -> None:
        training.check(cell.recipe)
        codecs.get(cell.recipe.codec.name, **cell.recipe.codec.params)
        if self._fleet is not None:
            self._fleet.names(cell.devices)
        if not cell.scheme.server and make_algorithm(cell.recipe).listens:
            raise ConfigError(f"{cell.scheme.name} exchanges while it computes, which is not modelled; say --on boards")

    @override
    def close(self, over: bool) -> None:
        """Nothing is open."""

    @override
    def run(self, cell: Cell) -> dict[str, Any]:
        update = self._update(cell.recipe)
        link, interface_bps = self._link(cell)
        if cell.scheme.server:
            parts, row = self._server(cell, update, link, interface_bps)
        else:
            parts, row = self._gossip(cell, update, link, interface_bps)
        row |= {key: cell.epoch_rounds * _mean(parts, name) for key, name in _PARTS.items()}
        row["t_s"] = sum(row[key] for key in _PARTS)
        row["slowest"] = summary.slowest(
            {
                name: {key: cell.epoch_rounds * float(getattr(p, part)) for key, part in _PARTS.items()}
                for name, p in zip(default_members(cell.devices), parts, strict=True)
            }
        )
        row |= {"accuracy": None, "loss": update.local.loss, "counted_rounds": 0, "modelled": True}
        if update.flops:  # by profiles
            row["step_s"] = max(p.compute_s for p in parts) / cell.recipe.training.local_steps
        marks = [_marks(name, p) for name, p in zip(default_members(cell.devices), parts, strict=False)]
        return {"row": row, "curve": [], "marks": marks, "links": {}}

    def _gossip(
        self, cell: Cell, update: Update, link: LinkProfile, interface_bps: float
    ) -> tuple[Sequence[RoundParts], dict[str, Any]]:
        found = measure_frames(cell.recipe, update.layout, update.local, update.initial)
        works = self._works(cell, update, found.encode_s, found.decode_s, interface_bps)
        parts = predict.gossip_round(works, found.of_round, link, len(found.rounds))
        sizes = {"payload": found.payload_bytes, "overhead": found.overhead_bytes}
        sizes["link"] = sum(m.size_bytes for m in found.rounds[0])
        return parts, {"round_bytes": sizes, "bits_per_value": found.bits_per_value}

    def _server(
        self, cell: Cell, update: Update, link: LinkProfile, interface_bps: float
    ) -> tuple[Sequence[RoundParts], dict[str, Any]]:
        encode_s, decode_s, body = codec_frames(cell.recipe, update.layout, update.local.delta)
        works = self._works(cell, update, encode_s, decode_s, interface_bps)
        size = wire_bytes(body)
        coordinator = BoardWork(0.0, encode_s, decode_s, LAN_BPS)
        *boards, _ = predict.server_round(works, coordinator, size, size, link)
        sizes = {"payload": 2.0 * body * cell.devices, "overhead": 0.0, "link": 2.0 * size * cell.devices}
        return boards, {"round_bytes": sizes, "bits_per_value": 8 * body / update.layout.size}

    def _works(
        self, cell: Cell, update: Update, encode_s: float, decode_s: float, interface_bps: float
    ) -> list[BoardWork]:
        """Of each board, in this machine's seconds or in those of its profile."""
        if self._fleet is None and self._device is None:
            own = (update.compute_s, encode_s, decode_s)
            compute_s, encode_s, decode_s = (cell.how.get("slower", 1.0) * seconds for seconds in own)
            work = BoardWork(compute_s, encode_s, decode_s, interface_bps, spread=update.spread)
            return [work] * cell.devices
        profiles: Sequence[DeviceProfile]
        profiles = [self._device] * cell.devices if self._device else devices_of(self._fleet, cell.devices)  # type: ignore[arg-type]
        self._rates = self._rates or emulated.rates_here()
        handling = {profile.name: emulated.handling_of(profile, self._rates) for profile in profiles}
        return [
            replace(
                predict.work_of(
                    profile,
                    flops=update.flops,
                    values=update.layout.size,
                    codec=cell.recipe.codec.name,
                    precision=cell.recipe.training.precision,
                    threads=cell.recipe.run.threads,
                    accelerated=self._fleet is not None and self._fleet.accelerated,
                ),
                encode_s=encode_s * handling[profile.name],
                decode_s=decode_s * handling[profile.name],
                link_bits_per_s=min(profile.link_bits_per_s, interface_bps),
            )
            for profile in profiles
        ]

    def _link(self, cell: Cell) -> tuple[LinkProfile, float]:
        """What all share, and a board's own interface."""
        rate_bps = cell.how["rate_bps"]
        latency_s = LATENCY_S if self._fleet is None else self._fleet.link.latency_s
        if cell.how["link"] == "shared":
            return LinkProfile(rate_bps, 1, latency_s), LAN_BPS
        return LinkProfile(None, 1, latency_s), rate_bps

    def _update(self, recipe: Recipe) -> Update:
        """Measured once for all cells with the same work for a board."""
        plain = Recipe()
        alike = replace(
            recipe, run=replace(recipe.run, nodes=2, rounds=1), codec=plain.codec, gossip=plain.gossip,
            server=plain.server, evaluation=plain.evaluation,
        )  # fmt: skip
        key = canonical_toml(alike)
        if key not in self._updates:
            wants_flops = self._fleet is not None or self._device is not None
            self._updates[key] = measure_update(recipe)
            if wants_flops:  # counted on a float32 twin: what torch counts of integer kernels is nothing
                from edgegossip.scale.cost import counted, of_recipe

                flops = counted(recipe, of_recipe(recipe)[1]) * recipe.training.local_steps
                self._updates[key] = replace(self._updates[key], flops=flops)
            else:
                seconds, spread = emulated.update_here(alike)
                self._updates[key] = replace(self._updates[key], compute_s=seconds, spread=spread)
        return self._updates[key]


def measure_update(recipe: Recipe) -> Update:
    """Train board 0 of the recipe for a round. Imports torch."""
    from edgegossip.training.workload import TorchWorkload

    workload = TorchWorkload.build(recipe, 0)
    x = workload.initial(recipe.run.seed)
    return Update(workload.layout, x, workload.local_update(x, 0), 0.0)


def _mean(parts: Sequence[RoundParts], name: str) -> float:
    return sum(float(getattr(p, name)) for p in parts) / len(parts)


def _marks(name: str, parts: RoundParts) -> Mapping[str, Any]:
    """A board's round for the Gantt plot, in nanoseconds."""
    seconds = asdict(parts)
    computed = seconds["compute_s"]
    ready = computed + seconds["encode_s"]
    times = {"start": 0.0, "computed": computed, "ready": ready, "go": ready, "done": seconds["round_s"]}
    return {"node": name, **{key: round(1e9 * value) for key, value in times.items()}}


@dataclass(frozen=True, slots=True)
class Frames:
    """Holds messages of one round after another, and what making and taking one costs on this
    machine."""

    rounds: tuple[tuple[PredictedMessage, ...], ...]  # sizes are bytes of packets
    encode_s: float  # CPU seconds a board and round
    decode_s: float  # CPU seconds a message
    payload_bytes: float  # of all boards, a round
    overhead_bytes: float
    bits_per_value: float

    def of_round(self, round: int) -> Sequence[PredictedMessage]:
        """Return the messages of a round, which come again after as many as were measured."""
        return self.rounds[round % len(self.rounds)]


def wire_bytes(message_bytes: int) -> int:
    """Return the bytes on the link of a message of so many bytes, packets' headers and what
    acknowledges it included."""
    packets = -(-message_bytes // PACKET_BYTES)
    return message_bytes + packets * HEADER_BYTES + packets * ACK_BYTES // 2 + HANDLING_BYTES


def measure_frames(recipe: Recipe, layout: Layout, local: LocalUpdate, initial: Vec) -> Frames:
    """Play some rounds of a gossip recipe with this update, the same for every node. Raises
    ConfigError for a recipe that cannot run."""
    members, run_id = default_members(recipe.run.nodes), recipes.run_id(recipe)
    views = [make_view(NodeSpec(recipe, name, members, run_id), layout) for name in members]
    timed = _Timed(make_algorithm(recipe))
    rounds = FIRST + max(_ROUNDS, make_topology(recipe, members).period)
    fleet = VirtualFleet(timed, views, [_Given(layout, local, initial) for _ in members], rounds)
    fleet.play(initial, ModelRecorder(len(members), frozenset(), frozenset(), _no_evaluation, lambda: 0))
    index = {name: k for k, name in enumerate(members)}
    counted = [timed.sent[round] for round in range(FIRST, rounds)]
    messages = [
        tuple(PredictedMessage(index[sender], index[to], wire_bytes(size)) for sender, to, size, _ in of_round)
        for of_round in counted
    ]
    payload = sum(body for of_round in counted for *_, body in of_round)
    whole = sum(size for of_round in counted for _, _, size, _ in of_round)
    number = sum(len(of_round) for of_round in counted)
    return Frames(
        rounds=tuple(messages),
        encode_s=timed.seconds["step"] / (len(members) * len(counted)),
        decode_s=timed.seconds["receive"] / max(number, 1),
        payload_bytes=payload / len(counted),
        overhead_bytes=(whole - payload) / len(counted),
        bits_per_value=8 * payload / (max(number, 1) * layout.size),
    )


def _no_evaluation(x: Vec) -> Metrics:
    raise AssertionError("nothing is evaluated here")


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """A workload whose update is known."""

    layout: Layout
    local: LocalUpdate
    first: Vec

    def initial(self, seed: int) -> Vec:
        return self.first

    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        return self.local

    def take_share(self, share: float, *, spare_memory: bool = False) -> float:
        return 1.0  # nothing is computed that could be less

    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics:
        return _no_evaluation(x)

    def snapshot(self) -> Mapping[str, Any]:
        return {}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def agreement(self) -> Agreement:
        return Agreement({})

    def over(self, x: Vec | None) -> None: ...

    def abandon(self) -> None: ...

    def state(self, x: Vec | None) -> Mapping[str, Any]:
        return {} if x is None else self.layout.views(x)


@dataclass(slots=True)
class _Timed:
    """An algorithm, with a stop watch and a list of what it sends in a step."""

    inner: GossipAlgorithm[Any]
    seconds: dict[str, float] = field(default_factory=lambda: {"step": 0.0, "receive": 0.0})
    sent: dict[Round, list[tuple[str, str, int, int]]] = field(default_factory=lambda: defaultdict(list))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, s: Any, local: LocalUpdate) -> Any:
        round = self.inner.round(s)
        began_s = time.thread_time()
        after, actions = self.inner.step(s, local)
        self._charge("step", round, began_s)
        for action in actions:
            if isinstance(action, Send):
                size = sum(len(part) for part in wire.build(action.frame))
                self.sent[round].append((s.view.node, action.to, size, len(action.frame.body)))
        return after, actions

    def receive(self, s: Any, m: Received) -> Any:
        began_s = time.thread_time()
        outcome = self.inner.receive(s, m)
        if len(m.frame.body):
            self._charge("receive", m.frame.round, began_s)
        return outcome

    def _charge(self, what: str, round: Round, began_s: float) -> None:
        if round >= FIRST:
            self.seconds[what] += time.thread_time() - began_s


def codec_frames(recipe: Recipe, layout: Layout, delta: Vec) -> tuple[float, float, int]:
    """Return (encode seconds, decode seconds, body bytes) of one update in the recipe's codec,
    for a run through a coordinator. The fastest of three; CPU seconds."""
    codec: Any = codecs.get(recipe.codec.name, **recipe.codec.params)
    state, encode, decode, body = codec.init(layout), [], [], b""
    for k in range(3):
        began_s = time.thread_time()
        body, state = codec.encode(np.array(delta), state, Ctx(key=k + 1, round=k, loss=None, lr=1.0))
        middle_s = time.thread_time()
        codec.decode(body, layout)
        encode.append(middle_s - began_s)
        decode.append(time.thread_time() - middle_s)
    return min(encode), min(decode), len(body)
