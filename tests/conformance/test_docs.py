"""docs/wire-format.md and docs/codecs.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, frame
from edgegossip.codecs.base import MAX_PARAMS_BYTES
from edgegossip.layout import Layout, TensorSpec
from tests.conformance import reference_coders as coders
from tests.conformance import reference_common, reference_eden, reference_sparse
from tests.conformance import reference_entropy as entropy
from tests.conformance import reference_stepped as stepped

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "wire-format.md").read_text()
LAYOUT = Layout.of([TensorSpec("w", (2, 2)), TensorSpec("b", (2,))])


def example() -> bytes:
    block = re.search(r"```hex\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    lines = [line.split("  ") for line in block[1].splitlines()]
    assert [int(offset, 16) for offset, _ in lines] == list(range(0, 16 * len(lines), 16))
    return bytes.fromhex("".join(digits for _, digits in lines))


def test_the_example_is_what_build_makes() -> None:
    x = np.array([0.5, -1, 0.25, 2, 0, 0.125], np.float32)
    body, _ = codecs.get("fp16").encode(x, LAYOUT, codecs.Ctx(0x0123456789ABCDEF, 12))
    message = frame.Frame(
        kind=frame.Kind.DIFFERENCE,
        codec_id=2,
        codec_params=b"",
        layout_hash=LAYOUT.hash,
        run_id=bytes(range(0x10, 0x20)),
        round=12,
        sequence=13,
        key=0x0123456789ABCDEF,
        body=body,
        aux={frame.Aux.LOSS: 0.75},
    )
    assert b"".join(frame.build(message)) == example()
    parsed = frame.parse(example(), frame.Limits.of(LAYOUT))
    np.testing.assert_array_equal(codecs.from_wire(2, parsed.codec_params).decode(parsed.body, LAYOUT), x)


def test_the_example_is_explained_byte_for_byte() -> None:
    rows = re.findall(r"^\| (`[0-9a-f `.]+`) \|", TEXT.split("## Example")[1], re.MULTILINE)
    explained = " ".join(rows).replace("`10 11` ... `1f`", " ".join(f"{b:02x}" for b in range(0x10, 0x20)))
    assert bytes.fromhex(explained.replace("`", "")) == example()


def test_the_header_table_has_no_gap() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ", TEXT, re.MULTILINE)
    assert [int(offset) for offset, _ in rows] == np.cumsum([0, *(int(size) for _, size in rows)]).tolist()[:-1]
    assert sum(int(size) for _, size in rows) == frame.HEADER_BYTES


@pytest.mark.parametrize("layout_line", ["7591660ed82eb909"])
def test_the_layout_hash_is_that_of_the_shell(layout_line: str) -> None:
    assert f"\n{layout_line}\n" in TEXT
    assert f"{LAYOUT.hash:016x}" == layout_line


def test_the_tables_of_tags_kinds_limits_and_codecs_are_complete() -> None:
    rows = {(int(i), name) for i, name in re.findall(r"^\| (\d+) \| ([\w-]+) \|", TEXT, re.MULTILINE)}
    assert {(int(tag), tag.name) for tag in frame.Aux} <= rows
    assert {(i, family.name) for i, family in codecs.REGISTRY.by_wire_id.items()} <= rows
    assert ", ".join(f"{int(kind)} {kind.name.lower()}" for kind in frame.Kind) in TEXT
    assert f"0 to {MAX_PARAMS_BYTES} |" in TEXT
    assert f"at most {9 * frame.MAX_AUX_ENTRIES} |" in TEXT


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page's programs define."""
    names: dict[str, Any] = {}
    for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(program, "docs/wire-format.md", "exec"), names)
    return names


def test_the_programs_draw_what_the_references_draw(page: dict[str, Any]) -> None:
    for key in (0, 1, 0x0123456789ABCDEF, 2**64 - 1):
        own = page["tensor_key"](key, 3)
        assert own == reference_common.tensor_key(key, 3)
        assert [page["number"](own, i) for i in range(40)] == reference_common.uniform32(own, 0, 40).tolist()
    for i, (u, place) in enumerate(stepped.dither(200)):
        assert (place, u) == (
            page["place_and_offset"](stepped.MIXED, i)[0],
            np.float32(page["place_and_offset"](stepped.MIXED, i)[1]),
        )
    v = np.arange(32, dtype=np.float32) ** 2
    np.testing.assert_array_equal(page["transform"](v.copy()), reference_eden.hadamard(v))


def test_the_programs_read_what_the_references_write(page: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    for n, k in ((10, 1), (5000, 70), (5000, 1500), (2**24, 3)):
        positions = sorted(rng.choice(n, k, replace=False).tolist())
        assert page["read_positions"](reference_sparse.gap_bits(positions, n), n, k) == positions


@pytest.mark.parametrize(("bits", "largest", "rows"), [(4, 7, 1), (2, 1, 1), (4, 5, 1), (8, 100, 2)])
def test_the_programs_make_the_references_tables(page: dict[str, Any], bits: int, largest: int, rows: int) -> None:
    alphabet, width = (coders.symbol_bytes(bits, largest), bits) if rows == 1 else (coders.tokens(largest), 4)
    sent = bytes(range(1, 256, 7))
    marginals, rest = entropy.read_marginals(sent, alphabet, width, rows)
    counted = [value for row in marginals for value in row if value]
    assert [page["marginal"](b) for b in sent[: len(sent) - len(rest)]] == counted
    weights = page["weights"](alphabet, width, marginals)
    assert weights == entropy.weights_of(alphabet, width, marginals)
    assert page["lengths"](weights) == entropy.lengths_from(weights)


def test_the_programs_share_as_the_references_do(page: dict[str, Any]) -> None:
    levels = [0, 3, 31, 5, 8, 30, 1]
    found = stepped.shares((3, 17, levels), 0, stepped.ONE)
    assert page["slots"](levels, 17) == [*found[:7], found[255]]
    assert sum(page["slots"](levels, 17)) == 4096


def test_the_codec_guide_names_every_codec_and_its_examples_run() -> None:
    guide = (DOCS / "codecs.md").read_text()
    assert all(f"| `{name}` |" in guide for name in codecs.names())
    section = re.search(r"## From Python\n(.*?)\n## ", guide, re.DOTALL)
    assert section is not None
    programs = re.findall(r"```python\n(.*?)```", section[1], re.DOTALL)
    assert len(programs) == 2  # the second goes on where the first ended
    exec(compile("".join(programs), "docs/codecs.md", "exec"), {})
