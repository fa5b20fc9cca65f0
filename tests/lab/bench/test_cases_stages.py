"""`bench codecs --stage` narrows the stages of what has them."""

import pytest

from edgegossip.lab.bench.cases import parse_cases
from edgegossip.types import ConfigError


def test_a_stage_leaves_out_who_cannot_have_it() -> None:
    stages = {case.name: case.stages for case in parse_cases((), ("huffman", "elias"))}
    assert stages["qsgd"] == ("huffman", "elias") and stages["topk"] == ()
    assert "signsgd" not in stages


def test_ans_is_for_codes_of_three_and_four_bits() -> None:
    assert [case.label for case in parse_cases(("qsgd", "elastiquant:bits=8"), ("ans",))] == ["qsgd"]


@pytest.mark.parametrize(("codecs", "stage"), [((), "huffmann"), (("signsgd",), "huffman")])
def test_a_stage_that_none_has_is_refused(codecs: tuple[str, ...], stage: str) -> None:
    with pytest.raises(ConfigError, match=f"^--stage {stage}: none of these codecs has it$"):
        parse_cases(codecs, (stage,))
