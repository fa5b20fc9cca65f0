"""What a scalability run is going to do: schemes, counts, rates, cells; and how rows compare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgegossip import recipe as recipes
from edgegossip.scale import cells, summary
from edgegossip.scale.devices import SHORT_STEP, SHORT_STEP_S, parse_rate, rate_text
from edgegossip.telemetry.records import MetricsRecord
from edgegossip.types import ConfigError

BASE = recipes.load("table3", ["training.batch_size=512"])
HOW = {"rate_bps": 1e8, "link": "shared"}


@pytest.mark.parametrize(
    ("name", "algorithm", "codec", "topology"),
    [
        ("sgd", "parallel-sgd", "fp32", "complete"),
        ("4-bit-elastiquant", "parallel-sgd", "4-bit-elastiquant", "complete"),
        ("choco-4-bit-elastiquant", "choco-sgd", "4-bit-elastiquant", "ring"),
        ("deep-squeeze-topk", "deep-squeeze", "topk", "ring"),
        ("dpsgd", "dpsgd", "fp32", "ring"),
    ],
)
def test_schemes(name: str, algorithm: str, codec: str, topology: str) -> None:
    recipe = cells.parse_scheme(name).of(BASE, 4)
    assert (recipe.gossip.algorithm, recipe.codec.name, recipe.gossip.topology) == (algorithm, codec, topology)
    assert recipe.run.nodes == 4 and recipe.run.mode == "gossip"


def test_a_scheme_with_a_coordinator() -> None:
    recipe = cells.parse_scheme("server-co3").of(BASE, 4)
    assert (recipe.run.mode, recipe.codec.name, recipe.server.downlink) == ("server", "co3", "co3")


def test_a_codec_that_there_is_not_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match="there is no codec 'nosuch'"):
        cells.parse_scheme("choco-nosuch")


def test_parameters_stay_with_what_they_belong_to() -> None:
    base = recipes.load("table3", ["gossip.params.momentum=0.9", "codec.name=topk", "codec.params.ratio=0.2"])
    assert cells.parse_scheme("topk").of(base, 2).gossip.params == {"momentum": 0.9}
    assert cells.parse_scheme("topk").of(base, 2).codec.params == {"ratio": 0.2}
    assert cells.parse_scheme("choco-co3").of(base, 2).gossip.params == {}
    assert cells.parse_scheme("co3").of(base, 2).codec.params == {}


@pytest.mark.parametrize("name", ["5-bit-elastiquant", "choco-", "choco-nothing", "sg"])
def test_an_unknown_scheme_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="--schemes"):
        cells.parse_schemes(f"sgd,{name}")


def test_counts() -> None:
    assert cells.parse_devices("18,2,7,2") == (2, 7, 18)
    for text in ("two", "1,2", "2,65"):
        with pytest.raises(ConfigError, match="--boards"):
            cells.parse_devices(text)


def test_rates() -> None:
    assert parse_rate("20mbit") == 20e6 and parse_rate("1.5 Gbit/s") == 1.5e9 and parse_rate("250kbit") == 250e3
    assert rate_text(20e6) == "20 Mbit/s"
    for text in ("20", "fast", "0bit", "-3mbit", "20gbit", "20mbyte"):
        with pytest.raises(ConfigError, match="--rate"):
            parse_rate(text)


def test_an_epoch_is_shared_out() -> None:
    made = cells.make_cells(BASE, cells.parse_schemes("sgd,co3"), (2, 4, 7, 18), "model", HOW, 18432, 0)
    assert [c.epoch_rounds for c in made[:4]] == [18.0, 9.0, pytest.approx(36 / 7), 2.0]
    assert [c.recipe.run.rounds for c in made[:4]] == [20, 11, 7, 4]  # two more, which are not counted
    assert len({c.key for c in made}) == 8
    other = cells.make_cells(BASE, cells.parse_schemes("sgd"), (2,), "model", {**HOW, "rate_bps": 2e7}, 18432, 0)
    assert other[0].key != made[0].key


def _records(cell: cells.Cell, compute_s: float, transmit_s: float) -> list[MetricsRecord]:
    return [
        MetricsRecord(
            f"board-{k}", step, 0.0,
            {
                "time/compute_s": 100.0 if step < 2 else compute_s, "time/encode_s": 0.1,
                "time/transmit_s": transmit_s, "time/decode_s": 0.0, "time/wait_s": 0.2, "time/other_s": 5.0,
                "net/payload_bytes": 1000, "net/overhead_bytes": 10, "train/loss": 2.0 - step / 10,
            },
        )
        for step in range(cell.recipe.run.rounds)
        for k in range(cell.devices)
    ]  # fmt: skip


def test_a_row_is_of_an_epoch_without_the_first_round_and_what_is_no_part() -> None:
    (cell,) = cells.make_cells(BASE, cells.parse_schemes("sgd"), (4,), "model", HOW, 18432, 3)
    row, curve = summary.row_of_records(cell, _records(cell, 2.0, 1.0), [f"board-{k}" for k in range(4)])
    assert row["cp_s"] == pytest.approx(18.0) and row["tx_s"] == pytest.approx(9.0)
    assert row["t_s"] == pytest.approx(9 * 3.3) and row["counted_rounds"] == 3
    assert curve[0] == [0.0, 0.0, pytest.approx(1.8)] and curve[-1] == pytest.approx([6.6, 2 * 4 * 1010, 1.6])
    with pytest.raises(ValueError, match="board-9"):
        summary.row_of_records(cell, _records(cell, 2.0, 1.0), ["board-9"])


def test_a_record_without_all_parts_is_none_and_an_untold_loss_is_not_zero() -> None:
    (cell,) = cells.make_cells(BASE, cells.parse_schemes("sgd"), (4,), "model", HOW, 18432, 3)
    boards = [f"board-{k}" for k in range(4)]
    records = _records(cell, 2.0, 1.0)
    broken = [replace(r, values={**r.values, "time/wait_s": None}) if r.step == 3 else r for r in records]
    with pytest.raises(ValueError, match="round 3 was not finished by board-0"):
        summary.row_of_records(cell, broken, boards)
    untold = [replace(r, values={k: v for k, v in r.values.items() if k != "train/loss"}) for r in records]
    row, curve = summary.row_of_records(cell, untold, boards)
    assert row["loss"] is None and row["bits_per_value"] is None and curve[0][2] is None
    assert row["t_s"] == pytest.approx(9 * 3.3)


def test_what_holds_a_run_up_is_what_the_board_does_that_the_others_wait_for() -> None:
    """One board computes 20 s, three compute 2 s and wait for it: faster links would help
    nobody."""
    (cell,) = cells.make_cells(BASE, cells.parse_schemes("sgd"), (4,), "boards", {}, 18432, 3)
    records = [
        replace(r, values={**r.values, "time/compute_s": 20.0, "time/wait_s": 0.1})
        if r.node == "board-2"
        else replace(r, values={**r.values, "time/wait_s": 18.1})
        for r in _records(cell, 2.0, 1.0)
    ]
    row, _ = summary.row_of_records(cell, records, [f"board-{k}" for k in range(4)])
    assert row["slowest"]["node"] == "board-2" and row["slowest"]["cp_s"] == pytest.approx(180.0)
    row |= {"scheme": "sgd", "devices": 4}
    (said,) = summary.verdicts([row])
    assert "compute-bound (94 % of T) on board-2, for which the others wait, at 4 boards" in said
    even, _ = summary.row_of_records(cell, _records(cell, 0.2, 1.0), [f"board-{k}" for k in range(4)])
    (said,) = summary.verdicts([even | {"scheme": "sgd", "devices": 4}])
    assert "link-bound (80 % of T) at 4 boards" in said


def test_a_verdicts_shares_are_of_one_board() -> None:
    """Of few rounds a board's own sum is not quite the mean of all."""
    parts = {"cp_s": 1.0, "en_s": 0.0, "tx_s": 9.0, "de_s": 0.0, "wait_s": 0.0}
    row = {"scheme": "sgd", "devices": 4, **parts, "t_s": 8.0, "slowest": {"node": "board-1", **parts}}
    assert "link-bound (90 % of T) at 4 boards" in summary.verdicts([row])[0]
    assert summary.slowest({"a": parts, "b": parts | {"cp_s": 3.0}})["node"] == "b"


def test_steps_that_are_too_short_for_a_profile_are_named() -> None:
    row = {"scheme": "co3", "devices": 2, "on": "model", "step_s": SHORT_STEP_S / 10}
    assert sum(SHORT_STEP in s for s in summary.notes([row, row], "")) == 1
    assert not any(SHORT_STEP in s for s in summary.notes([row | {"step_s": SHORT_STEP_S}, row | {"step_s": None}], ""))


def test_a_cell_in_which_the_machine_was_busy_makes_no_scheme_better() -> None:
    """What boards compute is the same in all cells."""
    parts = {"en_s": 1.0, "tx_s": 1.0, "de_s": 0.0, "wait_s": 0.0, "devices": 4}
    busy = {"scheme": "co3", "cp_s": 100.0, "t_s": 102.0, **parts}
    calm = {"scheme": "sgd", "cp_s": 60.0, "t_s": 64.0, **parts, "tx_s": 3.0}
    said = summary.verdicts([busy, calm])
    assert not any("would give" in sentence for sentence in said), said
    slow = {"scheme": "fp32", "cp_s": 60.0, "t_s": 161.0, **parts, "tx_s": 100.0}
    assert "co3 would give 2.60 times the speed" in summary.verdicts([busy, slow])[1]


EMULATED = {
    "scheme": "co3", "devices": 2, "on": "model", "cp_s": 90.0, "en_s": 1.0, "tx_s": 5.0, "de_s": 1.0, "wait_s": 3.0,
    "t_s": 100.0, "speedup": None, "efficiency": None, "bits_per_value": None,
    "round_bytes": {"payload": 90.0, "overhead": 10.0, "link": 107.0},
}  # fmt: skip


def test_a_verdict_is_told_without_what_both_schemes_share() -> None:
    """Both compute for 90 s: of the rest, 10 s, the other scheme needs 2 s."""
    other = EMULATED | {"scheme": "choco-co3", "tx_s": 0.5, "wait_s": 0.0, "de_s": 0.5, "t_s": 92.0}
    said = summary.verdicts([EMULATED, other])[0]
    assert said.endswith("choco-co3 would give 1.09 times the speed, 5.00 times without Cp")


def test_rows_are_compared_with_those_of_the_same_scheme() -> None:
    rows = [
        {"scheme": s, "devices": k, "t_s": t}
        for s, k, t in (("sgd", 2, 10.0), ("sgd", 4, 8.0), ("sgd", 7, 9.0), ("co3", 2, 6.0), ("co3", 4, None))
    ]
    compared = summary.compare(rows)
    assert [row.get("sp_s") for row in compared] == [None, -2.0, 1.0, None, None]
    assert compared[1]["efficiency"] == pytest.approx(10 / 8 * 2 / 4) and compared[3]["efficiency"] == 1.0


def test_without_the_smallest_count_a_scheme_has_no_speed_up() -> None:
    """That of another count would stand beside others' as if it were the same."""
    rows = [
        {"scheme": s, "devices": k, "t_s": t}
        for s, k, t in (("sgd", 2, 100.0), ("sgd", 4, 50.0), ("co3", 2, None), ("co3", 4, 50.0))
    ]
    compared = summary.compare(rows)
    assert [row["speedup"] for row in compared] == [1.0, 2.0, None, None] and compared[3]["efficiency"] is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((100.0, 40.0, 30.0, 20.0), "sgd gets faster all the way to 18 boards (5.00 times 2); "),
        ((100.0, 40.0, 95.0, 39.0), "sgd is fastest at 18 boards (2.56 times 2), but slower at 7 than at 4; "),
        ((100.0, 40.0, 50.0, 60.0), "sgd stops scaling at 4 boards and is 1.50 times slower at 18; "),
        ((100.0, 40.0, None, None), "sgd gets faster all the way to 4 boards (2.50 times 2); "),
    ],
)
def test_a_verdict_says_what_the_seconds_do(seconds: tuple[float | None, ...], words: str) -> None:
    parts = dict.fromkeys(("en_s", "tx_s", "de_s", "wait_s"), 0.0)
    rows = summary.compare(
        [
            {"scheme": "sgd", "devices": k, "t_s": t, "cp_s": t, **parts}
            for k, t in zip((2, 4, 7, 18), seconds, strict=True)
        ]
    )
    (said,) = summary.verdicts(rows)
    assert said.startswith(words) and said.endswith("; failed at 7, 18") == (seconds[-1] is None)
