"""What a run says before it starts."""

from __future__ import annotations

import pytest

from edgegossip import recipe as recipes
from edgegossip.launch.preflight import codec_notice


@pytest.mark.parametrize("name, coarse", [("fp32", False), ("8-bit-elastiquant", False), ("topk", True), ("dgc", True)])
def test_coarse_codecs_are_named_where_whole_models_travel(name: str, coarse: bool) -> None:
    notice = codec_notice(recipes.load("quickstart-gossip", [f"codec.name={name}"]))
    assert (f"codec {name} changes a vector by " in notice) == coarse
    assert not codec_notice(recipes.load("quickstart-server", [f"codec.name={name}"]))
