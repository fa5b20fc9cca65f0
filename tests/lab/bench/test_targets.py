"""The table of targets on rows made up for the purpose."""

import pytest

from lab.bench import run_codecs
from lab.bench.run_codecs import TARGETS, verdicts_on


def row(**changes):
    base = {
        "codec": "qsgd",
        "family": "qsgd",
        "stage": "raw",
        "bits": 4,
        "input": "synthetic",
        "n": 2_000_000,
        "isa": "avx512",
        "entropy_bits": 2.0,
        "bits_per_value": 2.05,
        "encode_vs_memcpy": 0.6,
        "decode_vs_memcpy": 0.7,
        "encode_vs_torch": 21.0,
        "encode_vs_torch_tuned": 17.5,
        "encode_vs_numpy": None,
        "decode_vs_numpy": None,
        "select_vs_torch": None,
        "index_bits": None,
    }
    return {**base, **changes}


def verdicts(*rows):
    return {v.text: v for v in verdicts_on(rows)}


def test_nothing_measured():
    assert [v.holds for v in verdicts_on([])] == [None] * len(TARGETS)


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("quantise and pack 4 bits, encoding to memcpy", {}, {"encode_vs_memcpy": 0.49}),
        ("quantise and pack 4 bits, qsgd to tuned torch", {}, {"encode_vs_torch_tuned": 16.9}),
        (
            "quantise and pack 4 bits, qsgd to tuned torch",
            {"isa": "portable", "encode_vs_torch_tuned": 6.1},
            {"encode_vs_torch_tuned": 9},
        ),
        (
            "4 bits and Huffman, decoding to memcpy",
            {"stage": "huffman"},
            {"stage": "huffman", "decode_vs_memcpy": 0.64},
        ),
        (
            "Elias, encoding to numpy",
            {"stage": "elias", "encode_vs_numpy": 5.0},
            {"stage": "elias", "encode_vs_numpy": 4.9},
        ),
        (
            "Huffman or auto above an entropy from 1.5 bit, %",
            {"stage": "auto"},
            {"stage": "auto", "bits_per_value": 2.08},
        ),
        (
            "Huffman or auto above an entropy below 1 bit, %",
            {"stage": "auto", "entropy_bits": 0.5, "bits_per_value": 0.55},
            {"stage": "huffman", "entropy_bits": 0.5, "bits_per_value": 0.57},
        ),
        (
            "topk and dgc of 25 M values, selection to torch.topk",
            {"family": "topk", "n": 25_000_000, "select_vs_torch": 3.5},
            {"family": "dgc", "n": 25_000_000, "select_vs_torch": 2.5},
        ),
        (
            "topk and dgc of gradients, bits an index",
            {"family": "dgc", "input": "gradient", "index_bits": 7.5},
            {"family": "topk", "input": "gradient", "index_bits": 8.5},
        ),
    ],
)
def test_each_line_takes_the_worst_row(text, good, bad):
    assert verdicts(row(**good))[text].holds is True
    worst = verdicts(row(**good), row(**bad), row(**good))[text]
    assert worst.holds is False and worst.row.startswith("qsgd")


def test_lines_against_tuned_torch_tell_what_the_same_row_is_against_plain_torch():
    found = verdicts(row(encode_vs_torch=90.0, encode_vs_torch_tuned=8.0), row(encode_vs_torch_tuned=17.25))
    line = run_codecs.verdict_line(found["quantise and pack 4 bits, qsgd to tuned torch"].as_dict())
    assert line.startswith("FAILS") and "8.00 >= 17 " in line
    assert "qsgd to tuned torch (90.0 x plain torch)  (qsgd raw, synthetic, 2000000; avx512)" in line
    assert "plain" not in run_codecs.verdict_line(found["quantise and pack 4 bits, encoding to memcpy"].as_dict())
    missing = verdicts(row(encode_vs_torch_tuned=None))["quantise and pack 4 bits, qsgd to tuned torch"]
    assert missing.holds is None
