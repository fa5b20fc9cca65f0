"""`bench server`: documents, targets and what is shown, of figures that are given; one real row of
our own fleet."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

from edgegossip.types import ConfigError
from lab.bench import server
from lab.bench.server_board import layout_of

ROW = {
    "nodes": 2,
    "payload_bytes": 1_000_000,
    "seconds_per_round": 0.4,
    "stock_seconds_per_round": 6.0,
    "ratio": 15.0,
    "cpu_s": 0.3,
    "stock_cpu_s": 4.0,
    "client_rss_bytes": 200_000_000,
    "stock_client_rss_bytes": 500_000_000,
}
OPTIONS = server.Options((2,), ("1MB",), "fp32", 8, 3, 2, False, 0, (), False, None)


def test_rows_are_held_against_the_targets_that_speak_of_them():
    averaged = {"updates": 18, "codec": "co3", "ratio": 1.5}
    verdicts = {v["text"]: v["holds"] for v in server.verdicts_on({"rows": [ROW], "averaging": [averaged]})}
    assert verdicts == {
        "2 boards, 1 MB: stock to ours": True,
        "2 boards, 0.1 MB: seconds a round": None,
        "2 boards, 45 MB: stock to ours": None,
        "18 boards, 1 MB: seconds a round": None,
        "a board's memory to the stock one's": True,
        "18 compressed ResNet-18 updates: Flower's averaging of fp32 to ours": True,
    }
    slow = {**ROW, "ratio": 11.9, "client_rss_bytes": 300_000_000}
    held = [v["holds"] for v in server.verdicts_on({"rows": [ROW, slow], "averaging": []})]
    assert held == [False, None, None, None, False, None]


def test_what_is_shown_names_what_was_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "measure", lambda asked, nodes, values: {**ROW, "ratio": None, "stock_cpu_s": None})
    lines = []
    document, code = server.run(replace(OPTIONS, check=True, save=tmp_path), ["server"], lines.append)
    assert code == 0 and len(document["rows"]) == 1  # a board's memory was measured, and holds
    assert lines[0].split() == ["boards", "MB", "s/round", "stock", "ratio", "CPU", "s", "stock", "MB/board", "stock"]
    assert lines[1].split() == ["2", "1", "0.40", "6.00", "-", "0.30", "-", "200", "500"]
    kept = json.loads((tmp_path / "server.json").read_text())
    assert kept["rows"] == document["rows"] and "not measured" in (tmp_path / "server.md").read_text()
    assert "| 2 | 1 | 0.40 |" in server.markdown(document)


def test_a_single_round_cannot_be_timed():
    with pytest.raises(ConfigError, match="at least 2"):
        server.measure(replace(OPTIONS, rounds=1), 2, 100)


def test_the_layout_has_all_values_in_nearly_equal_tensors():
    layout = layout_of(1001, 8)
    assert layout.size == 1001 and {t.shape[0] for t in layout.tensors} == {125, 126}


def test_averaging_compares_the_same_updates(monkeypatch):
    pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
    monkeypatch.setattr(server, "AVERAGED_MODEL", {"data": {"name": "digits"}, "model": {"name": "mlp"}})
    row = server.measure_averaging(3, "co3", 1)
    assert row["updates"] == 3 and row["seconds"] > 0 and row["flower_fp32_seconds"] > 0
    assert row["ratio"] == pytest.approx(row["flower_fp32_seconds"] / row["seconds"])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_real_row_beside_stock_flower():
    pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
    row = server.measure(replace(OPTIONS, stock=True, rounds=4), 2, 25_000)
    assert row["ratio"] > 1 and row["cpu_s"] > 0 and row["stock_client_rss_bytes"] > row["client_rss_bytes"] > 1e8
