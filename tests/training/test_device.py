"""Devices and precisions: what is asked for is there or named; mixed precision, clipping and the
gradient scaler on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgegossip import training
from edgegossip.recipe import TrainingSection
from edgegossip.training import device as devices
from edgegossip.training.check import check_device
from edgegossip.training.names import call_custom
from edgegossip.types import ConfigError, HostError, UsageError
from tests.training.fakes import recipe

GPUS = [*(["cuda"] if torch.cuda.is_available() else []), *(["mps"] if torch.backends.mps.is_available() else [])]
DEVICES = ["cpu", *GPUS]
CNN = {"name": "cnn", "params": {"channels": [8, 8], "hidden": 16}}


def board(model: dict[str, Any] = CNN, **settings: Any) -> Any:
    return training.build_workload(recipe(model=model, training={"device": "cpu", **settings}), 0)


def test_auto_is_a_gpu_that_is_there_and_int8_is_the_cpus() -> None:
    assert devices.select_device(TrainingSection()).type == (GPUS[0] if GPUS else "cpu")
    assert devices.select_device(TrainingSection(precision="int8")).type == "cpu"
    assert devices.select_device(TrainingSection(device="cpu")).type == "cpu"


def test_a_gpu_that_is_not_there_is_named_with_what_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(HostError, match=r'device = "cuda": torch .* sees no CUDA GPU.*docs/training'):
        devices.select_device(TrainingSection(device="cuda"))
    with pytest.raises(HostError, match="sees no Apple GPU"):
        devices.select_device(TrainingSection(device="mps"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(HostError, match=r'"cuda:1": torch .* sees 1 CUDA GPU;'):
        devices.select_device(TrainingSection(device="cuda:1"))
    assert devices.select_device(TrainingSection(device="auto")) == torch.device("cuda")


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:-1", "CUDA", "cpu:0", ""])
def test_a_device_that_is_none_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match="must be auto, cpu, cuda, cuda:N or mps"):
        check_device(TrainingSection(device=wanted))


def test_int8_on_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match='"int8" computes on the CPU'):
        check_device(TrainingSection(device="cuda", precision="int8"))


@pytest.mark.parametrize("settings", [{"precision": "int8"}, {"precision": "fp16"}, {"memory": "low"}])
def test_what_cannot_be_recorded_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="training.cuda_graph records whole steps, which training"):
        check_device(TrainingSection(cuda_graph=True, **settings))


def test_a_recorded_step_is_the_gpus_alone() -> None:
    plain, asked = board(), board(cuda_graph=True)
    x = plain.initial(1)
    np.testing.assert_array_equal(asked.local_update(x, 0).delta, plain.local_update(x, 0).delta)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "model", [{"name": "resnet8", "norm": "batchnorm"}, {"name": "resnet8", "norm": "evonorm-s0"}, CNN]
)
def test_a_recorded_step_is_the_plain_one(model: dict[str, Any], precision: str) -> None:
    """Two boards share a module, as in a study; the second has its own statistics and numbers."""
    of = {"device": "cuda", "precision": precision, "lr": 0.05, "clip": 1.0, "local_steps": 3, "deterministic": True}
    try:
        plain, recorded = (
            training.build_workloads(recipe(model=model, training={**of, "cuda_graph": graph}))
            for graph in (False, True)
        )
        x = plain[0].initial(1)
        for t in range(3):
            for node in (0, 1):
                expected, found = plain[node].local_update(x, t), recorded[node].local_update(x, t)
                np.testing.assert_allclose(found.delta, expected.delta, atol=1e-6)
                assert found.loss == pytest.approx(expected.loss, rel=1e-6)
            x = x + expected.delta
    finally:
        torch.use_deterministic_algorithms(False)
    before, after = (made[1].evaluate(x) for made in (plain, recorded))
    assert after.loss == pytest.approx(before.loss, rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_recording_leaves_statistics_and_random_numbers_as_they_were() -> None:
    torch.cuda.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).cuda()
    inputs = torch.randn(6, 5, device="cuda")
    torch.cuda.manual_seed(3)
    gradient = devices.RecordedGradient(net, lambda x, _: net(x).square().mean(), torch.autograd.backward, inputs, None)
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    assert int(net[1].num_batches_tracked) == 0 and not net[1].running_mean.any()
    gradient(inputs, None)
    assert int(net[1].num_batches_tracked) == 1 and net[1].running_mean.any()
    drawn = {float(gradient(inputs, None)) for _ in range(4)}
    assert len(drawn) > 1  # dropout draws anew each time


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_model_that_waits_for_the_gpu_cannot_be_recorded() -> None:
    net = nn.Linear(5, 1).cuda()

    def loss_of(inputs: torch.Tensor, _: Any) -> torch.Tensor:
        made = net(inputs).sum()
        return made * made.item()

    with pytest.raises(ConfigError, match=r"cannot be recorded .*set training.cuda_graph = false"):
        devices.RecordedGradient(net, loss_of, torch.autograd.backward, torch.ones(2, 5, device="cuda"), None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns_and_resumes_bit_for_bit(precision: str, device: str) -> None:
    settings = {"precision": precision, "device": device, "lr": 0.1, "clip": 1.0, "local_steps": 6}
    straight, resumed = board(**settings), board(**settings)
    x = straight.initial(1)
    before = straight.evaluate(x)
    for t in range(12):
        x = x + straight.local_update(x, t).delta
    after = straight.evaluate(x)
    assert after.loss < 0.7 * before.loss and x.dtype == np.float32
    assert straight._shared.vector.module[0].weight.dtype == torch.float32  # the master values
    resumed.restore(straight.snapshot())
    expected, found = straight.local_update(x, 12), resumed.local_update(x, 12)
    if device == "cpu":
        np.testing.assert_array_equal(found.delta, expected.delta)
    else:
        np.testing.assert_allclose(found.delta, expected.delta, atol=1e-4)


def test_half_precision_is_another_arithmetic() -> None:
    updates = {p: board(precision=p).local_update(board().initial(1), 0) for p in ("fp32", "bf16")}
    one, other = updates["fp32"].delta, updates["bf16"].delta
    assert not np.array_equal(one, other)
    assert float(one @ other) / float(np.linalg.norm(one) * np.linalg.norm(other)) > 0.99


def test_a_step_whose_scaled_gradients_overflow_is_left_out_and_the_scale_falls() -> None:
    net = nn.Linear(2, 1)
    section = TrainingSection(precision="fp16", device="cpu")
    precision, sgd = devices.Precision.of(section, torch.device("cpu")), torch.optim.SGD(net.parameters(), 0.1)
    before = net.weight.detach().clone()
    precision.backward((net(torch.full((1, 2), 1e36))).sum())
    precision.step(sgd, 1.0)
    assert torch.equal(net.weight, before)
    kept = precision.snapshot()
    assert kept["scaler"].tolist() == [32768.0, 0.0]
    sgd.zero_grad()
    precision.backward(net(torch.ones(1, 2)).sum())
    precision.step(sgd, 0.0)
    torch.testing.assert_close(net.weight, before - 0.1)
    fresh = devices.Precision.of(section, torch.device("cpu"))
    fresh.restore(kept["scaler"])
    assert fresh.snapshot()["scaler"].tolist() == [32768.0, 0.0]
    for wrong in (None, np.zeros(3), np.array([0.0, 0.0]), np.array([np.nan, 0.0])):
        with pytest.raises(UsageError, match="not one of this workload"):
            fresh.restore(wrong)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_is_no_longer_than_the_clip(scaled: bool) -> None:
    net = nn.Linear(3, 1, bias=False)
    section = TrainingSection(precision="fp16" if scaled else "fp32", device="cpu")
    precision, sgd = devices.Precision.of(section, torch.device("cpu")), torch.optim.SGD(net.parameters(), 1.0)
    for length, moved in ((30.0, 2.0), (0.5, 0.5)):
        before = net.weight.detach().clone()
        sgd.zero_grad()
        precision.backward(net(torch.tensor([[length, 0.0, 0.0]])).sum())
        precision.step(sgd, 2.0)
        assert (net.weight - before).norm().item() == pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_random_layers_repeat_and_torchs_state_is_left_alone(device: str) -> None:
    where = torch.device(device)
    torch.manual_seed(7)
    expected = torch.rand(3, device=where)
    torch.manual_seed(7)
    drawn = []
    for _ in range(2):
        with devices.seeded(where, 11):
            drawn.append(torch.rand(3, device=where))
    assert torch.equal(*drawn) and not torch.equal(drawn[0], expected)  # by the seed, not by torch's state
    assert torch.equal(torch.rand(3, device=where), expected)


def test_another_device_is_seeded_and_its_state_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    state, during = [7], []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state[0])
    for name in ("manual_seed", "set_rng_state"):
        monkeypatch.setattr(torch.mps, name, lambda value: state.__setitem__(0, value))
    with devices.seeded(torch.device("mps"), 11):
        during += state
        state[0] = 12
    assert (during, state) == ([11], [7])


def test_deterministic_kernels_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        devices.set_up(TrainingSection(device="cpu"))
        assert not torch.are_deterministic_algorithms_enabled()
        devices.set_up(TrainingSection(device="cpu", deterministic=True))
        assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_gives_the_same_but_for_rounding(device: str) -> None:
    here, there = board(lr=0.05), board(lr=0.05, device=device)
    x = here.initial(1)
    assert (there.initial(1) == x).all()
    one, other = here.local_update(x, 0), there.local_update(x, 0)
    np.testing.assert_allclose(other.delta, one.delta, atol=1e-4)
    assert there.evaluate(x).loss == pytest.approx(here.evaluate(x).loss, rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_a_probe_computes_on_the_device(precision: str, device: str) -> None:
    assert f"trains on {device}" in devices.probe(TrainingSection(device=device, precision=precision))


def test_a_torch_that_sees_a_gpu_and_cannot_compute_on_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")

    monkeypatch.setattr(torch.nn.functional, "conv2d", fail)
    with pytest.raises(
        HostError, match=r"cannot compute on cpu .CUDA error: no kernel image is available[^\n]*device.: set"
    ):
        devices.probe(TrainingSection(device="cpu"))


@pytest.mark.parametrize("whose", ["of the package", "one's own"])
@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_a_device_that_is_full_is_said_with_the_cure(where: str, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = board()
    x = made.initial(1)

    def full(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    forward = full if whose == "of the package" else lambda *given: call_custom("mine:build", full)
    monkeypatch.setattr(made._shared.vector.module, "forward", forward)
    with pytest.raises(
        HostError, match=r"board 0: cpu has no memory left for this batch: set a smaller training.batch_size"
    ):
        made.local_update(x, 0) if where == "training" else made.evaluate(x)


def test_an_operation_without_a_deterministic_kernel_is_said_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    made = board()

    def fail(*given: Any) -> Any:
        raise RuntimeError("scatter_add does not have a deterministic implementation, but you set it\nand more")

    monkeypatch.setattr(made._shared.vector.module, "forward", fail)
    with pytest.raises(ConfigError, match=r"board 0: scatter_add does not .* .set training.deterministic = false"):
        made.local_update(made.initial(1), 0)
    monkeypatch.setattr(made._shared.vector.module, "forward", lambda x: x.no_such_method())
    with pytest.raises(AttributeError):
        made.local_update(made.initial(1), 0)
