"""What a round's messages are: the recipe's own algorithm and codec on virtual nodes of this
process, one real update each round.

Every node is given the same local update, which the recipe's own workload has computed; frames are
built and parsed as on the wire. So sizes are real, and encoding and decoding are timed by the CPU
seconds of the calls that do them, all else that an algorithm does with a message included.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgegossip import frame as wire
from edgegossip import recipe as recipes
from edgegossip.agreement import Agreement
from edgegossip.gossip.base import GossipAlgorithm, Send
from edgegossip.gossip.base import Message as Received
from edgegossip.lab.scale.rounds import Message
from edgegossip.lab.study.measure import Recorder
from edgegossip.lab.study.virtual import VirtualFleet
from edgegossip.layout import Layout
from edgegossip.node.spec import NodeSpec, default_members, make_algorithm, make_topology, make_view
from edgegossip.recipe import Recipe
from edgegossip.types import LocalUpdate, Metrics, Round, Vec

FIRST = 1  # round that is looked at: before it caches are cold and error memories empty
_ROUNDS = 2  # and so many, or as many as it takes a graph to come round

# A message on the way in packets of 1448 bytes: headers of Ethernet, IPv4 and TCP with time stamps,
# and half an acknowledgement.
PACKET_BYTES, HEADER_BYTES, ACK_BYTES = 1448, 66, 66
HANDLING_BYTES = 400  # a message's gRPC and HTTP/2 frames, its receipt, and the packets that are not full


@dataclass(frozen=True, slots=True)
class Frames:
    """Messages of one round after another, and what making and taking one costs on this machine."""

    rounds: tuple[tuple[Message, ...], ...]  # sizes are bytes of packets
    encode_s: float  # CPU seconds a board and round
    decode_s: float  # CPU seconds a message
    payload_bytes: float  # of all boards, a round
    overhead_bytes: float
    bits_per_value: float

    def of_round(self, round: int) -> Sequence[Message]:
        return self.rounds[round % len(self.rounds)]


def wire_bytes(message_bytes: int) -> int:
    """Of a message of so many bytes, packets' headers and what acknowledges it included."""
    packets = -(-message_bytes // PACKET_BYTES)
    return message_bytes + packets * HEADER_BYTES + packets * ACK_BYTES // 2 + HANDLING_BYTES


def measure(recipe: Recipe, layout: Layout, local: LocalUpdate, initial: Vec) -> Frames:
    """Play some rounds of a gossip recipe with this update. Raises ConfigError for a recipe that
    cannot run."""
    members, run_id = default_members(recipe.run.nodes), recipes.run_id(recipe)
    views = [make_view(NodeSpec(recipe, name, members, run_id), layout) for name in members]
    updates = [replace(local) for _ in members]
    timed = _Timed(make_algorithm(recipe), {id(update): k for k, update in enumerate(updates)})
    rounds = FIRST + max(_ROUNDS, make_topology(recipe, members).period)
    fleet = VirtualFleet(timed, views, [_Given(layout, update, initial) for update in updates], rounds)
    fleet.play(initial, Recorder(len(members), frozenset(), frozenset(), _no_evaluation, lambda: 0))
    index = {name: k for k, name in enumerate(members)}
    counted = [timed.sent[round] for round in range(FIRST, rounds)]
    messages = [
        tuple(Message(sender, index[to], wire_bytes(size)) for sender, to, size, _ in of_round) for of_round in counted
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

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        return self.local

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
    """An algorithm, with a stop watch and a list of what it sends in a step. A node is known by its
    update."""

    inner: GossipAlgorithm[Any]
    nodes: Mapping[int, int]  # id of a node's update -> its index
    seconds: dict[str, float] = field(default_factory=lambda: {"step": 0.0, "receive": 0.0})
    sent: dict[Round, list[tuple[int, str, int, int]]] = field(default_factory=lambda: defaultdict(list))

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
                self.sent[round].append((self.nodes[id(local)], action.to, size, len(action.frame.body)))
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
    """(encode seconds, decode seconds, body bytes) of one update in the recipe's codec, for a run
    through a coordinator. The fastest of three; CPU seconds."""
    from edgegossip import codecs
    from edgegossip.codecs.base import Ctx

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
