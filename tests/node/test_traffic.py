"""What went where, from receipts."""

from edgegossip.mesh.base import SendReceipt
from edgegossip.node.gossip_node import LINKS_EVERY_S, NodeTraffic


def receipt(frame_id, to, start_s, acknowledged_s):
    return SendReceipt(frame_id, to, 105, 110, start_s, start_s, acknowledged_s)


def test_bytes_and_seconds_by_link_and_frames_that_overlap_count_once():
    traffic = NodeTraffic(values=25)
    for frame_id in range(4):
        traffic.sent(frame_id, 100)
    traffic.acknowledged(receipt(0, "b", 1.0, 3.0))
    traffic.acknowledged(receipt(1, "b", 2.0, 4.0))
    traffic.acknowledged(receipt(2, "c", 2.0, 2.5))
    traffic.acknowledged(receipt(9, "c", 2.0, 9.0))  # none of ours
    metrics = traffic.take()
    assert metrics["link/b_bytes"] == 220 and metrics["link/b_s"] == 3.0
    assert metrics["link/c_bytes"] == 110 and metrics["link/c_s"] == 0.5
    assert metrics["net/payload_bytes"] == 300 and metrics["net/overhead_bytes"] == 30
    assert not [name for name in traffic.take() if name.startswith("link/")]


def test_links_come_every_second_and_lose_nothing_between():
    traffic, told = NodeTraffic(values=25), 0
    for frame_id in range(10):
        traffic.sent(frame_id, 100)
        traffic.acknowledged(receipt(frame_id, "b", 100 + frame_id / 4, 100.1 + frame_id / 4))
        told += traffic.take(100 + frame_id * LINKS_EVERY_S / 4).get("link/b_bytes", 0)
    assert 0 < told < 1100
    assert told + traffic.take()["link/b_bytes"] == 1100
