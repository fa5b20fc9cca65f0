"""The models that a run has left: files, checkpoints, averages, and what of a model is a board's
own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from click.testing import CliRunner
from numpy.typing import NDArray

import edgegossip
from edgegossip import recipe as recipes
from edgegossip.cli.main import cli
from edgegossip.engine.server_records import Progress
from edgegossip.flower.checkpoints import BoardCheckpointer, CoordinatorCheckpointer
from edgegossip.gossip.base import RoundDone
from edgegossip.layout import Layout, TensorSpec
from edgegossip.modelfile import ModelFile, write_model
from edgegossip.node.gossip_node import LEAVE_S
from edgegossip.node.spec import NodeSpec, make_algorithm, make_view
from edgegossip.node.storage import Checkpointer, about_model
from edgegossip.report.models import RunModels
from edgegossip.training.base import KEPT
from edgegossip.training.workload import TorchWorkload
from edgegossip.types import ConfigError, DataError
from tests.node.fakes import ListSink, Quadratic
from tests.training.fakes import recipe

RUN_ID = bytes(range(16))
BOARDS = ("board-0", "board-1")


def folder(path: Path, **sections: dict[str, Any]) -> Path:
    """An empty run folder."""
    chosen = recipe(**{"run": {"nodes": 2, "rounds": 9}, **sections})
    (path / "checkpoint").mkdir(parents=True)
    (path / "recipe.toml").write_text(recipes.to_toml(chosen))
    (path / "metrics.jsonl").write_text("")
    (path / "run.json").write_text(json.dumps({"run_id": RUN_ID.hex(), "members": list(BOARDS)}))
    return path


def put(run: Path, name: str, travels: int, arrays: Mapping[str, NDArray[Any]], round: int = 9) -> None:
    write_model(run / "checkpoint" / name, arrays, about_model(name.partition(".")[0], round, travels))


def model(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["model", "save", *map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two boards that share a body and a frozen base, and have heads of their own; one file of each
    format."""
    made = folder(tmp_path / "run")
    for k, name in enumerate(("board-0.npz", "board-1.safetensors")):
        arrays = {
            "body": np.array([1.0, 3.0], np.float32) + 2 * k,
            "phase": np.array([1j, 2.0], np.complex64) * (1 + 2 * k),
            "base": np.full(3, 7.0, np.float32),
            "steps": np.array(90 + k, np.int64),
            "head": np.full(2, float(k), np.float32),
            "empty": np.zeros((0, 2), np.float32),
        }
        put(made, name, 2, arrays)
    return made


def test_by_default_what_travels_is_averaged_and_heads_are_left_out(run: Path, tmp_path: Path) -> None:
    said = model(run, "-o", tmp_path / "m.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(found["body"], [2.0, 4.0])
    np.testing.assert_array_equal(found["phase"], np.array([2j, 4.0], np.complex64))
    np.testing.assert_array_equal(found["base"], [7.0, 7.0, 7.0])
    assert found["steps"] == 90 and found["empty"].shape == (0, 2)
    assert said["left_out"] == ["head"] and "head" not in found
    assert said["board"] == "averaged" and said["round"] == "9" and said["fp32_bytes"] == 4 * 4
    # (1 + 1 + 1 + 4) / (4 + 16 + 4 + 16)
    assert said["away"] == pytest.approx(dict.fromkeys(BOARDS, (7 / 40) ** 0.5))
    about = ModelFile(tmp_path / "m.safetensors")
    assert about.travels == ("body", "phase") and about.about["board"] == "averaged"


def test_a_boards_own_model_has_what_stays_on_it(run: Path, tmp_path: Path) -> None:
    said = model(run, "--board", "board-1", "-o", tmp_path / "m.npz")
    found = ModelFile(tmp_path / "m.npz")
    np.testing.assert_array_equal(found["head"], [1.0, 1.0])
    np.testing.assert_array_equal(found["body"], [3.0, 5.0])
    assert list(found) == ["body", "phase", "base", "steps", "head", "empty"] and said["away"] == {}
    assert said["model"].endswith("board-1.safetensors")


def test_what_is_said_to_people(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["model", "save", str(run), "-o", str(tmp_path / "m.npz")])
    assert "the average over 2 boards after 9 rounds, " in done.output
    assert "; what travelled of it is 16 B in fp32\n" in done.output  # its file has a frozen base, too
    assert "41.83% of its norm away (root mean square); farthest: board-0" in done.output
    assert "left out, because each board has its own: head; --board NAME has them" in done.output


def test_the_folders_of_boards_that_ran_by_hand_are_averaged(tmp_path: Path) -> None:
    for k, name in enumerate(BOARDS):
        put(folder(tmp_path / name), f"{name}.npz", 1, {"w": np.full(2, k, np.float32)})
    model(tmp_path / "board-0", tmp_path / "board-1", "-o", tmp_path / "m.npz")
    np.testing.assert_array_equal(ModelFile(tmp_path / "m.npz")["w"], [0.5, 0.5])
    other = folder(tmp_path / "other")
    (other / "run.json").write_text(json.dumps({"run_id": "00" * 16, "members": ["a", "b"]}))
    with pytest.raises(ConfigError, match="of different runs"):
        model(tmp_path / "board-0", other, "-o", tmp_path / "m.npz")


def test_what_is_not_there_is_named_with_what_is(run: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "m.npz")
    with pytest.raises(
        ConfigError, match="no board board-2: this run has averaged, board-0, board-1; did you mean board-"
    ):
        model(run, "--board", "board-2", *out)
    with pytest.raises(ConfigError, match="round 3 of board-0 is not kept; rounds that are: 9"):
        model(run, "--board", "board-0", "--round", 3, *out)
    with pytest.raises(ConfigError, match="a model file ends in .npz, .safetensors, .onnx, .pt2"):
        model(run, "-o", tmp_path / "m.pth")
    with pytest.raises(DataError, match="no model yet"):
        model(folder(tmp_path / "empty"), *out)
    put(run, "board-1.safetensors", 1, {"other": np.zeros(2, np.float32)})
    with pytest.raises(DataError, match="board-0 and board-1 have different tensors"):
        model(run, *out)
    assert not (tmp_path / "m.npz").exists()


class WithHead(Quadratic):
    """A workload that keeps a head of its own."""

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {f"{KEPT}head": np.full(2, 5.0, np.float32)}


def test_rounds_that_are_kept_as_checkpoints_of_a_run_that_was_stopped(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", gossip={"algorithm": "choco-sgd"}, checkpoint={"keep": 3, "slack_s": 0.0})
    chosen, sink = recipes.load(str(run / "recipe.toml")), ListSink()
    models: dict[int, list[NDArray[np.float32]]] = {}
    for k, name in enumerate(BOARDS):
        workload = WithHead(np.full(6, k, np.float32))
        spec = NodeSpec(chosen, name, BOARDS, RUN_ID)
        view = make_view(spec, workload.layout).with_down(frozenset(BOARDS) - {name})
        checkpointer, algorithm = (
            Checkpointer(spec, view, workload, run / "checkpoint" / name, sink),
            make_algorithm(chosen),
        )
        state, _ = algorithm.start(algorithm.init(workload.initial(0), view))
        for round in (1, 2, 3):
            local = workload.local_update(algorithm.model(state), round)
            state, actions = algorithm.step(state, local)
            assert any(isinstance(action, RoundDone) for action in actions)
            checkpointer.offer(state, round)
            checkpointer.ready()
            models.setdefault(round, []).append(algorithm.model(state))
        checkpointer.close(LEAVE_S)
    model(run, "-o", tmp_path / "last.npz")
    last = ModelFile(tmp_path / "last.npz")
    assert list(last) == ["a", "b", "head"] and last.travels == ("a", "b") and last.about["round"] == "3"
    mean = np.mean(models[3], 0)
    np.testing.assert_allclose(np.concatenate([last["a"], last["b"]]), mean, rtol=1e-6)
    said = model(run, "--board", "board-1", "--round", 2, "-o", tmp_path / "second.npz")
    second = ModelFile(tmp_path / "second.npz")
    np.testing.assert_array_equal(np.concatenate([second["a"], second["b"]]), models[2][1])
    assert said["round"] == "2"
    with pytest.raises(ConfigError, match="round 7 of board-1 is not kept; rounds that are: 1, 2, 3"):
        model(run, "--board", "board-1", "--round", 7, "-o", tmp_path / "no.npz")
    # one finishes and the other is lost: the average is of the one, the other can be asked for
    put(run, "board-0.npz", 2, {"a": last["a"] + 1, "b": last["b"] + 1})
    done = CliRunner().invoke(cli, ["model", "save", str(run), "-o", str(tmp_path / "m.npz")])
    assert "the average over 1 board, without board-1, which did not finish, after 9 rounds" in done.output
    np.testing.assert_array_equal(ModelFile(tmp_path / "m.npz")["a"], last["a"] + 1)
    assert model(run, "--board", "board-1", "-o", tmp_path / "m.npz")["round"] == "3"


LAYOUT = Layout.of([TensorSpec("w", (2,)), TensorSpec("b", ())])


def test_a_server_run_has_the_coordinators_model_and_what_boards_keep(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", run={"mode": "server", "nodes": 2, "rounds": 9})
    w = np.ones(2, np.float32)
    put(run, "model.safetensors", 2, {"w": w, "b": np.array(3.0, np.float32), "tied": w})
    for k, name in enumerate(BOARDS):
        put(run, f"{name}.stays.npz", 0, {"head": np.full(2, k, np.float32), "steps": np.array(4, np.int64)})
    said = model(run, "-o", tmp_path / "m.npz")
    assert said["board"] == "coordinator" and said["left_out"] == ["head"]
    assert list(ModelFile(tmp_path / "m.npz")) == ["w", "b", "tied", "steps"]
    model(run, "--board", "board-1", "-o", tmp_path / "own.npz")
    own = ModelFile(tmp_path / "own.npz")
    assert list(own) == ["w", "b", "tied", "head", "steps"] and own.travels == ("w", "b")
    np.testing.assert_array_equal(own["head"], [1.0, 1.0])
    (run / "checkpoint" / "board-0.stays.npz").unlink()
    with pytest.raises(ConfigError, match="what stays on board-0 is not here"):
        model(run, "--board", "board-0", "-o", tmp_path / "no.npz")


def test_where_nothing_stays_a_boards_model_is_the_coordinators(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", run={"mode": "server", "nodes": 2, "rounds": 9})
    put(run, "model.npz", 1, {"w": np.ones(2, np.float32)})
    said = model(run, "--board", "board-1", "-o", tmp_path / "own.npz")
    own = ModelFile(tmp_path / "own.npz")
    assert said["board"] == "board-1" and list(own) == ["w"] and own.travels == ("w",)
    with pytest.raises(ConfigError, match="no board board-2: this run has coordinator, board-0, board-1"):
        model(run, "--board", "board-2", "-o", tmp_path / "no.npz")


@dataclass(frozen=True)
class _Stopped:
    """A board after three rounds that kept its head for itself."""

    head: NDArray[Any] | None
    round: int = 3

    def snapshot(self) -> dict[str, Any]:
        return {"training": {} if self.head is None else {f"{KEPT}head": self.head}}

    def restore(self, found: Mapping[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("head", [None, np.ones(2, np.float32)], ids=["all travels", "a head stays"])
def test_what_stays_on_a_board_of_a_script_that_was_stopped(head: NDArray[Any] | None, tmp_path: Path) -> None:
    run = folder(tmp_path / "run", run={"mode": "server", "nodes": 2, "rounds": 9, "script": "train.py"})
    put(run, "model.npz", 1, {"w": np.ones(2, np.float32)})
    section = recipes.load(str(run / "recipe.toml")).checkpoint
    kept = BoardCheckpointer("board-0", run / "checkpoint" / "board-0", LAYOUT, RUN_ID, BOARDS, section, ListSink())
    kept.save(_Stopped(head))
    kept.close(over=False)
    models = RunModels([run])
    assert list(models.model("board-0").arrays) == ["w"] + ["head"] * (head is not None)
    if head is None:
        assert list(models.model("board-1").arrays) == ["w"]
    else:
        with pytest.raises(ConfigError, match="what stays on board-1 is not here"):
            models.model("board-1")


def test_a_round_of_a_server_run_that_was_stopped(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", run={"mode": "server", "nodes": 2, "rounds": 9})
    chosen = recipes.load(str(run / "recipe.toml"))
    checkpointer = CoordinatorCheckpointer(
        "coordinator",
        run / "checkpoint" / "coordinator",
        LAYOUT,
        RUN_ID,
        BOARDS,
        chosen.checkpoint,
        ListSink(),
    )
    for round in (3, 4):
        checkpointer.save(Progress(round, np.full(3, round, np.float32)))
        checkpointer.flush()
    checkpointer.close(over=False)
    model(run, "--round", 3, "-o", tmp_path / "m.npz")
    found = ModelFile(tmp_path / "m.npz")
    np.testing.assert_array_equal(found["w"], [3.0, 3.0])
    assert found["b"].shape == () and found.about["round"] == "3"
    assert model(run, "-o", tmp_path / "m.npz")["round"] == "4"


def keep(run: Path, board: str, round: int, merit: float, value: float) -> None:
    about = {**about_model(board, round, 1), "merit": repr(merit)}
    arrays = {"w": np.full(2, value, np.float32), "base": np.full(3, 7.0, np.float32)}
    write_model(run / "best" / f"{board}.{round}.npz", arrays, about)


def test_the_best_round_is_that_of_all_boards_together(tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    for k, board in enumerate(BOARDS):
        put(run, f"{board}.npz", 1, {"w": np.zeros(2, np.float32), "base": np.full(3, 7.0, np.float32)})
        keep(run, board, 3, [0.9, 0.1][k], 30 + k)
        keep(run, board, 6, [0.7, 0.8][k], 60 + k)
    keep(run, "board-0", 8, 0.99, 80)  # which the other did not keep
    said = model(run, "--best", "-o", tmp_path / "m.npz")
    assert said["round"] == "6" and ModelFile(tmp_path / "m.npz")["w"].tolist() == [60.5, 60.5]
    assert model(run, "--best", "--board", "board-1", "-o", tmp_path / "m.npz")["round"] == "6"
    assert ModelFile(tmp_path / "m.npz")["w"].tolist() == [61.0, 61.0]
    assert model(run, "--round", 8, "--board", "board-0", "-o", tmp_path / "m.npz")["round"] == "8"
    assert edgegossip.Result(run).state_dict(round=edgegossip.Result(run).best_round)["w"].tolist() == [60.5, 60.5]
    assert model(run, "-o", tmp_path / "m.npz")["round"] == "9"
    RunModels([run]).drop_all_but_best()
    assert sorted(path.name for path in (run / "best").iterdir()) == ["board-0.6.npz", "board-1.6.npz"]


def test_where_no_round_is_kept_by_all_the_best_is_refused_in_a_sentence(tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    for board in BOARDS:
        put(run, f"{board}.npz", 1, {"w": np.zeros(2, np.float32)})
    with pytest.raises(ConfigError, match=r"checkpoint\.best = true"):
        model(run, "--best", "-o", tmp_path / "m.npz")
    keep(run, "board-0", 3, 0.9, 1.0)
    keep(run, "board-1", 4, 0.9, 1.0)
    with pytest.raises(ConfigError, match="each board kept others: name a --round"):
        model(run, "--best", "-o", tmp_path / "m.npz")
    both = CliRunner().invoke(cli, ["model", "save", str(run), "--best", "--round", "3", "-o", str(tmp_path / "m.npz")])
    assert both.exit_code != 0 and "--best" in both.output


def test_of_a_server_run_the_best_is_the_coordinators(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", run={"nodes": 2, "rounds": 9, "mode": "server"})
    put(run, "model.npz", 1, {"w": np.zeros(2, np.float32)}, round=7)  # it ended early
    keep(run, "coordinator", 4, 0.9, 4.0)
    assert model(run, "--best", "-o", tmp_path / "m.npz")["round"] == "4"
    assert ModelFile(tmp_path / "m.npz")["w"].tolist() == [4.0, 4.0]
    assert (
        model(run, "-o", tmp_path / "m.npz")["round"]
        == "7"
        == model(run, "--round", 7, "-o", tmp_path / "m.npz")["round"]
    )
    with pytest.raises(ConfigError, match="rounds that are: 4, 7"):
        RunModels([run]).model(round=9)


@pytest.mark.parametrize("board", [None, "board-0"])
def test_an_adapter_is_what_travelled_alone(board: str | None, run: Path, tmp_path: Path) -> None:
    named = () if board is None else ("--board", board)
    made = model(run, *named, "--adapter", "-o", tmp_path / "m.safetensors")
    assert made["left_out"] == []  # of an adapter nothing is missing
    assert list(ModelFile(tmp_path / "m.safetensors")) == ["body", "phase"]
    assert ModelFile(tmp_path / "m.safetensors").about["travels"] == "2"
    with pytest.raises(ConfigError, match="a program needs the whole model"):
        CliRunner().invoke(
            cli, ["model", "save", str(run), "--adapter", "-o", str(tmp_path / "m.onnx")], catch_exceptions=False
        )


def test_as_many_examples_set_the_scales_as_are_asked_for(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", training={"precision": "int8"})
    board = TorchWorkload.build(recipes.load(str(run / "recipe.toml")), 0)
    for name in BOARDS:
        put(run, f"{name}.npz", len(board.layout.tensors), board.state(board.initial(1)))
    assert model(run, "--examples", 8, "-o", tmp_path / "m.onnx")["calibrated"] == 8


def autoencoder(input_shape: tuple[int, ...], outputs: int, norm: str) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(input_shape[0], 2), torch.nn.Linear(2, outputs))


def test_a_program_of_data_without_classes_is_compared_by_its_outputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", train_inputs=np.eye(4, dtype=np.float32), test_inputs=np.eye(4, dtype=np.float32))
    name = f"{__name__}:autoencoder"
    run = folder(tmp_path / "run", data={"name": "npz", "dir": str(tmp_path)}, model={"name": name})
    arrays = {name: tensor.numpy() for name, tensor in autoencoder((4,), 4, "").state_dict().items()}
    for board in BOARDS:
        put(run, f"{board}.npz", 4, arrays)
    said = model(run, "-o", tmp_path / "m.pt2")
    assert said["accuracy"] is None and said["file_accuracy"] is None
    assert said["tested"] == 4 and said["difference"] < 1e-5
    done = CliRunner().invoke(cli, ["model", "save", str(run), "-o", str(tmp_path / "m.pt2")])
    assert "outputs for 4 test examples are at most" in done.output
