"""The published generator, and keys that do not meet."""

import pytest

from edgegossip.codecs.keys import derive_key, splitmix64


def test_splitmix64_gives_the_published_sequence() -> None:
    """First outputs of the reference implementation for the seed 1234567."""
    gamma, state, outputs = 0x9E3779B97F4A7C15, 1234567, []
    for _ in range(5):
        outputs.append(splitmix64(state))
        state = (state + gamma) % 2**64
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_keys_of_a_run_are_distinct_and_fixed() -> None:
    keys = {derive_key(seed, node, round) for seed in range(4) for node in range(16) for round in range(200)}
    assert len(keys) == 4 * 16 * 200 and all(0 <= k < 2**64 for k in keys)
    assert derive_key(1, 2, 3) == derive_key(1 + 2**64, 2, 3) != derive_key(1, 3, 2)
    assert derive_key(1) != derive_key(1, 0)
    assert derive_key(1, 2, 3) == splitmix64(splitmix64(splitmix64(1) ^ 2) ^ 3)


def reference(value: int) -> int:
    """SplitMix64 as its paper writes it."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@pytest.mark.parametrize("number", [0, 1, 2**63, 2**64 - 1, 2**64, 2**70 + 12345, -1, -(2**40)])
def test_numbers_are_taken_modulo_two_to_the_64(number: int) -> None:
    assert splitmix64(number) == reference(number)
    assert derive_key(number, number, 7) == reference(reference(reference(number) ^ number % 2**64) ^ 7)
    with pytest.raises(TypeError):
        derive_key(1, 2.0)  # type: ignore[arg-type]
