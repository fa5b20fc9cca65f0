"""`edgegossip bench int8 --inference`: prediction with our kernels, and with the exported models in
onnxruntime, beside torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from edgegossip import int8, native
from edgegossip.int8 import qdq
from edgegossip.lab.bench.int8 import variants
from edgegossip.lab.bench.timing import in_turn

Row = dict[str, Any]
Predict = Callable[[], object]
HEAD = (
    "model       batch  threads  isa          int8 ms  layers ms  batchnorm ms  evonorm ms  speed-up  vs evonorm"
    "  onnx int8 ms  speed-up  onnx fp32 ms"
)
NOTES = (
    "ms: one prediction of the batch, medians in turn, onnxruntime after the others",
    "int8: a predictor (int8.predictor), layers: the same model layer by layer",
    "batchnorm, evonorm: torch, fp32, channels last; speed-up: of int8 over batchnorm",
    "onnx: onnxruntime, of the int8 model as QDQ and of the batchnorm model in fp32",
)
_OWN = ("int8", "batchnorm", "evonorm-s0")
_LAYERS = "int8 layers"
_AT_LEAST_S = 2.0


def measure(model: str, batch: int, threads: int, repeat: int) -> Row:
    """One row. The onnx figures are None where onnx or onnxruntime is not installed."""
    trainings = {name: variants.training_of(name, model, batch, 16) for name in _OWN}
    for training in trainings.values():
        training.model.eval()
    with TemporaryDirectory() as folder, torch.inference_mode():
        own = {name: _prediction(training) for name, training in trainings.items()}
        own |= {_LAYERS: own["int8"], "int8": _by_predictor(trainings["int8"])}
        seconds = in_turn(own, repeat, at_least_s=_AT_LEAST_S).medians()
        # Afterwards: onnxruntime's threads spin on the cores after each of its predictions.
        made = {f"onnx {name}": _onnx(trainings[name], name, Path(folder), threads) for name in ("int8", "batchnorm")}
        sessions = {name: run for name, run in made.items() if run is not None}
        seconds |= in_turn(sessions, repeat, at_least_s=_AT_LEAST_S).medians() if sessions else {}
    ms = {
        name: 1e3 * seconds[name] if name in seconds else None
        for name in (*_OWN, _LAYERS, "onnx int8", "onnx batchnorm")
    }
    ours, batchnorm, onnx = seconds["int8"], seconds["batchnorm"], seconds.get("onnx int8")
    return {
        "model": model,
        "batch": batch,
        "threads": threads,
        "isa": native.isa(),
        "predict_ms": ms["int8"],
        "layers_ms": ms[_LAYERS],
        "fp32_batchnorm_ms": ms["batchnorm"],
        "fp32_evonorm_ms": ms["evonorm-s0"],
        "speedup_vs_batchnorm": batchnorm / ours,
        "speedup_vs_evonorm": seconds["evonorm-s0"] / ours,
        "onnx_int8_ms": ms["onnx int8"],
        "onnx_speedup_vs_batchnorm": None if onnx is None else batchnorm / onnx,
        "onnx_fp32_ms": ms["onnx batchnorm"],
    }


def _prediction(training: variants.Training) -> Predict:
    return lambda: training.model(training.inputs)


def _by_predictor(training: variants.Training) -> Predict:
    predict = int8.predictor(training.model, training.inputs)
    return lambda: predict(training.inputs)


def _onnx(training: variants.Training, variant: str, folder: Path, threads: int) -> Predict | None:
    """The model as an ONNX file in a session of onnxruntime; an int8 one as QDQ."""
    try:
        from edgegossip.int8 import onnx_file
    except ImportError:
        return None
    module, inputs = training.model, training.inputs.contiguous()
    if variant == "int8":
        module = qdq.qdq_model(module, [inputs])
    onnx_file.write(module, inputs[:1], folder / f"{variant}.onnx")
    run = onnx_file.runner(folder / f"{variant}.onnx", threads)
    return None if run is None else lambda: run(inputs)


def line(row: Row) -> str:
    """One row."""
    onnx_ms, onnx_fp32, speed = (
        "-" if row[key] is None else f"{row[key]:.{digits}f}"
        for key, digits in (("onnx_int8_ms", 1), ("onnx_fp32_ms", 1), ("onnx_speedup_vs_batchnorm", 2))
    )
    return (
        f"{row['model']:<11} {row['batch']:>5}  {row['threads']:>7}  {row['isa']:<11}"
        f"  {row['predict_ms']:>7.2f}  {row['layers_ms']:>9.2f}"
        f"  {row['fp32_batchnorm_ms']:>12.1f}  {row['fp32_evonorm_ms']:>10.1f}  {row['speedup_vs_batchnorm']:>8.2f}"
        f"  {row['speedup_vs_evonorm']:>10.2f}  {onnx_ms:>12}  {speed:>8}  {onnx_fp32:>12}"
    )
