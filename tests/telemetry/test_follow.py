"""Records of a folder as they come."""

from edgegossip.telemetry.records import MetricsRecord, to_line
from edgegossip.telemetry.run_folder import Follower


def line(step, node="a"):
    return to_line(MetricsRecord(node, step, 0.1 * step, {"train/loss": 1.0}))


def steps(follower):
    return [record.step for record in follower.new()]


def test_each_record_comes_once_and_a_torn_line_waits_for_its_end(tmp_path):
    follower = Follower(tmp_path)
    assert steps(follower) == []  # nothing there yet
    with (tmp_path / "metrics.jsonl").open("ab", 0) as file:
        file.write(line(0) + line(1)[:20])
        assert steps(follower) == [0]
        assert steps(follower) == []
        file.write(line(1)[20:] + b"no record\n" + line(2))
        assert steps(follower) == [1, 2]
    assert not follower.shrunk()


def test_a_file_that_became_shorter_is_of_another_run(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(line(0) + line(1))
    follower = Follower(tmp_path)
    assert steps(follower) == [0, 1]
    file.write_bytes(line(0))
    assert follower.shrunk()
