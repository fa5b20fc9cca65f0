"""A mesh in memory that loses nothing: it carries out what an algorithm asks for, with edges that
overtake each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import Action, Message, NodeView, RoundDone, Send
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate
from tests.gossip.paper.problem import Problem

CONTENT = (Kind.MODEL, Kind.DIFFERENCE, Kind.GRADIENT)


def layout_of(n: int) -> Layout:
    """Two tensors, so that a codec that works tensor by tensor has something to tell apart."""
    return Layout.of([TensorSpec("w", (n - n // 3,)), TensorSpec("b", (n // 3,))])


@dataclass
class Fleet:
    """Drives one algorithm on all nodes. `models[t][i]` is node i's model as round t begins,
    `bodies[t, i]` what it told its neighbours in round t (`bodies[t, i, 1]`: the second of two),
    `done[i]` the last report of every round."""

    algorithm: Any
    topology: Any
    codec: Any
    x0: np.ndarray  # float32[nodes, n]
    seed: int = 0
    steps: int = 1  # of SGD in a round, which follow the correction that the algorithm asks for
    bodies: dict[tuple[int, ...], bytes] = field(default_factory=dict)
    mail: dict[tuple[int, int], list[Frame]] = field(default_factory=dict)  # (sender, receiver) -> in order
    done: dict[tuple[int, int], RoundDone] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes, n = self.x0.shape
        self.layout = layout_of(n)
        self.members = tuple(f"board-{i}" for i in range(nodes))
        self.states = [self.algorithm.init(x, self.view(i)) for i, x in enumerate(self.x0)]
        self.models = {0: np.stack([self.algorithm.model(s) for s in self.states])}

    def view(self, index: int) -> NodeView:
        return NodeView(
            node=self.members[index],
            members=self.members,
            topology=self.topology,
            layout=self.layout,
            codec=self.codec,
            run_id=b"r" * 16,
            seed=self.seed,
            deadline_s=5.0,
            boot=int(np.random.default_rng([self.seed, index]).integers(2**48)),
        )

    def run(self, rounds: int, problem: Problem, rng: np.random.Generator) -> None:
        """Until every node has begun round `rounds`. The nodes say hello to each other first, as
        the papers' nodes are all there from the start. Then what happens next, a step or a
        delivery, is drawn; only an edge keeps its order. Nodes run as far ahead of each other as
        they may. Fails when they wait for a timer."""
        for node in rng.permutation(len(self.members)):
            self._carry_out(int(node), *self.algorithm.start(self.states[node]))
        while edges := self._waiting():
            self._deliver(*edges[int(rng.integers(len(edges)))])
        stepped = [-1] * len(self.members)
        while True:
            ready = [i for i, s in enumerate(self.states) if stepped[i] < self.algorithm.round(s) < rounds]
            edges = self._waiting()
            if not (ready or edges):
                break
            if ready and (not edges or rng.random() < 0.5):
                node = ready[int(rng.integers(len(ready)))]
                stepped[node] = self.algorithm.round(self.states[node])
                self._step(node, problem)
            else:
                self._deliver(*edges[int(rng.integers(len(edges)))])
        assert [self.algorithm.round(s) for s in self.states] == [rounds] * len(self.members), "the nodes wait for ever"

    def _waiting(self) -> list[tuple[int, int]]:
        """Edges with mail on them."""
        return [edge for edge, frames in self.mail.items() if frames]

    def _deliver(self, sender: int, to: int) -> None:
        message = Message(self.members[sender], self.mail[sender, to].pop(0))
        self._carry_out(to, *self.algorithm.receive(self.states[to], message))

    def _step(self, node: int, problem: Problem) -> None:
        state = self.states[node]
        round, model = self.algorithm.round(state), self.algorithm.model(state)
        lr = problem.rate(round)
        correction, trained = self.algorithm.correction(state), model.astype(np.float64)
        for k in range(self.steps):
            gradient = problem.gradient(round * self.steps + k, node, trained)
            trained = trained - lr * (gradient if correction is None else gradient + correction)
        delta, corrected = (trained - model).astype(np.float32), correction is not None
        local = LocalUpdate(delta=delta, lr=lr, loss=1.0, examples=1, steps=self.steps, corrected=corrected)
        self._carry_out(node, *self.algorithm.step(state, local))

    def _carry_out(self, node: int, state: Any, actions: list[Action]) -> None:
        self.states[node] = state
        for action in actions:
            match action:
                case Send(to, frame):
                    self.mail.setdefault((node, self.members.index(to)), []).append(frame)
                    if frame.kind in CONTENT:
                        body, cut = bytes(frame.body), int(frame.aux.get(Aux.SPLIT, len(frame.body)))
                        for key, part in (((frame.round, node), body[:cut]), ((frame.round, node, 1), body[cut:])):
                            assert self.bodies.setdefault(key, part) == part, "neighbours were told different things"
                case RoundDone():
                    self.done[action.round, node] = action
                    row = self.models.setdefault(action.round + 1, np.full_like(self.x0, np.nan))
                    row[node] = self.algorithm.model(state)
