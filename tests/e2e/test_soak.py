"""The judge of a soak tells growth from noise."""

from __future__ import annotations

from random import Random

import pytest

from tests.e2e.growth import growth, judge
from tests.e2e.soak import soak, verdict

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
        ("threads", [20.0] * 250 + [21.0] * (SAMPLES - 250)),
        ("tasks", [12.0 + k // 60 for k in range(SAMPLES)]),
    ],
)
def test_growth_is_told(quantity: str, values: list[float]) -> None:
    _, wrong = judge(quiet(**{quantity: values}))
    assert any(text.startswith(f"a: {quantity} grew by ") for text in wrong)
    assert not any(text.startswith("b: ") for text in wrong)


def test_a_small_leak_of_all_is_told() -> None:
    leaking = {"rss_bytes": noisy(250 * MIB, per_sample=0.002 * MIB)}  # 0.7 MiB an hour: less than one process's noise
    _, wrong = judge({str(k): leaking for k in range(8)})
    assert wrong == ["all: rss_bytes grew by 377487 on average, 262144 is allowed"]


def test_too_few_samples() -> None:
    with pytest.raises(ValueError, match="31 samples are too few"):
        growth([1.0] * 31, 0)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_minute_of_three_boards(tmp_path) -> None:
    out = tmp_path / "soak.jsonl"
    soak(3, 1.0, 1.5, 0.2, out)
    document, wrong = verdict(out)
    assert document["ended"] and document["rounds"] > 30
    grew = [text for text in wrong if "_bytes grew" not in text]  # memory settles for some minutes
    assert not grew, wrong
