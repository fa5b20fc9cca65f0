"""The trial of the container image: it looks inside, and fails at an image that is not right."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SMOKE = Path(__file__).parents[2] / "deploy/oci/smoke.sh"
# Like podman and docker, it gives a container standard input only where it is told to. Its
# container is this machine.
ENGINE = """#!/bin/sh
case "$*" in
*--version) echo "edgegossip, version 0" ;;
*--interactive*--entrypoint\\ python*) exec python3 - ;;
*--entrypoint\\ python*) exec python3 - </dev/null ;;
*) exit 7 ;;
esac
"""


@pytest.mark.skipif(os.getuid() == 990, reason="it looks for a container that runs as 990, and this would be one")
def test_an_image_that_runs_as_somebody_else_is_not_passed(tmp_path: Path) -> None:
    (engine := tmp_path / "engine").write_text(ENGINE)
    engine.chmod(0o755)
    env = os.environ | {"ENGINE": str(engine)}
    done = subprocess.run(["sh", SMOKE, "image"], env=env, capture_output=True, text=True)
    assert done.returncode not in (0, 7) and "AssertionError" in done.stderr
