"""The judges of a soak tell growth from noise, and true blame from false."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edgegossip.telemetry.run_folder import read_run
from lab.soak import __main__ as soaks
from lab.soak.blame import Absence, until_it_trained, until_level, untrue
from lab.soak.growth import growth, judge

MIB = float(1 << 20)
SAMPLES = 360


def noisy(level: float, per_sample: float = 0.0, noise: float = 0.0) -> list[float]:
    random = Random(1)
    warm_up = [level * (1 - 0.5 / (k + 1)) for k in range(SAMPLES // 6)]
    rest = [level + noise * random.gauss(0, 1) + per_sample * k for k in range(SAMPLES - len(warm_up))]
    return warm_up + rest


def quiet(**changed: list[float]) -> dict[str, dict[str, list[float]]]:
    flat = {
        "rss_bytes": noisy(250 * MIB, noise=MIB / 2),
        "threads": [20.0] * SAMPLES,
        "tasks": [12.0, 13.0] * (SAMPLES // 2),
    }
    return {"a": {**flat, **changed}, "b": flat}


def test_noise_and_warm_up_are_no_growth() -> None:
    spikes = noisy(250 * MIB, noise=MIB / 2)
    spikes[-10:-5] = [400 * MIB] * 5
    assert judge(quiet())[1] == judge(quiet(rss_bytes=spikes))[1] == []


@pytest.mark.parametrize(
    ("quantity", "values"),
    [
        ("rss_bytes", noisy(250 * MIB, per_sample=0.01 * MIB, noise=MIB / 2)),  # 3.6 MiB an hour
        ("threads", [20.0] * 200 + [22.0] * (SAMPLES - 200)),
        ("tasks", [12.0 + k // 60 for k in range(SAMPLES)]),
    ],
)
def test_growth_is_told(quantity: str, values: list[float]) -> None:
    _, wrong = judge(quiet(**{quantity: values}))
    assert any(text.startswith(f"a: {quantity} grew by ") for text in wrong)
    assert not any(text.startswith("b: ") for text in wrong)


@pytest.mark.parametrize(("each", "told"), [(0, False), (1, True)])
def test_descriptors_swing_with_every_kill(each: int, told: bool) -> None:
    """Told is one that each kill leaves behind."""
    held = [(39.0, 51.0, 47.0)[kill % 3] + each * kill for kill in range(24) for _ in range(SAMPLES // 24)]
    assert bool(judge(quiet(descriptors=held))[1]) == told


def test_a_small_leak_of_all_is_told() -> None:
    leaking = {"rss_bytes": noisy(250 * MIB, per_sample=0.002 * MIB)}  # 0.7 MiB an hour: less than one process's noise
    _, wrong = judge({str(k): leaking for k in range(8)})
    assert wrong == ["all: rss_bytes grew by 283116 on average, 262144 is allowed"]


def test_too_few_samples() -> None:
    with pytest.raises(ValueError, match="31 samples are too few"):
        growth([1.0] * 31, 0)


# b was killed at 100 s and trained again at 120 s; later c stood still, and then a.
ABSENCES = [
    Absence("b", "SIGKILL", 100.0, 120.0),
    Absence("c", "SIGSTOP", 200.0, 240.0),
    Absence("a", "SIGSTOP", 300.0, 340.0),
]
DEAD = "{} is dead: we got no answer; 2 of 3 members are here"


@pytest.mark.parametrize(
    ("t_s", "event", "text", "fields", "false"),
    [
        (105.0, "member-dead", DEAD.format("b"), {"peer": "b"}, False),
        (95.0, "member-dead", DEAD.format("b"), {"peer": "b"}, True),
        (105.0, "member-dead", DEAD.format("c"), {"peer": "c"}, True),
        (260.0, "peer-down", "lost c: it does not answer", {"peer": "c"}, True),
        (105.0, "waiting", "waiting for c for 5 s", {"missing": "c"}, False),  # who waits for b
        (117.0, "waiting", "waiting for c for 5 s", {"missing": "c"}, True),  # who does not any more
        (205.0, "waiting", "waiting for b for 5 s", {"missing": "b"}, True),  # who never waited for c
        (150.0, "waiting", "waiting for c for 5 s", {"missing": "c"}, True),
        (341.0, "notice", "lost c at 10.0.0.3:7: it does not answer; trying again", {"peer": "c"}, True),
        (341.0, "notice", "lost c at 10.0.0.3:7: the connection was silent; trying again", {"peer": "c"}, False),
        (341.0, "waiting", "waiting for c for 40 s", {"missing": "c"}, True),
        (341.0, "starved", "a stood still for 40 s", {}, False),
        (150.0, "starved", "a stood still for 40 s", {}, True),
        (341.0, "notice", "b says that we had been named dead: we are here", {}, False),
        (150.0, "adopted", "had been left behind: took over the model of c", {"peer": "c"}, False),
    ],
)
def test_who_is_blamed_was_away(
    t_s: float, event: str, text: str, fields: dict[str, Any], false: bool, tmp_path: Path
) -> None:
    lines = [
        {"t_s": 0.0, "event": "started", "text": "a trains", "unix_s": 0.0},
        {"t_s": t_s, "event": event, "text": text, **fields},
    ]
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "events.jsonl").write_text("".join(json.dumps({"node": "a", **line}) + "\n" for line in lines))
    waits = [(104.0, "c", {"b"})]
    assert len([*untrue(read_run(tmp_path), ABSENCES, ("a", "b", "c"), waits)]) == false


@pytest.mark.parametrize(("kind", "until_s"), [("SIGKILL", 15.0), ("SIGSTOP", 13.5), ("", 11.0)])
def test_a_board_is_back_once_it_is_level_with_the_others(kind: str, until_s: float) -> None:
    """Killed, it trains again at 13 s, when c is in round 4; it wakes at 11 s, when b is in 2."""
    rounds = {
        "a": [(9.0, 1), (13.5, 2), (14.0, 3), (15.0, 4), (16.0, 5)],
        "b": [(9.5, 1), (10.5, 2), (20.0, 6)],
        "c": [(12.0, 3), (13.0, 4), (13.2, 5)],
    }
    absence = until_it_trained(Absence("a", kind, 9.0, 11.0), (8.0, 13.0, 17.0))
    assert until_level(absence, rounds).until_s == until_s


def test_a_board_that_never_gets_level_is_away() -> None:
    assert until_level(Absence("a", "SIGKILL", 9.0, 12.0), {"a": [(13.0, 3)], "b": [(10.0, 4)]}).until_s == inf


def test_nobody_is_flat_whom_nobody_looked_at() -> None:
    assert soaks.unjudged("server", ["pi-1:7", "coordinator:8"]) == ["no SuperLink lived long enough to be judged"]
    assert not soaks.unjudged("server", ["pi-1:7", "coordinator/9:8"]) and soaks.unjudged("gossip", [])
    names, seconds = ("coordinator", "pi-1", "pi-2", "pi-3"), 1200.0
    faults = [f for seed in range(20) for f in soaks.schedule(seed, names, seconds) if f.name == "coordinator"]
    killed = [f.at_s for f in faults if f.kind == "SIGKILL"]
    assert 0 < max(killed) <= seconds / 3 and not any(f.kind == "SIGTERM" for f in faults)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--minutes 2", "--minutes 2 leaves no time for a fault: the first minute and the last two have none"),
        ("--out .", "--out . is there: name a new folder, or judge it with --judge ."),
        ("--judge /nonesuch", "--judge /nonesuch: there is no soak.jsonl, which a soak writes"),
    ],
)
def test_what_cannot_be_played_or_judged_is_told_in_one_sentence(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        soaks.main(words.split())
    assert ended.value.code == 2 and f"python -m lab.soak: error: {says}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_verdict_in_words_names_what_was_not_judged() -> None:
    document = {"rounds": {"coordinator": 9, "pi-1": 9, "pi-2": 9}, "faults": {"SIGKILL": 2, "SIGSTOP": 1}}
    document |= {"processes": {"pi-1:7": {}}, "not judged": ["no SuperLink lived long enough to be judged"]}
    assert soaks.told(document, []) == (
        "nothing wrong: 3 faults played, records of 2 boards checked, growth judged in 1 processes; "
        "no SuperLink lived long enough to be judged"
    )


@pytest.mark.slow  # real processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["gossip", "server"])
def test_a_minute_of_three_boards_that_are_killed_and_stopped(mode: str, tmp_path: Path) -> None:
    boards = soaks.fleet_of(mode, 3, 0.2, tmp_path)
    faults = [soaks.Fault(2.0, "pi-2", "SIGKILL", 6.0), soaks.Fault(30.0, boards.names[0], "SIGKILL", 31.0)]
    faults += [soaks.Fault(8.0, "pi-3", "SIGSTOP", 20.0)]
    soaks.soak(boards, faults, 1.5, 1.5, {"mode": mode, "seed": 0, "pause_s": 0.2, "when": ""})
    document, wrong = soaks.judge(tmp_path)
    assert not wrong and document["ended"] and document["not judged"] and document["records checked"] == 2
