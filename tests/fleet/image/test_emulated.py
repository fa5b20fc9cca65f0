"""A board's files under user-mode emulation: torch loads, integers train, and frames are this
machine's byte for byte."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.fleet.image import emulated

CACHE = Path(os.environ.get("EDGEGOSSIP_IMAGES", Path.home() / ".cache/edgegossip/images"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_boards_files_train_and_encode_as_this_machine_does():
    trees = sorted(CACHE.glob("tree-*/root"), key=lambda tree: tree.stat().st_mtime)
    if not trees or not shutil.which("qemu-aarch64-static"):
        pytest.skip(
            f"needs qemu-aarch64-static and a built tree in {CACHE} (make image-smoke, or EDGEGOSSIP_IMAGES=DIR)"
        )
    about = json.loads((trees[-1].parent / "image.json").read_text())
    emulated.agree(emulated.on_the_board(trees[-1], about["python"], 1500), emulated.here(200))
