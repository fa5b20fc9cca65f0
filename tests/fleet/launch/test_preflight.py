"""What a run says before it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.preflight import (
    check_parts,
    codec_notice,
    notices,
    preflight,
)
from edgegossip.types import ConfigError, EdgegossipError, HostError


@pytest.mark.parametrize(
    ("name", "coarse"), [("fp32", False), ("8-bit-elastiquant", False), ("topk", True), ("dgc", True)]
)
def test_coarse_codecs_are_named_where_whole_models_travel(name: str, coarse: bool) -> None:
    notice = codec_notice(recipes.load("quickstart-gossip", [f"codec.name={name}"]))
    assert (f"codec {name} changes a vector by " in notice) == coarse
    assert not codec_notice(recipes.load("quickstart-server", [f"codec.name={name}"]))
    assert not codec_notice(recipes.load("quickstart-gossip", [f"codec.name={name}", "gossip.algorithm=choco-sgd"]))


@pytest.mark.parametrize(
    ("algorithm", "instead"),
    [("d2", "choco-sgd"), ("sgp", "quant-sgp"), ("parallel-sgd", "")],
)
def test_what_is_named_beside_a_coarse_codec_sends_differences_and_is_of_the_same_kind(
    algorithm: str, instead: str
) -> None:
    notice = codec_notice(recipes.load("quickstart-gossip", ["codec.name=topk", f"gossip.algorithm={algorithm}"]))
    assert notice.endswith(f"and so does {instead}, which sends differences") if instead else not notice


@pytest.mark.parametrize(
    ("settings", "coarse"),
    [
        (["codec.name=dither", "codec.params.bytes=100000"], False),  # of which the sample would take a part
        (["codec.name=dither", "codec.params.bytes=1000"], True),
        (["codec.name=auto"], False),  # as fine as links allow
        (["codec.name=auto", "codec.params.error=2"], True),
    ],
)
def test_a_codec_is_as_coarse_as_it_will_be(settings: list[str], coarse: bool) -> None:
    assert bool(codec_notice(recipes.load("quickstart-gossip", settings))) == coarse


def test_who_shares_out_a_folder_of_his_own_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", train_inputs=np.eye(8, dtype=np.float32), train_targets=np.arange(8) % 2)
    (notice,) = notices(recipes.load("quickstart-gossip", ["data.name=npz", f"data.dir={tmp_path}"]))
    assert 'set data.partition = "local"' in notice


def test_keys_of_the_other_mode_are_named():
    assert notices(recipes.load("quickstart-server")) == notices(recipes.load("quickstart-gossip")) == []
    (notice,) = notices(recipes.load("quickstart-server", ["gossip.algorithm=choco-sgd", "gossip.momentum=nesterov"]))
    assert notice == "gossip.algorithm and gossip.momentum have no effect with run.mode = server"
    (notice,) = notices(recipes.load("quickstart-gossip", ["server.min_nodes=2"]))
    assert notice == "server.min_nodes has no effect with run.mode = gossip"
    (notice,) = notices(recipes.load("quickstart-gossip", ["evaluation.where=coordinator"]))
    assert notice == "evaluation.where has no effect with run.mode = gossip"


@pytest.mark.parametrize(
    ("mode", "setting", "own"),
    [
        ("server", "gossip.malicious_nodes = 1", "server.malicious_nodes"),
        ("gossip", "server.malicious_nodes = 1", "gossip.malicious_nodes"),
        ("server", "gossip.deadline_s = 5.0", "server.deadline_s"),
    ],
)
def test_a_key_of_the_other_mode_that_this_one_has_as_well_is_refused(mode: str, setting: str, own: str) -> None:
    """Nobody may rely on what holds nothing."""
    wrong = recipes.load(f"quickstart-{mode}", [setting])
    with pytest.raises(ConfigError, match=f"{setting} is not read with run.mode = {mode}: set {own}$"):
        check_parts(wrong, MEMBERS)


def test_a_recipe_may_be_for_both_modes() -> None:
    both = ["gossip.deadline_s=5", "server.deadline_s=6"]
    for mode in ("gossip", "server"):
        check_parts(recipes.load(f"quickstart-{mode}", both), MEMBERS)


def test_a_command_looks_at_a_recipe_without_torch() -> None:
    """Which takes seconds to import, and which only what it starts needs."""
    look = """
import sys
from edgegossip import recipe as recipes
from edgegossip.fleet.launch.preflight import notices, preflight
for name in ("quickstart-gossip", "quickstart-server"):
    recipe = recipes.load(name)
    preflight(recipe, ("a", "b", "c", "d"))
    assert notices(recipe) == []
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert done.stdout == "False\nFalse\n", done.stderr


MEMBERS = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["training.task=regression"], ConfigError, "does not fit data whose targets are one class"),
        (["training.optimizer=adamm"], ConfigError, "did you mean adam"),
        (["training.optimizer=adam", "training.optimizer_params.beta=1"], ConfigError, "did you mean betas"),
        (["training.optimizer_params.lr=1"], ConfigError, "it has a key of its own, training.lr"),
        (["training.device=gpu"], ConfigError, "must be auto, cpu, cuda, cuda:N or mps"),
        (['model.keep=["haed.*"]'], ConfigError, "model mlp: keep: no tensor of the model matches haed"),
        (["gossip.algorithm=d2", "training.optimizer=adam"], ConfigError, "say training.optimizer = sgd"),
        (["outer.optimizer=adam"], ConfigError, "adam cannot be around dpsgd"),
        (["outer.optimizer=nesterov", "gossip.topology=directed-ring"], ConfigError, "at most 0.42 holds there"),
    ],
)
def test_what_a_recipe_says_of_training_is_looked_at_before_the_run(
    settings: list[str], error: type[EdgegossipError], words: str
) -> None:
    chosen = recipes.load("quickstart-gossip", settings)
    with pytest.raises(error, match=words):
        preflight(chosen, MEMBERS)


@pytest.mark.parametrize(
    ("recipe", "settings", "least"),
    [
        ("gossip", ["gossip.algorithm=choco-sgd", "codec.name=deadzone", "codec.params.bytes=10"], 62),
        ("gossip", ["gossip.algorithm=choco-sgd", "codec.name=auto", "codec.params.bytes=1"], 64),
        (
            "gossip",
            ["codec.name=error-feedback", *(f"codec.params.codec.{p}" for p in ("name=deadzone", "bytes=50"))],
            62,
        ),
        ("server", ["codec.name=dither", "codec.params.bytes=10"], 195),
        ("server", ["server.downlink=deadzone", "server.downlink_params.bytes=10"], 62),
    ],
)
def test_messages_that_would_hold_nothing_are_refused_before_the_run(
    recipe: str, settings: list[str], least: int
) -> None:
    with pytest.raises(ConfigError, match=f"hold next to nothing of 9,610 values; the smallest that do are {least}"):
        preflight(recipes.load(f"quickstart-{recipe}", settings), MEMBERS)
    enough = settings[-1].split("=")[0] + f"={least}"
    preflight(recipes.load(f"quickstart-{recipe}", [*settings[:-1], enough]), MEMBERS)


def test_a_gpu_that_is_not_there_is_missed_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HostError, match="sees no CUDA GPU"):
        preflight(recipes.load("quickstart-gossip", ["training.device=cuda"]), MEMBERS)
    preflight(recipes.load("quickstart-gossip", ["training.device=cpu"]), MEMBERS)


@pytest.mark.parametrize(("mode", "last"), [("gossip", 65_532), ("server", 65_535)])
def test_a_run_may_have_the_last_ports_that_there_are(mode: str, last: int) -> None:
    """Which is what one that needs one more is told to take."""
    preflight(recipes.load(f"quickstart-{mode}", [f"network.port={last}"]), MEMBERS)
    with pytest.raises(ConfigError, match=f"the nearest .*{last}$"):
        preflight(recipes.load(f"quickstart-{mode}", [f"network.port={last + 1}"]), MEMBERS)


def test_a_coordinator_does_not_evaluate_a_part_of_a_model() -> None:
    settings = ['model.keep=["3.*"]', "evaluation.where=coordinator"]
    with pytest.raises(ConfigError, match=r"model.keep leave a part .* set evaluation.where = .boards"):
        preflight(recipes.load("quickstart-server", settings), MEMBERS)


def test_an_outer_optimiser_of_a_coordinator_is_looked_at_before_the_run() -> None:
    chosen = ["outer.optimizer=nesterov"]
    preflight(recipes.load("quickstart-server", chosen), MEMBERS)
    for setting, said in (
        ("outer.consensus=0.5", "outer.consensus is for run.mode = gossip"),
        ("server.strategy=fedavgm", "fedavgm has an optimiser of its own"),
    ):
        wrong = recipes.load("quickstart-server", [*chosen, setting])
        with pytest.raises(ConfigError, match=said):
            preflight(wrong, MEMBERS)


def test_keys_that_a_script_does_not_go_by_are_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert notices(recipes.load(str(script), ["gossip.algorithm=sgp"])) == []
    settings = ["training.lr=0.5", 'model.keep=["head.*"]', "training.momentum=0.5", "training.device=cuda:99"]
    chosen = recipes.load(str(script), [*settings, "codec.name=dgc", "run.nodes=2"])
    preflight(chosen, ("board-0", "board-1"))
    said = [notice for notice in notices(chosen) if "train.py" in notice or "momentum" in notice]
    keys = "model.keep and training.momentum and training.lr and training.device"
    assert len(said) == 1 and all(key in said[0] for key in keys.split(" and "))
    assert said[0].startswith("train.py says itself what it trains: ")


@pytest.mark.parametrize(
    ("norm", "said"), [("evonorm-s0", 'model.norm = "evonorm-s0" became "range-evonorm"'), ("batchnorm", "")]
)
def test_what_int8_replaces_is_said_before_the_run(norm, said):
    settings = ["training.precision=int8", "model.name=resnet20", f"model.norm={norm}"]
    found = notices(recipes.load("cifar10-gossip", settings))
    assert len(found) == bool(said) and said in "".join(found)


@pytest.mark.parametrize(
    ("batch", "steps", "told"),
    [(1, 1, True), (2, 2, True), (1, 8, True), (16, 1, True), (17, 1, False), (32, 1, False)],
)
def test_messages_of_a_handful_of_examples_are_told(batch: int, steps: int, told: bool) -> None:
    small = {"training.batch_size": batch, "training.local_steps": steps}
    said = notices(recipes.with_settings(recipes.load("quickstart-gossip"), small))
    assert any("can read examples out of it" in notice for notice in said) == told


@pytest.mark.parametrize(
    ("algorithm", "codec", "told"),
    [
        ("deep-squeeze", "qsgd", "remembers what a message loses"),
        ("dpsgd", "qsgd", ""),
        ("deep-squeeze", "auto", ""),  # a dead zone where there is a memory
        ("choco-sgd", "co3", "has a memory of its own"),
        ("bagua-lp", "error-feedback", "has a memory of its own"),
        ("choco-sgd", "signsgd", ""),
    ],
)
def test_a_codec_that_fits_no_memory_is_told_where_there_is_one(algorithm: str, codec: str, told: str) -> None:
    said = notices(recipes.load("quickstart-gossip", [f"gossip.algorithm={algorithm}", f"codec.name={codec}"]))
    assert any("remembers what a message loses" in notice and told in notice for notice in said) == bool(told)
