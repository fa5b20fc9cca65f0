"""Says what a run of a recipe will be like on a fleet, before anything runs: bytes and seconds
of a round, memory, what limits it.

Frame sizes are those of frames that are really encoded, of a vector distributed as gradients are
(generalised normal, see bench/inputs.py), in the model's own tensors. What an algorithm really
sends differs from round to round: an entropy coder's frames of a sharper distribution are
smaller, and of an algorithm that sends differences of models they change as training goes on.

Operations are counted on the model (cost.py); rates come from the boards' profiles (devices.py),
and seconds from the model of a round (predict.py). To find what limits a run the same model says
which of its rates, doubled, shortens a round most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgegossip import codecs, frame, gossip
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.codecs.typical import in_layout
from edgegossip.engine.server_frames import check_downlink
from edgegossip.fleet.launch.preflight import check_parts, check_sizes
from edgegossip.gossip.averaging import lost_of_normal
from edgegossip.gossip.base import Says
from edgegossip.gossip.fragments import cut
from edgegossip.layout import Layout
from edgegossip.mesh.base import MeshLimits
from edgegossip.node.spec import default_members, make_algorithm, make_topology, message_memory
from edgegossip.recipe import Recipe, with_settings
from edgegossip.report.table import in_columns
from edgegossip.report.units import bytes_text, seconds_text
from edgegossip.scale.devices import SHORT_STEP, SHORT_STEP_S, DeviceProfile, FleetProfile, LinkProfile, devices_of
from edgegossip.scale.predict import (
    BoardWork,
    PredictedMessage,
    RoundParts,
    gossip_round,
    round_seconds,
    server_round,
    work_of,
)
from edgegossip.telemetry.cures import ROUNDING
from edgegossip.types import ConfigError, RunError, Vec

# Codecs that are worth a try instead, of those that lose little; at their packaged parameters.
ALTERNATIVES = (
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
_FASTER = 0.98  # a codec that saves less than 2 % is not named
ALL_BOARDS = "all boards"  # as what limits: their processors
_TOGETHER = 2.0  # so many times what the best single one saves, all boards have to save to be named
_SOME = 2**21  # values; of a larger model an alternative's size is taken from so many
LOSS = 1.0  # of level rules that go by it
ENVELOPE_BYTES = 64  # around a frame in gRPC and HTTP/2, and its share of acknowledgements; docs/mesh.md
# What links carry beside messages, over all boards; counted (lab/decisions/membership.md):
BESIDE_MESSAGE_BYTES = 500  # a message between boards: headers, acknowledgements
BESIDE_BOARD_BYTES_PER_S = 140  # checks of neighbours; none while messages come more often than they
START_LINK_BYTES = 12_700  # before the first message, to open what one board sends to another on
BESIDE_REPLY_BYTES = 7000  # a board and round through a coordinator, up and down: calls, headers
BEAT_BYTES_PER_S = 400  # a board's signs of life, and their answers
START_BOARD_BYTES = 40_000  # of one through a coordinator
_BESIDE = 0.1  # of the messages' bytes: less is not said
_AUX: dict[int, float] = {frame.Aux.LOSS: LOSS, frame.Aux.EXAMPLES: 1.0, frame.Aux.SESSION: 1.0, frame.Aux.EPOCH: 1.0}
_COLUMNS = (
    ("compute", "compute_s"),
    ("encode", "encode_s"),
    ("transmit", "transmit_s"),
    ("decode", "decode_s"),
    ("wait", "wait_s"),
    ("round", "round_s"),
)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Is one run on one fleet, with everything that the model of a round needs."""

    recipe: Recipe
    fleet: FleetProfile
    boards: tuple[DeviceProfile, ...]
    layout: Layout
    flops: float  # of one round's local training on one board
    # [round % period]: (sender, receiver); empty: through a coordinator
    messages: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(
        cls, recipe: Recipe, fleet: FleetProfile, layout: Layout, step_flops: float, count: int | None = None
    ) -> PlannedRun:
        """Make one on the first `count` boards, all without. Raises ConfigError."""
        boards = devices_of(fleet, count)
        if len(boards) < 2:
            raise ConfigError(f"a run has at least 2 boards, and fleet {fleet.name} has {len(boards)} of them here")
        recipe = with_settings(recipe, {"run.nodes": len(boards)})
        if recipe.run.mode == "gossip" and make_algorithm(recipe).asynchronous:
            name = recipe.gossip.algorithm
            raise ConfigError(f"{name} goes by no rounds, so there is no round to plan; take another gossip.algorithm")
        return cls(recipe, fleet, boards, layout, step_flops * recipe.training.local_steps, _edges(recipe))

    @property
    def server(self) -> bool:
        """Tell whether the run goes through a coordinator."""
        return self.recipe.run.mode == "server"

    @property
    def neighbours(self) -> int:
        """Return how many messages the busiest board sends in a round."""
        if self.server:
            return 1
        return max(sum(s == k for s, _ in of_round) for of_round in self.messages for k in range(len(self.boards)))

    @property
    def messages_a_round(self) -> float:
        """Return how many updates all boards send in a round, in the mean."""
        return len(self.boards) if self.server else sum(map(len, self.messages)) / len(self.messages)

    def beside_bytes(self, round_s: float) -> int:
        """Return what links carry in a round of so many seconds beside its messages."""
        boards = len(self.boards)
        if self.server:
            return round(boards * (BESIDE_REPLY_BYTES + BEAT_BYTES_PER_S * round_s))
        checks = BESIDE_BOARD_BYTES_PER_S * round_s if round_s > MeshLimits().keepalive_s else 0.0
        return round(self.messages_a_round * BESIDE_MESSAGE_BYTES + boards * checks)

    @property
    def start_bytes(self) -> int:
        """Return what links carry before the first message, with identities."""
        pairs = {pair for of_round in self.messages for pair in of_round}
        return len(self.boards) * START_BOARD_BYTES if self.server else len(pairs) * START_LINK_BYTES

    def predict(
        self,
        up: EncodedMessage,
        down: EncodedMessage | None = None,
        link: LinkProfile | None = None,
        faster: Mapping[str, float] | None = None,
    ) -> tuple[RoundParts, ...]:
        """Return the parts of a round by board; through a coordinator the last one is the
        coordinator's.

        That one is on a machine that is like the fleet's fastest board and wired to the access
        point. `faster`: factors on the rates of computing of some kinds of boards, by name;
        "link:NAME" on their interfaces."""
        link, faster = link or self.fleet.link, faster or {}
        works = [self._work(board, up.codec, faster) for board in self.boards]
        if not self.server:
            sends = tuple(tuple(PredictedMessage(s, r, up.message_bytes) for s, r in edges) for edges in self.messages)
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
            values=self.layout.size // self.recipe.outer.fragments,
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
    """Says what shortens a round most when it is twice as fast."""

    # "shared link", "link of raspberry-pi-4", "raspberry-pi-4" (computing), the same of "all
    # boards", or "latency"
    what: str
    saves: float  # share of the round's seconds


def limit_of(case: PlannedRun, up: EncodedMessage, down: EncodedMessage | None, now_s: float) -> Limit:
    """Find what limits a run, by the model; "latency" when no rate helps. Where kinds of boards
    are equally slow none of them alone shortens a round: then it is all of them."""
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
class Alternative:
    """Is the same run with another codec."""

    codec: str
    downlink: str | None  # through a coordinator: the codec of what goes down
    bits_per_value: float
    seconds: float  # of a round

    def settings(self, recipe: Recipe) -> tuple[str, ...]:
        """Return its settings as `--set` takes them. A codec that loses something would make whole
        models coarse: with it goes the algorithm that sends differences in their place."""
        down = () if self.downlink is None else (f"server.downlink={self.downlink}",)
        other = ""
        if recipe.run.mode == "gossip" and lost_of_normal(codecs.get(self.codec)) > ROUNDING:
            algorithm = gossip.get(recipe.gossip.algorithm, **recipe.gossip.params)
            other = algorithm.traits.in_differences if algorithm.says is Says.MODELS else ""
        return (f"codec.name={self.codec}", *down, *([f"gossip.algorithm={other}"] if other else ()))


def alternatives_to(case: PlannedRun) -> tuple[Alternative, ...]:
    """Return what a case could send instead, the fastest first. Sizes are of a gradient's first
    tensors where the model is large."""
    layout = _part(case.layout)
    x = in_layout(layout, 1)
    found = []
    for name in ALTERNATIVES:
        small = encode_message(name, {}, layout, x)
        payload = round(small.payload_bytes * case.layout.size / layout.size / case.recipe.outer.fragments)
        whole = replace(small, payload_bytes=payload, message_bytes=payload + small.message_bytes - small.payload_bytes)
        downs = [_plain(case.layout, whole), whole] if case.server else [None]
        for down in downs[: 2 if _goes_down(name) else 1]:
            seconds = round_seconds(case.predict(whole, down))
            found.append(Alternative(name, down.codec if down else None, small.bits_per_value, seconds))
    return tuple(sorted(found, key=lambda other: other.seconds))


def _goes_down(name: str) -> bool:
    """Whether a coordinator may send differences with it; fp32 has none."""
    try:
        check_downlink(codecs.get(name))
    except ConfigError:
        return False
    return name != "fp32"


def _plain(layout: Layout, like: EncodedMessage) -> EncodedMessage:
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
    """Return the document of `plan --json`. Every second and byte of memory in it is modelled,
    frames are really encoded. A `script` runs up to its join, as the first of the recipe's boards:
    then memory up to there is measured, and what it computes is not known (None), nor part of any
    sum. Imports torch. Raises ConfigError as `run` does, RunError when the script does not join."""
    from edgegossip.scale.cost import StepCost, board_bytes, of_recipe, script_bytes

    script = Path(recipe.run.script).name
    if script:
        (layout, joined_bytes, notices), cost = _joined(recipe), StepCost(0.0, 0)
    else:
        (layout, cost), notices = of_recipe(recipe), ()
    case = PlannedRun.of(recipe, fleet, layout, cost.flops, count)
    own_boards, recipe = recipe.run.nodes, case.recipe
    check_parts(recipe, default_members(recipe.run.nodes))
    check_sizes(recipe, layout)
    x = in_layout(layout, 1)
    up, down = messages_of(recipe, layout, x)
    parts = case.predict(up, down)
    seconds = round_seconds(parts)
    alternatives = alternatives_to(case)
    own = (up.codec, down.codec if down else None)
    faster = [r for r in alternatives if r.seconds < _FASTER * seconds and (r.codec, r.downlink) != own]
    messages = case.messages_a_round
    if script:
        memory = script_bytes(recipe, layout, joined_bytes, case.neighbours, up.message_bytes)
    else:
        memory = board_bytes(recipe, layout, cost, case.neighbours, up.message_bytes)
    return {
        "modelled": True,
        "recipe": recipe.run.name,
        "script": script or None,
        "fleet": fleet.name,
        "mode": recipe.run.mode,
        "boards": len(case.boards),
        "recipe_boards": own_boards,
        "values": layout.size,
        "fragments": recipe.outer.fragments,
        "overlap": recipe.outer.overlap,
        "codec": up.codec,
        "bits_per_value": up.bits_per_value,
        "message_bytes": up.message_bytes,
        "downlink": down.codec if down else None,
        "down_bytes": down.message_bytes if down else None,
        "round_bytes": round(messages * (up.message_bytes + (down.message_bytes if down else 0))),
        "round_s": seconds,
        "run_s": seconds * recipe.run.rounds,
        "beside_bytes": case.beside_bytes(seconds),
        "start_bytes": case.start_bytes,
        "run_bytes": round(messages * (up.message_bytes + (down.message_bytes if down else 0)) * recipe.run.rounds),
        "limit": asdict(limit_of(case, up, down, seconds)),
        "faster_codec": {**asdict(faster[0]), "settings": list(faster[0].settings(recipe))} if faster else None,
        "codecs": [asdict(other) for other in alternatives],
        "step_s": None if script else max(p.compute_s for p in parts[: len(case.boards)]) / recipe.training.local_steps,
        "kinds": _kinds(case, parts, memory),
        "most_message_bytes": None if case.server else message_memory(recipe, layout),
        "fits": all(memory <= board.memory_bytes for board in case.boards),
        "notices": list(notices),
    }


def _joined(recipe: Recipe) -> tuple[Layout, int, tuple[str, ...]]:
    """Return the layout of what joins when the script runs as the first board, the bytes that this
    took, and what a run would say of it. Raises RunError when it does not come there."""
    from edgegossip.fleet.launch.probe import probe

    members = default_members(recipe.run.nodes)
    (joined,) = probe(recipe, members[:1], members).values()
    if joined.layout is None:
        raise RunError(f"there is nothing to plan: on {members[0]} {joined.problem}")
    return joined.layout, joined.peak_rss_bytes, joined.notices


def _kinds(case: PlannedRun, parts: Sequence[RoundParts], memory_bytes: int) -> list[dict[str, Any]]:
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
                **({"compute_s": None} if case.recipe.run.script else {}),
                "memory_bytes": memory_bytes,
                "has_bytes": board.memory_bytes,
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """Says what one message of a codec takes."""

    codec: str
    payload_bytes: int
    message_bytes: int  # with the frame's head and what carries it
    bits_per_value: float


def encode_message(name: str, params: dict[str, Any], layout: Layout, x: Vec) -> EncodedMessage:
    """Encode x, float32[n], as a message in this codec. Raises ConfigError for an unknown codec
    or parameter."""
    codec: Codec[Any] = codecs.get(name, **params)
    body, _ = codec.encode(x, codec.init(layout), Ctx(key=1, round=0, loss=LOSS, lr=0.1))
    built = frame.build(
        frame.Frame(
            kind=frame.Kind.GRADIENT,
            codec_id=codec.wire_id,
            codec_params=codec.wire_params(),
            body=body,
            round=0,
            run_id=bytes(frame.RUN_ID_BYTES),
            layout_hash=layout.hash,
            key=1,
            sequence=1,
            aux=_AUX,
        )
    )
    whole = sum(len(piece) for piece in built) + ENVELOPE_BYTES
    return EncodedMessage(name, len(body), whole, 8 * len(body) / max(1, layout.size))


def messages_of(recipe: Recipe, layout: Layout, x: Vec) -> tuple[EncodedMessage, EncodedMessage | None]:
    """Return an update of a run, and what a coordinator sends down, if there is one. Raises
    ConfigError."""
    up, server = _fragment_message(recipe, layout, x), recipe.server
    if recipe.run.mode == "gossip":
        return up, None
    return up, encode_message(server.downlink, dict(server.downlink_params), layout, x)


def _fragment_message(recipe: Recipe, layout: Layout, x: Vec) -> EncodedMessage:
    """What a round sends: the model, or in the mean one of its fragments."""
    codec, params, count = recipe.codec.name, dict(recipe.codec.params), recipe.outer.fragments
    if count == 1:
        return encode_message(codec, params, layout, x)
    found = [encode_message(codec, params, f.layout, x[f.span]) for f in cut(layout, count)]

    payload, message = sum(one.payload_bytes for one in found), sum(one.message_bytes for one in found)
    return EncodedMessage(
        codec,
        round(payload / count),
        round(message / count),
        8 * payload / layout.size,
    )


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return the document of `plan --json` as a page for people."""
    title, *lines = facts(plan)
    return "\n".join([title, "", *lines, "", *in_columns(kinds_table(plan)), "", *advice(plan)])


def facts(plan: Mapping[str, Any]) -> list[str]:
    """Return what is planned, and the bytes and seconds of it, a line each."""
    way = "peer to peer" if plan["mode"] == "gossip" else "through a coordinator"
    part = f"1/{plan['fragments']} of " if plan["fragments"] > 1 else ""
    ran = f"{plan['script']} up to its join, and nothing else," if plan["script"] else "nothing"
    return [
        f"{plan['recipe']} on fleet {plan['fleet']}: {plan['boards']} boards, {way}. Modelled: {ran} has run.",
        *_own_boards(plan),
        f"a message   {bytes_text(plan['message_bytes'])}: {part}{plan['values']} values in {plan['codec']}, "
        f"{plan['bits_per_value']:.2f} bits each (encoded here)",
        *_down(plan),
        f"a round     {seconds_text(plan['round_s'])}{_beside(plan)}, {bytes_text(plan['round_bytes'])} over all links",
        f"the run     {seconds_text(plan['run_s'])}{_beside(plan)}, {bytes_text(plan['run_bytes'])}",
        *_small(plan),
    ]


def _beside(plan: Mapping[str, Any]) -> str:
    return f" and what {plan['script']} computes" if plan["script"] else ""


def _small(plan: Mapping[str, Any]) -> list[str]:
    beside = plan["beside_bytes"]
    if beside < _BESIDE * plan["round_bytes"]:
        return []
    rounds = plan["run_bytes"] / plan["round_bytes"]
    polls = "calls and polls" if plan["mode"] == "server" else "checks of neighbours"
    return [
        f"small messages: the links carry more than this: {polls}, acknowledgements, headers and TLS, "
        f"about {bytes_text(beside)} a round, {bytes_text(rounds * beside)} in the run, and "
        f"{bytes_text(plan['start_bytes'])} before the first one"
    ]


def advice(plan: Mapping[str, Any]) -> list[str]:
    """Return what limits the run and what to do about it, a line each."""
    most = plan["most_message_bytes"]
    return [
        _limit(plan),
        *_overlap(plan),
        *_memory(plan["kinds"]),
        *([f"messages take at most {bytes_text(most)} of memory, whatever boards send"] if most else []),
        *_short(plan["step_s"]),
        _faster(plan),
        *_script(plan),
        *(f"!! {notice}" for notice in plan["notices"]),
    ]


def _own_boards(plan: Mapping[str, Any]) -> list[str]:
    """A plan is of the fleet's boards: say so where `run` on this machine would start fewer."""
    own, boards = plan["recipe_boards"], plan["boards"]
    return (
        [f"boards      {boards} of the fleet, where run.nodes = {own}: --boards {own} plans those"]
        if own < boards
        else []
    )


def _down(plan: Mapping[str, Any]) -> list[str]:
    if plan["downlink"] is None:
        return []
    return [f"one down    {bytes_text(plan['down_bytes'])}: the model in {plan['downlink']}"]


def kinds_table(plan: Mapping[str, Any]) -> list[list[str]]:
    """Return the parts of a round and the memory of each kind of board, under a head."""
    head = ["board", "number", *(name for name, _ in _COLUMNS), "memory"]
    rows = [
        [
            str(kind["device"]),
            str(kind["boards"]),
            *(seconds_text(kind[key]) for _, key in _COLUMNS),
            f"{bytes_text(kind['memory_bytes'])} of {bytes_text(kind['has_bytes'])}",
        ]
        for kind in plan["kinds"]
    ]
    return [head, *rows]


def _script(plan: Mapping[str, Any]) -> list[str]:
    if not plan["script"]:
        return []
    return [
        f"what {plan['script']} computes is its own affair, and in none of these seconds; memory is what it took up to its "
        "join, with what optimiser and exchange add: what a step keeps, and data read later, come on top"
    ]


def _limit(plan: Mapping[str, Any]) -> str:
    what, saves = plan["limit"]["what"], plan["limit"]["saves"]
    if what == "latency":
        return "limited by the link's latency: no faster board and no faster link would shorten a round by a hundredth"
    name = f"the {what}" if "link" in what else f"computing on {what}"
    return f"limited by {name}: twice as fast, a round would be {saves:.0%} shorter"


def _overlap(plan: Mapping[str, Any]) -> list[str]:
    text = "outer.overlap sends beside the next round's steps, which is not modelled: rounds will be shorter than this"
    return [text] if plan["overlap"] else []


def _short(step_s: float | None) -> list[str]:
    if step_s is None or step_s >= SHORT_STEP_S:
        return []
    return [f"a step takes {1000 * step_s:.2g} ms by the profile; {SHORT_STEP}"]


def _memory(kinds: list[Mapping[str, Any]]) -> list[str]:
    return [
        f"{kind['device']} is too small: it has {bytes_text(kind['has_bytes'])}, and a board takes "
        f"{bytes_text(kind['memory_bytes'])}; take a smaller model or training.batch_size, or leave these boards out"
        for kind in kinds
        if kind["memory_bytes"] > kind["has_bytes"]
    ]


def _faster(plan: Mapping[str, Any]) -> str:
    other = plan["faster_codec"]
    if other is None:
        return f"no codec that loses little would be faster than {plan['codec']} by more than 2 %"
    return (
        f"{other['codec']} would be faster: {other['bits_per_value']:.2f} bits a value, {seconds_text(other['seconds'])} "
        f"a round in place of {seconds_text(plan['round_s'])}; try {' '.join(f'--set {s}' for s in other['settings'])}"
    )
