"""Cells on a virtual clock. Every figure that comes out of it is modelled, as `plan` models a run
(`PlannedRun`): real frames of values that are distributed as gradients are, operations that are
counted, and rates of the boards' profiles. What is a scalability run's own is the link: its rate
is that of the wire, so packets' headers are on it, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from typing_extensions import override

from edgegossip.codecs.typical import in_layout
from edgegossip.fleet.launch.preflight import check_parts
from edgegossip.layout import Layout
from edgegossip.node.spec import default_members
from edgegossip.recipe import Recipe
from edgegossip.scale import summary
from edgegossip.scale.cells import Backend, Cell
from edgegossip.scale.devices import BOARD, FleetProfile, LinkProfile, load_fleet
from edgegossip.scale.plan import EncodedMessage, PlannedRun, messages_of
from edgegossip.scale.predict import RoundParts

_PARTS = {"cp_s": "compute_s", "en_s": "encode_s", "tx_s": "transmit_s", "de_s": "decode_s", "wait_s": "wait_s"}
# A message on the way in packets of 1448 bytes: headers of Ethernet, IPv4 and TCP with time stamps,
# and half an acknowledgement.
PACKET_BYTES, HEADER_BYTES, ACK_BYTES = 1448, 66, 66
HANDLING_BYTES = 400  # a message's gRPC and HTTP/2 frames, its receipt, and the packets that are not full


class ModelBackend(Backend):
    """Runs cells on a virtual clock."""

    def __init__(self, device: str = BOARD, fleet: str = "") -> None:
        """`device`: every board is one of this profile, unless `fleet` names one that has boards
        of its own. Raises ConfigError."""
        self._device, self._fleet = device, load_fleet(fleet) if fleet else None
        self._counted: dict[str, tuple[Layout, float]] = {}

    @override
    def check(self, cell: Cell) -> None:
        check_parts(cell.recipe, default_members(cell.devices))
        self._case(cell)

    @override
    def close(self, over: bool) -> None:
        """Nothing is open."""

    @override
    def run(self, cell: Cell) -> dict[str, Any]:
        case = self._case(cell)
        up, down = messages_of(case.recipe, case.layout, in_layout(case.layout, 1))
        each = [up] if down is None else [up, down]
        parts = case.predict(_on_the_wire(up), down and _on_the_wire(down))[: cell.devices]
        row: dict[str, Any] = {
            key: cell.epoch_rounds * sum(float(getattr(p, part)) for p in parts) / len(parts)
            for key, part in _PARTS.items()
        }
        row["t_s"] = sum(row.values())
        row["slowest"] = summary.slowest(
            {
                name: {key: cell.epoch_rounds * float(getattr(p, part)) for key, part in _PARTS.items()}
                for name, p in zip(default_members(cell.devices), parts, strict=True)
            }
        )
        row["round_bytes"] = {
            "payload": case.messages_a_round * sum(m.payload_bytes for m in each),
            "overhead": case.messages_a_round * sum(m.message_bytes - m.payload_bytes for m in each),
            "link": case.messages_a_round * sum(_on_the_wire(m).message_bytes for m in each),
        }
        row |= {"bits_per_value": up.bits_per_value, "accuracy": None, "loss": None}
        row |= {"counted_rounds": 0, "modelled": True}
        row["step_s"] = max(p.compute_s for p in parts) / cell.recipe.training.local_steps
        marks = [_marks(name, p) for name, p in zip(default_members(cell.devices), parts, strict=True)]
        return {"row": row, "curve": [], "marks": marks}

    def _case(self, cell: Cell) -> PlannedRun:
        """Raises ConfigError for what is not modelled."""
        rate_bps, shares = cell.how["rate_bps"], cell.how["link"] == "shared"
        fleet = self._fleet or FleetProfile(self._device, self._device, ((self._device, cell.devices),))
        link = LinkProfile(rate_bps if shares else None, 1, fleet.link.latency_s)
        layout, flops = self._cost(cell.recipe)
        case = PlannedRun.of(cell.recipe, replace(fleet, link=link), layout, flops, cell.devices)
        if shares:
            return case
        own = (replace(board, link_bits_per_s=min(board.link_bits_per_s, rate_bps)) for board in case.boards)
        return replace(case, boards=tuple(own))

    def _cost(self, recipe: Recipe) -> tuple[Layout, float]:
        """Counted once for all cells with the same work for a board."""
        from edgegossip.scale import cost

        key = repr((recipe.model, recipe.training, recipe.data))
        if key not in self._counted:
            layout, step = cost.of_recipe(recipe)
            self._counted[key] = layout, cost.counted(recipe, step)
        return self._counted[key]


def _on_the_wire(message: EncodedMessage) -> EncodedMessage:
    """Return a message with what carries it over a link, and what acknowledges it."""
    packets = -(-message.message_bytes // PACKET_BYTES)
    more = packets * HEADER_BYTES + packets * ACK_BYTES // 2 + HANDLING_BYTES
    return replace(message, message_bytes=message.message_bytes + more)


def _marks(name: str, parts: RoundParts) -> Mapping[str, Any]:
    """A board's round for the Gantt plot, in nanoseconds."""
    seconds = asdict(parts)
    computed = seconds["compute_s"]
    ready = computed + seconds["encode_s"]
    times = {"start": 0.0, "computed": computed, "ready": ready, "go": ready, "done": seconds["round_s"]}
    return {"node": name, **{key: round(1e9 * value) for key, value in times.items()}}
