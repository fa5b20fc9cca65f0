"""`bench profiling` says what it measured. How much that is depends on the machine;
lab/results/pages/profiling.md has figures."""

import json

from click.testing import CliRunner

from lab.bench.__main__ import bench


def test_the_document_and_the_sentence():
    call = ["profiling", "--rounds", "5"]
    done = CliRunner().invoke(bench, [*call, "--json"], standalone_mode=False)
    document = json.loads(done.output)
    assert document["rounds"] == 5 and document["profiling_ms"] > 0 and document["without_ms"] > 0
    assert document["ok"] == (document["overhead"] < document["limit"])
    done = CliRunner().invoke(bench, [*call, "--check"], standalone_mode=False)
    assert (
        done.return_value == 6 and "OVER the limit of 1%" in done.output
    )  # a round of a small MLP takes a millisecond
