"""A cell on a virtual clock. Every figure that comes out of it is modelled.

What goes in: the CPU seconds of one local update, of encoding a round's messages and of taking one
in, measured here and now with the recipe's own workload, algorithm and codec, the sizes of the real
frames, and the rate of the link. Boards with a profile take for an update what it says, and with
messages so many times what it takes here (`played.handling_of`). `predict` plays rounds with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgegossip import codecs, training
from edgegossip.lab.scale import measure, played, predict
from edgegossip.lab.scale.cells import Cell
from edgegossip.lab.scale.devices import DeviceProfile, LinkProfile, devices_of, load_device, load_fleet
from edgegossip.lab.scale.model import frames
from edgegossip.lab.scale.rounds import BoardWork, RoundParts
from edgegossip.layout import Layout
from edgegossip.node.spec import default_members, make_algorithm
from edgegossip.recipe import Recipe, essence
from edgegossip.types import ConfigError, LocalUpdate, Vec

LAN_BPS = 10e9  # a board's own interface where only the shared link counts
LATENCY_S = 0.0005
_PARTS = {"cp_s": "compute_s", "en_s": "encode_s", "tx_s": "transmit_s", "de_s": "decode_s", "wait_s": "wait_s"}


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One real local update of a recipe's workload, and what it took."""

    layout: Layout
    initial: Vec
    local: LocalUpdate
    flops: float  # operations of it; 0 where nobody asks
    compute_s: float = 0.0  # CPU seconds here, where boards are cores of this machine
    spread: float = 0.0  # of those, as BoardWork has it


class Model:
    """Implements campaign.Place."""

    def __init__(self, device: str = "", fleet: str = "") -> None:
        """`device`: every board is one of this profile; `fleet`: boards and link are those of this
        profile. Without either, boards are as fast as one core of this machine. Raises
        ConfigError."""
        self._fleet = load_fleet(fleet) if fleet else None
        self._device = load_device(device) if device else None
        self._updates: dict[str, Update] = {}
        self._rates: dict[str, tuple[float, float]] = {}  # of codecs here, where profiles are compared with them

    def check(self, cell: Cell) -> None:
        training.check(cell.recipe)
        codecs.get(cell.recipe.codec.name, **cell.recipe.codec.params)
        if self._fleet is not None:
            self._fleet.names(cell.devices)
        if not cell.scheme.server and make_algorithm(cell.recipe).asynchronous:
            raise ConfigError(f"{cell.scheme.name} goes by no rounds, which is not modelled; say --on boards")

    def close(self, over: bool) -> None:
        """Nothing is open."""

    def run(self, cell: Cell) -> dict[str, Any]:
        update = self._update(cell.recipe)
        link, interface_bps = self._link(cell)
        if cell.scheme.server:
            parts, row = self._server(cell, update, link, interface_bps)
        else:
            parts, row = self._gossip(cell, update, link, interface_bps)
        row |= {key: cell.epoch_rounds * _mean(parts, name) for key, name in _PARTS.items()}
        row["t_s"] = sum(row[key] for key in _PARTS)
        row["slowest"] = measure.slowest(
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
        found = frames.measure(cell.recipe, update.layout, update.local, update.initial)
        works = self._works(cell, update, found.encode_s, found.decode_s, interface_bps)
        parts = predict.gossip_round(works, found.of_round, link, len(found.rounds))
        sizes = {"payload": found.payload_bytes, "overhead": found.overhead_bytes}
        sizes["link"] = sum(m.size_bytes for m in found.rounds[0])
        return parts, {"round_bytes": sizes, "bits_per_value": found.bits_per_value}

    def _server(
        self, cell: Cell, update: Update, link: LinkProfile, interface_bps: float
    ) -> tuple[Sequence[RoundParts], dict[str, Any]]:
        encode_s, decode_s, body = frames.codec_frames(cell.recipe, update.layout, update.local.delta)
        works = self._works(cell, update, encode_s, decode_s, interface_bps)
        size = frames.wire_bytes(body)
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
        self._rates = self._rates or played.rates_here()
        handling = {profile.name: played.handling_of(profile, self._rates) for profile in profiles}
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
        key = essence(alike)
        if key not in self._updates:
            wants_flops = self._fleet is not None or self._device is not None
            self._updates[key] = measure_update(recipe)
            if wants_flops:  # counted on a float32 twin: what torch counts of integer kernels is nothing
                from edgegossip.lab.scale.cost import counted, of_recipe

                flops = counted(recipe, of_recipe(recipe)[1]) * recipe.training.local_steps
                self._updates[key] = replace(self._updates[key], flops=flops)
            else:
                seconds, spread = played.update_here(alike)
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
