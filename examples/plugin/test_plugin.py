"""What the codec claims, how the topology mixes, and that the algorithm keeps the boards' mean."""

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Message, NodeView, Send
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate
from edgegossip.verify import verify

LAYOUT = Layout.of([TensorSpec("weight", (5, 8), True)])


def test_the_codec_keeps_its_claims():
    report = verify(codecs.get("log8"), "log8", rebuild=codecs.from_wire)
    assert report.passed, report


def test_the_topology_is_undirected_and_mixes_faster_than_a_ring():
    for n in (3, 4, 8, 18):
        w = topologies.get("wheel", n).matrix(0)
        np.testing.assert_allclose([w.sum(axis=0), w.sum(axis=1)], 1.0, atol=1e-12)
        assert (w == w.T).all()
    assert topologies.get("wheel", 18).spectral_gap() > topologies.get("ring", 18).spectral_gap()


def test_boards_come_nearer_and_their_mean_stays():
    algorithm, graph, names = gossip.get("calm-sgd"), topologies.get("wheel", 4), ("a", "b", "c", "d")
    x = np.random.default_rng(0).normal(size=(4, LAYOUT.size)).astype(np.float32)
    views = [NodeView(n, names, graph, LAYOUT, codecs.get("log8"), bytes(16), 0, 60.0, boot=1) for n in names]
    idle = LocalUpdate(np.zeros(LAYOUT.size, np.float32), loss=1.0, lr=0.1, examples=8, steps=1)
    states, mail = [algorithm.init(x[i], view) for i, view in enumerate(views)], []

    def go(i, outcome):
        states[i], actions = outcome
        mail.extend((names.index(a.to), Message(names[i], a.frame)) for a in actions if isinstance(a, Send))

    for i in range(4):
        go(i, algorithm.start(states[i]))
    for _ in range(5):
        for i in range(4):
            go(i, algorithm.step(states[i], idle))
        while mail:
            to, message = mail.pop(0)
            go(to, algorithm.receive(states[to], message))
    models = np.array([algorithm.model(state) for state in states])
    np.testing.assert_allclose(models.mean(axis=0), x.mean(axis=0), atol=0.05)
    assert models.std(axis=0).max() < 0.2 * x.std(axis=0).max()
