"""The native decoders under libFuzzer with sanitizers, for a short time; `make fuzz SECONDS=3600`
runs it longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.native import corpus, run


def test_the_corpus_has_every_decoder() -> None:
    """Otherwise the fuzzer would have to find out what a section is."""
    assert {data[0] for data in corpus.inputs()} >= set(corpus.DECODERS.values())


def test_bodies_of_more_than_a_block_are_whole() -> None:
    """The fuzzer would cut those that are longer than it is told."""
    assert len({len(data) for data in corpus.long_runs()}) > 5
    assert all(len(data) <= corpus.MAX_BYTES and data[12] == 2 for data in corpus.long_runs())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_sanitizer_has_anything_to_say(tmp_path: Path) -> None:
    if run.compiler() is None:
        pytest.skip("needs clang++")
    assert run.main(["--seconds", "30", "--folder", str(tmp_path)]) == 0
