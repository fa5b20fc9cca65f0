"""What a run of a recipe will be like on a fleet, before anything runs: bytes and seconds of a
round, memory, what limits it.

Frame sizes are those of frames that are really encoded (frames.py); operations are counted on the
model (cost.py); rates come from the boards' profiles (devices.py), and seconds from the model of a
round (predict.py). What limits a run is asked of the same model: which of its rates, doubled,
shortens a round most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgegossip import codecs
from edgegossip.engine.server_frames import check_downlink
from edgegossip.lab.scale import frames
from edgegossip.lab.scale.devices import DeviceProfile, FleetProfile, LinkProfile, devices_of
from edgegossip.lab.scale.frames import Sent
from edgegossip.lab.scale.predict import gossip_round, round_seconds, server_round, work_of
from edgegossip.lab.scale.rounds import BoardWork, Message, RoundParts
from edgegossip.layout import Layout
from edgegossip.node.spec import default_members, make_topology
from edgegossip.recipe import Recipe, with_settings
from edgegossip.types import ConfigError

# Codecs that are worth a try instead, of those that lose little; at their packaged parameters.
RIVALS = (
    "fp32",
    "fp16",
    "minmax8",
    "8-bit-qsgd",
    "4-bit-qsgd",
    "8-bit-elastiquant",
    "4-bit-elastiquant",
    "e-elastiquant",
    "co3",
)
# These send whole models, which a coarse codec makes coarse; what travels in their place is made
# for it.
_FOR_COARSE = {"dpsgd": "choco-sgd", "sgp": "quant-sgp"}
_FASTER = 0.98  # a codec that saves less than 2 % is not named
ALL_BOARDS = "all boards"  # as what limits: their processors
_TOGETHER = 2.0  # so many times what the best single one saves, all boards have to save to be named
_SOME = 2**21  # values; of a larger model a rival's size is taken from so many


@dataclass(frozen=True, slots=True)
class Case:
    """One run on one fleet, with everything that the model of a round needs."""

    recipe: Recipe
    fleet: FleetProfile
    boards: tuple[DeviceProfile, ...]
    layout: Layout
    flops: float  # of one round's local training on one board
    messages: tuple[
        tuple[tuple[int, int], ...], ...
    ]  # [round % period]: (sender, receiver); empty: through a coordinator

    @classmethod
    def of(
        cls, recipe: Recipe, fleet: FleetProfile, layout: Layout, step_flops: float, count: int | None = None
    ) -> Case:
        """On the first `count` boards, all without. Raises ConfigError."""
        boards = devices_of(fleet, count)
        if len(boards) < 2:
            raise ConfigError(f"a run has at least 2 boards, and fleet {fleet.name} has {len(boards)} of them here")
        recipe = with_settings(recipe, {"run.nodes": len(boards)})
        if recipe.run.mode == "gossip" and recipe.gossip.algorithm == "ad-psgd":
            raise ConfigError("ad-psgd goes by no rounds, so there is no round to plan; take another gossip.algorithm")
        return cls(recipe, fleet, boards, layout, step_flops * recipe.training.local_steps, _edges(recipe))

    @property
    def server(self) -> bool:
        return self.recipe.run.mode == "server"

    @property
    def neighbours(self) -> int:
        """Messages that the busiest board sends in a round."""
        if self.server:
            return 1
        return max(sum(s == k for s, _ in of_round) for of_round in self.messages for k in range(len(self.boards)))

    def predict(
        self,
        up: Sent,
        down: Sent | None = None,
        link: LinkProfile | None = None,
        faster: Mapping[str, float] | None = None,
    ) -> tuple[RoundParts, ...]:
        """[board]; through a coordinator the last one is the coordinator, on a machine that is like
        the fleet's fastest board and wired to the access point. `faster`: factors on the rates of
        computing of some kinds of boards, by name; "link:NAME" on their interfaces."""
        link, faster = link or self.fleet.link, faster or {}
        works = [self._work(board, up.codec, faster) for board in self.boards]
        if not self.server:
            sends = tuple(tuple(Message(s, r, up.message_bytes) for s, r in edges) for edges in self.messages)
            return gossip_round(works, lambda round: sends[round % len(sends)], link, len(sends))
        down = down or up
        fast = min(works, key=lambda work: work.decode_s)
        size_bytes = 4 * self.layout.size
        strongest = max(self.boards, key=lambda board: board.decode_rate(up.codec))
        coordinator = replace(fast, compute_s=0.0, encode_s=size_bytes / strongest.encode_rate(down.codec))
        works = [
            replace(work, decode_s=size_bytes / board.decode_rate(down.codec))
            for work, board in zip(works, self.boards, strict=True)
        ]
        wired = replace(link, crossings=1)
        return server_round(works, coordinator, down.message_bytes, up.message_bytes, wired)

    def _work(self, board: DeviceProfile, codec: str, faster: Mapping[str, float]) -> BoardWork:
        training = self.recipe.training
        work = work_of(
            board,
            flops=self.flops,
            values=self.layout.size,
            codec=codec,
            precision=training.precision,
            threads=self.recipe.run.threads,
            accelerated=self.fleet.accelerated,
        )
        by = faster.get(board.name, 1.0)
        return BoardWork(
            work.compute_s / by,
            work.encode_s / by,
            work.decode_s / by,
            work.link_bits_per_s * faster.get(f"link:{board.name}", 1.0),
            spread=work.spread,
        )


def _edges(recipe: Recipe) -> tuple[tuple[tuple[int, int], ...], ...]:
    if recipe.run.mode == "server":
        return ()
    topology = make_topology(recipe, default_members(recipe.run.nodes))
    return tuple(
        tuple((k, to) for k in range(recipe.run.nodes) for to in topology.neighbours(k, r).out)
        for r in range(topology.period)
    )


@dataclass(frozen=True, slots=True)
class Limit:
    """What shortens a round most when it is twice as fast."""

    # "shared link", "link of raspberry-pi-4", "raspberry-pi-4" (computing), the same of "all
    # boards", or "latency"
    what: str
    saves: float  # share of the round's seconds


def limit_of(case: Case, up: Sent, down: Sent | None, now_s: float) -> Limit:
    """By asking the model; "latency" when no rate helps. Where kinds of boards are equally slow
    none of them alone shortens a round: then it is all of them."""
    kinds = list(dict.fromkeys(board.name for board in case.boards))
    asked: list[tuple[str, Mapping[str, float], LinkProfile]] = []
    shared = case.fleet.link.shared_bits_per_s
    if shared is not None:
        asked.append(("shared link", {}, replace(case.fleet.link, shared_bits_per_s=2 * shared)))
    for name in kinds:
        asked.append((f"link of {name}", {f"link:{name}": 2.0}, case.fleet.link))
        asked.append((name, {name: 2.0}, case.fleet.link))
    together = [
        ("link of all boards", {f"link:{name}": 2.0 for name in kinds}, case.fleet.link),
        (ALL_BOARDS, dict.fromkeys(kinds, 2.0), case.fleet.link),
    ]

    def most(asked: Sequence[tuple[str, Mapping[str, float], LinkProfile]]) -> Limit:
        saved = [(1 - round_seconds(case.predict(up, down, link, more)) / now_s, what) for what, more, link in asked]
        saves, what = max(saved, key=lambda limit: limit[0])
        return Limit(what, saves)

    best, all_of_them = most(asked), most(together)
    if all_of_them.saves > _TOGETHER * max(best.saves, 0.0):
        best = all_of_them
    return best if best.saves > 0.01 else Limit("latency", 0.0)


@dataclass(frozen=True, slots=True)
class Rival:
    """The same run with another codec."""

    codec: str
    downlink: str | None  # through a coordinator: the codec of what goes down
    bits_per_value: float
    seconds: float  # of a round

    def settings(self, recipe: Recipe) -> tuple[str, ...]:
        """As `--set` takes them."""
        down = () if self.downlink is None else (f"server.downlink={self.downlink}",)
        other = _FOR_COARSE.get(recipe.gossip.algorithm) if recipe.run.mode == "gossip" else None
        return (f"codec.name={self.codec}", *down, *([f"gossip.algorithm={other}"] if other else ()))


def rivals_of(case: Case, names: Sequence[str] = RIVALS) -> tuple[Rival, ...]:
    """The fastest first. Sizes are of a gradient's first tensors where the model is large."""
    layout = _part(case.layout)
    x = frames.gradient(layout)
    found = []
    for name in names:
        small = frames.sent(name, {}, layout, x)
        payload = round(small.payload_bytes * case.layout.size / layout.size)
        whole = replace(small, payload_bytes=payload, message_bytes=payload + small.message_bytes - small.payload_bytes)
        downs = [_plain(case.layout, whole), whole] if case.server else [None]
        for down in downs[: 2 if _goes_down(name) else 1]:
            seconds = round_seconds(case.predict(whole, down))
            found.append(Rival(name, down.codec if down else None, small.bits_per_value, seconds))
    return tuple(sorted(found, key=lambda rival: rival.seconds))


def _goes_down(name: str) -> bool:
    """Whether a coordinator may send differences with it; fp32 has none."""
    try:
        check_downlink(codecs.get(name))
    except ConfigError:
        return False
    return name != "fp32"


def _plain(layout: Layout, like: Sent) -> Sent:
    """The whole model as float32."""
    size = 4 * layout.size
    return replace(like, codec="fp32", payload_bytes=size, message_bytes=size + 200, bits_per_value=32.0)


def _part(layout: Layout) -> Layout:
    """The first tensors, whole, with _SOME values or a little more."""
    if layout.size <= _SOME:
        return layout
    kept, size = [], 0
    for spec in layout.tensors:
        kept.append(spec)
        size += spec.size
        if size >= _SOME:
            break
    return Layout.of(kept)


def plan(recipe: Recipe, fleet: FleetProfile, count: int | None = None) -> dict[str, Any]:
    """The document of `plan --json`: every second and byte of memory in it is modelled, frames are
    really encoded. Imports torch. Raises ConfigError as `run` does."""
    from edgegossip.lab.scale.cost import board_bytes, of_recipe

    layout, cost = of_recipe(recipe)
    case = Case.of(recipe, fleet, layout, cost.flops, count)
    recipe = case.recipe
    x = frames.gradient(layout)
    up = frames.sent(recipe.codec.name, dict(recipe.codec.params), layout, x)
    down = frames.sent(recipe.server.downlink, dict(recipe.server.downlink_params), layout, x) if case.server else None
    parts = case.predict(up, down)
    seconds = round_seconds(parts)
    rivals = rivals_of(case)
    own = (up.codec, down.codec if down else None)
    faster = [r for r in rivals if r.seconds < _FASTER * seconds and (r.codec, r.downlink) != own]
    messages = len(case.boards) if case.server else sum(map(len, case.messages)) / len(case.messages)
    memory = board_bytes(recipe, layout, cost, case.neighbours, up.message_bytes)
    return {
        "modelled": True,
        "recipe": recipe.run.name,
        "fleet": fleet.name,
        "mode": recipe.run.mode,
        "boards": len(case.boards),
        "values": layout.size,
        "codec": up.codec,
        "bits_per_value": up.bits_per_value,
        "message_bytes": up.message_bytes,
        "downlink": down.codec if down else None,
        "down_bytes": down.message_bytes if down else None,
        "round_bytes": round(messages * (up.message_bytes + (down.message_bytes if down else 0))),
        "round_s": seconds,
        "run_s": seconds * recipe.run.rounds,
        "run_bytes": round(messages * (up.message_bytes + (down.message_bytes if down else 0)) * recipe.run.rounds),
        "limit": asdict(limit_of(case, up, down, seconds)),
        "faster_codec": {**asdict(faster[0]), "settings": list(faster[0].settings(recipe))} if faster else None,
        "codecs": [asdict(rival) for rival in rivals],
        "step_s": max(p.compute_s for p in parts[: len(case.boards)]) / recipe.training.local_steps,
        "kinds": _kinds(case, parts, memory),
        "fits": all(memory <= board.memory_bytes for board in case.boards),
    }


def _kinds(case: Case, parts: Sequence[RoundParts], memory_bytes: int) -> list[dict[str, Any]]:
    """One row a kind of board: the mean of its boards, and its memory."""
    rows = []
    for name in dict.fromkeys(board.name for board in case.boards):
        of_kind = [p for p, board in zip(parts, case.boards, strict=False) if board.name == name]
        mean = {f: sum(getattr(p, f) for p in of_kind) / len(of_kind) for f in RoundParts.__slots__}
        board = next(b for b in case.boards if b.name == name)
        rows.append(
            {
                "device": name,
                "boards": len(of_kind),
                **mean,
                "memory_bytes": memory_bytes,
                "has_bytes": board.memory_bytes,
            }
        )
    return rows
