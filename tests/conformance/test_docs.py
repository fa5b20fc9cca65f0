"""docs/wire-format.md and docs/codecs.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edgegossip import codecs, frame
from edgegossip.codecs.base import MAX_PARAMS_BYTES
from edgegossip.layout import Layout, TensorSpec

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


def test_the_codec_guide_names_every_codec_and_its_examples_run() -> None:
    guide = (DOCS / "codecs.md").read_text()
    assert all(f"| `{name}` |" in guide for name in codecs.names())
    section = re.search(r"## From Python\n(.*?)\n## ", guide, re.DOTALL)
    assert section is not None
    programs = re.findall(r"```python\n(.*?)```", section[1], re.DOTALL)
    assert len(programs) == 2  # the second goes on where the first ended
    exec(compile("".join(programs), "docs/codecs.md", "exec"), {})
