"""`node` started by hand: what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from edgegossip.launch.board import run_member  # noqa: E402
from edgegossip.node import entering  # noqa: E402
from edgegossip.node.main import NodeOptions  # noqa: E402
from edgegossip.types import ConfigError  # noqa: E402


class Began(Exception):
    """It would join now."""


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NodeOptions:
    def began(*_: object) -> None:
        raise Began

    monkeypatch.setattr(entering, "join", began)
    return NodeOptions(
        name="pi-02",
        listen="127.0.0.1:0",
        peers=(),
        coordinator=None,
        insecure=True,
        identity=None,
        runs_dir=tmp_path / "runs",
        managed=False,
        restarted_s=None,
        members=(),
        run_id=b"",
        save_to=None,
    )


@pytest.mark.parametrize("seed", ["192.0.2.2:7761", "[2001:db8::1]:7761"])
def test_a_board_that_others_cannot_reach_does_not_join_them(options, seed):
    with pytest.raises(ConfigError, match=r"--listen 127.0.0.1:0: only this machine.*say --listen 0.0.0.0:7700"):
        run_member(None, (), None, ("127.0.0.1:7761", seed), options)


@pytest.mark.parametrize(
    ("seed", "changes"),
    [
        ("127.0.0.1:7761", {}),
        ("localhost:7761", {}),
        ("192.0.2.2:7761", {"listen": "0.0.0.0:0"}),
        ("192.0.2.2:7761", {"advertise": "192.0.2.9:7700"}),  # something passes connections on to it
    ],
)
def test_who_can_be_reached_may_join(options, seed, changes):
    with pytest.raises(Began):
        run_member(None, (), None, (seed,), replace(options, **changes))
