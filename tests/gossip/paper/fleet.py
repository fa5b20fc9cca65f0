"""The mesh in memory, with nodes that learn and a record of what they tell their neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Action, NodeView, Send
from edgegossip.types import LocalUpdate
from tests.gossip import conftest
from tests.gossip.paper.problem import Problem

CONTENT = (Kind.MODEL, Kind.DIFFERENCE, Kind.GRADIENT)


@dataclass
class Fleet(conftest.Fleet):
    """Drives one algorithm on all nodes. `models[t][i]` is node i's model as round t begins,
    `bodies[t, i]` what it told its neighbours in round t (`bodies[t, i, 1]`: the second of two)."""

    steps: int = 1  # of SGD in a round, which follow the correction that the algorithm asks for
    bodies: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def view(self, index: int, /, **changes: Any) -> NodeView:
        boot = int(np.random.default_rng([self.seed, index]).integers(2**48))
        return super().view(index, **{"boot": boot, **changes})

    def learn(self, rounds: int, problem: Problem, rng: np.random.Generator) -> None:
        """Until every node has begun round `rounds`. The nodes say hello to each other first, as
        the papers' nodes are all there from the start. Then what happens next, a step or a
        delivery, is drawn. Nodes run as far ahead of each other as they may. Fails when they wait
        for a timer."""
        self.say_hello()
        stepped = [-1] * len(self.members)
        while True:
            ready = [i for i, round in enumerate(self.rounds) if stepped[i] < round < rounds]
            if ready and (not self.mail or rng.random() < 0.5):
                node = ready[int(rng.integers(len(ready)))]
                stepped[node] = self.algorithm.round(self.states[node])
                self._train(node, problem)
            elif self.mail:
                self.deliver(self.draw(rng))
            else:
                break
        assert self.rounds == [rounds] * len(self.members), "the nodes wait for ever"

    def carry_out(self, node: int, actions: list[Action]) -> None:
        super().carry_out(node, actions)
        for frame in [action.frame for action in actions if isinstance(action, Send)]:
            if frame.kind in CONTENT:
                body, cut = bytes(frame.body), int(frame.aux.get(Aux.SPLIT, len(frame.body)))
                for key, part in (((frame.round, node), body[:cut]), ((frame.round, node, 1), body[cut:])):
                    assert self.bodies.setdefault(key, part) == part, "neighbours were told different things"

    def _train(self, node: int, problem: Problem) -> None:
        state = self.states[node]
        round, model = self.algorithm.round(state), self.algorithm.model(state)
        lr = problem.rate(round)
        correction, trained = self.algorithm.correction(state), model.astype(np.float64)
        for k in range(self.steps):
            gradient = problem.gradient(round * self.steps + k, node, trained)
            trained = trained - lr * (gradient if correction is None else gradient + correction)
        delta, corrected = (trained - model).astype(np.float32), correction is not None
        local = LocalUpdate(delta=delta, lr=lr, loss=1.0, examples=1, steps=self.steps, corrected=corrected)
        self.states[node], actions = self.algorithm.step(state, local)
        self.carry_out(node, actions)
