"""`python -m lab.bench int8`: a training step in int8 beside the same model in fp32, with batchnorm
and with EvoNorm-S0; with `--inference`, predictions.

Peak memory is measured in a process of its own for each variant, which is this module as a program:
`python -m lab.bench.int8 VARIANT MODEL BATCH THREADS DW`.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from edgegossip import int8, native
from edgegossip.accept.int8_step import (
    LOW,
    Int8Training,
    large_convolution,
    products_of,
    section_of,
    training_of,
)
from edgegossip.int8 import qdq
from edgegossip.native import int8 as kernels
from edgegossip.telemetry.machine import environment
from edgegossip.training.model import MICRO_BATCH
from lab.bench.tables import write_document
from lab.bench.timing import in_turn

Row = dict[str, Any]
Print = Callable[[str], None]

_SECONDS_A_ROUND = 3.0  # at least, of all variants together

_STEP_HEAD = (
    "model       batch  threads  dw  isa          int8 ms  batchnorm ms  evonorm ms  speed-up  vs evonorm   saved MB  (fp32)"
    "   peak MB  (fp32)  low: peak MB       ms"
)
_STEP_NOTES = (
    "ms: forward, backward and update, medians in turn; batchnorm: torch fp32, channels last; evonorm: so, norm by our kernels",
    "saved: what autograd keeps for the backward pass; peak: resident memory of two steps above the process with its model",
    f"low: training.memory = low, {MICRO_BATCH} examples at a time",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Holds the options of the command as they were given."""

    models: tuple[str, ...]
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    dws: tuple[int, ...]
    repeat: int
    save: Path | None
    inference: bool = False  # predictions, not training steps


def run(options: Options, arguments: Sequence[str], out: Print) -> dict[str, Any]:
    """Measure. Rows go to `out` as lines when they are there. Raises ConfigError for an unknown
    model."""
    for name in options.models:
        section_of(name)
    document: dict[str, Any] = {
        "machine": environment(arguments),
        "command": shlex.join(["python", "-m", "lab.bench", *arguments]),
        "torch_isa": torch.backends.cpu.get_cpu_capability(),
        "repeat": options.repeat,
        "rows": [],
    }
    out(PREDICTION_HEAD if options.inference else _STEP_HEAD)
    before = torch.get_num_threads()
    try:
        for threads in options.threads:
            torch.set_num_threads(threads)
            for name in options.models:
                for batch in options.batches:
                    for row, text in _rows(options, name, batch, threads):
                        document["rows"].append(row)
                        out(text)
    finally:
        torch.set_num_threads(before)
    for note in PREDICTION_NOTES if options.inference else _STEP_NOTES:
        out(note)
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        write_document(options.save, "int8-inference" if options.inference else "int8", document)
    return document


def _rows(options: Options, model: str, batch: int, threads: int) -> Iterator[tuple[Row, str]]:
    if options.inference:
        row = measure_prediction(model, batch, threads, options.repeat)
        yield row, prediction_line(row)
        return
    for row in measure(model, batch, threads, options.dws, options.repeat):
        yield row, line(row)


def measure(model: str, batch: int, threads: int, dws: Sequence[int], repeat: int) -> list[Row]:
    """Return one row for each dw; all steps are timed in turn, so that whatever else the machine
    does meets all of them."""
    trainings = {f"{variant} {dw}": training_of(variant, model, batch, dw) for dw in dws for variant in ("int8", LOW)}
    rivals = {name: training_of(name, model, batch, 16) for name in ("batchnorm", "evonorm-s0")}
    steps = {name: training.step for name, training in {**trainings, **rivals}.items()}
    at_least_s = _SECONDS_A_ROUND * repeat  # of short steps more, so that a busy second does not decide
    seconds = in_turn(steps, repeat, slow=("evonorm-s0",), at_least_s=at_least_s, slow_budget_s=60.0).medians()
    fp32_saved = saved_bytes(rivals["batchnorm"])
    fp32_peak = peak_bytes("batchnorm", model, batch, threads, 16)
    largest = largest_rate(threads)
    rows = []
    for dw in dws:
        ours = trainings[f"int8 {dw}"]
        own, batchnorm, evonorm = (seconds[name] for name in (f"int8 {dw}", "batchnorm", "evonorm-s0"))
        shares, rate = breakdown(ours, min(repeat, 3))
        rows.append(
            {
                "model": model,
                "batch": batch,
                "threads": threads,
                "dw": dw,
                "isa": native.isa(),
                "step_ms": 1e3 * own,
                "fp32_batchnorm_ms": 1e3 * batchnorm,
                "fp32_evonorm_ms": 1e3 * evonorm,
                "speedup_vs_batchnorm": batchnorm / own,
                "speedup_vs_evonorm": evonorm / own,
                "saved_bytes": saved_bytes(ours),
                "fp32_saved_bytes": fp32_saved,
                "peak_bytes": peak_bytes("int8", model, batch, threads, dw),
                "fp32_peak_bytes": fp32_peak,
                "low_peak_bytes": peak_bytes(LOW, model, batch, threads, dw),
                "low_step_ms": 1e3 * seconds[f"{LOW} {dw}"],
                "parts_ms": shares,
                "products_g_s": rate,
                "largest_products_g_s": largest,
            }
        )
    return rows


def line(row: Row) -> str:
    """Return one row, and below it where its time goes."""
    mb = {key: "-" if row[key] is None else f"{row[key] / 1e6:.1f}" for key in row if key.endswith("_bytes")}
    first = (
        f"{row['model']:<11} {row['batch']:>5}  {row['threads']:>7}  {row['dw']:>2}  {row['isa']:<11}  {row['step_ms']:>7.1f}"
        f"  {row['fp32_batchnorm_ms']:>12.1f}  {row['fp32_evonorm_ms']:>10.1f}  {row['speedup_vs_batchnorm']:>8.2f}"
        f"  {row['speedup_vs_evonorm']:>10.2f}  {mb['saved_bytes']:>9}  {mb['fp32_saved_bytes']:>6}  {mb['peak_bytes']:>8}"
        f"  {mb['fp32_peak_bytes']:>6}  {mb['low_peak_bytes']:>12}  {row['low_step_ms']:>7.1f}"
    )
    share = row["products_g_s"] / row["largest_products_g_s"]
    where = ", ".join(f"{name} {ms:.1f}" for name, ms in row["parts_ms"].items())
    rate = f"{row['products_g_s']:.1f} G products/s in convolutions, {share:.0%} of one large convolution's"
    return f"{first}\n    ms: {where}; {rate}"


def saved_bytes(training: Int8Training) -> int:
    """Return the bytes that autograd keeps between the forward and the backward pass, parameters
    left out; memory counted once."""
    known = {p.untyped_storage().data_ptr() for p in training.model.parameters()}
    known.add(training.inputs.untyped_storage().data_ptr())
    found: dict[int, tuple[int, Tensor]] = {}  # the tensors are held, so that no address is used twice

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = (storage.nbytes(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = training.loss()
    size = sum(size for size, _ in found.values())
    torch.autograd.backward(loss)
    return size


# Where the time of an int8 step goes, by kernel, and how much of the machine's integer rate its
# products reach.

_FUNCTIONS = (
    "quantise",
    "conv",
    "conv_backward",
    "evonorm",
    "evonorm_backward",
    "conv_evonorm",
    "conv_evonorm_backward",
    "add",
    "relu",
    "relu_backward",
    "slice_maps",
    "slice_backward",
    "pad",
    "max_pool",
    "max_pool_backward",
    "average_pool",
    "average_pool_backward",
)


def breakdown(training: Int8Training, repeat: int) -> tuple[dict[str, float], float]:
    """Return the milliseconds of a step by kernel ("other": python, torch, loss and optimiser), and
    products a second, in 1e9, of the convolutions and linear layers (a norm that is computed with
    the convolution before it counts with it)."""
    taken = dict.fromkeys((*_FUNCTIONS, "other"), 0.0)
    training.step()  # after whatever ran before
    with _timed(taken) as products:
        start = perf_counter()
        for _ in range(repeat):
            training.step()
        total = perf_counter() - start
    taken["other"] = total - sum(taken.values())
    in_products = sum(seconds for name, seconds in taken.items() if name.startswith("conv"))
    rate = products[0] / in_products / 1e9 if in_products else 0.0
    return {name: 1e3 * seconds / repeat for name, seconds in taken.items() if seconds}, rate


@contextmanager
def _timed(taken: dict[str, float]) -> Iterator[list[float]]:
    """While inside, the kernels' wrappers add their seconds to `taken` and their products to the
    list's only element."""
    originals = {name: getattr(kernels, name) for name in _FUNCTIONS}
    products = [0.0]

    def wrapped(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any, **kwargs: Any) -> None:
            start = perf_counter()
            function(*args, **kwargs)
            taken[name] += perf_counter() - start
            if name in ("conv", "conv_evonorm"):
                products[0] += products_of(args[0])
            elif name == "conv_backward":
                asked = (args[6] is not None) + (args[7] is not None)
                products[0] += asked * products_of(args[0])
            elif name == "conv_evonorm_backward":
                asked = (args[5] is not None) + (args[6] is not None)
                products[0] += asked * products_of(args[0].shape)

        return timed

    try:
        for name, function in originals.items():
            setattr(kernels, name, wrapped(name, function))
        yield products
    finally:
        for name, function in originals.items():
            setattr(kernels, name, function)


def largest_rate(threads: int) -> float:
    """Return the products a second, in 1e9, of one large convolution forward, whose maps and
    weights stay in the cache: what the integer units of this machine give in practice."""
    run, products = large_convolution(threads)
    best = float("inf")
    for _ in range(5):
        start = perf_counter()
        run()
        best = min(best, perf_counter() - start)
    return products / best / 1e9


_TIMEOUT_S = 600.0


def peak_bytes(variant: str, model: str, batch: int, threads: int, dw: int) -> int | None:
    """Return the most bytes that two training steps hold, in a process of their own.

    The figure is that process's high-water mark of resident memory over two steps, less what it
    held before them, with torch loaded and the model, the optimiser and the batch made. It is None
    where the kernel does not tell (/proc/self/status), or the process failed.
    """
    command = [sys.executable, "-m", "lab.bench.int8", variant, model, str(batch), str(threads), str(dw)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    found: int | None = json.loads(done.stdout.splitlines()[-1])
    return found


def _status(key: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def peak_of_this_process(variant: str, model: str, batch: int, threads: int, dw: int) -> int | None:
    """Take two training steps and return what `peak_bytes` asked another process for."""
    torch.set_num_threads(threads)
    training = training_of(variant, model, batch, dw)
    small = training_of(variant, model, 1, dw)
    small.step()  # what libraries set up at their first use does not count
    del small
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        before = _status("VmRSS")
    except (OSError, StopIteration):
        return None
    training.step()
    training.step()
    return _status("VmHWM") - before


# `python -m lab.bench int8 --inference`: prediction with our kernels, and with the exported models
# in onnxruntime, beside torch.

Predict = Callable[[], object]
PREDICTION_HEAD = (
    "model       batch  threads  isa          int8 ms  layers ms  batchnorm ms  evonorm ms  speed-up  vs evonorm"
    "  onnx int8 ms  speed-up  onnx fp32 ms"
)
PREDICTION_NOTES = (
    "ms: one prediction of the batch, medians in turn, onnxruntime after the others",
    "int8: a predictor (int8.predictor), layers: the same model layer by layer",
    "batchnorm: torch, fp32, channels last; evonorm: so, norm by our kernels; speed-up: of int8 over batchnorm",
    "onnx: onnxruntime, of the int8 model as QDQ and of the batchnorm model in fp32",
)
_OWN = ("int8", "batchnorm", "evonorm-s0")
_LAYERS = "int8 layers"
_PREDICTION_S = 2.0


def measure_prediction(model: str, batch: int, threads: int, repeat: int) -> Row:
    """Return one row. The onnx figures are None where onnx or onnxruntime is not installed."""
    trainings = {name: training_of(name, model, batch, 16) for name in _OWN}
    for training in trainings.values():
        training.model.eval()
    with TemporaryDirectory() as folder, torch.inference_mode():
        own = {name: _prediction(training) for name, training in trainings.items()}
        own |= {_LAYERS: own["int8"], "int8": _by_predictor(trainings["int8"])}
        seconds = in_turn(own, repeat, at_least_s=_PREDICTION_S).medians()
        # Afterwards: onnxruntime's threads spin on the cores after each of its predictions.
        made = {f"onnx {name}": _onnx(trainings[name], name, Path(folder), threads) for name in ("int8", "batchnorm")}
        sessions = {name: run for name, run in made.items() if run is not None}
        seconds |= in_turn(sessions, repeat, at_least_s=_PREDICTION_S).medians() if sessions else {}
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


def _prediction(training: Int8Training) -> Predict:
    return lambda: training.model(training.inputs)


def _by_predictor(training: Int8Training) -> Predict:
    predict = int8.predictor(training.model, training.inputs)
    return lambda: predict(training.inputs)


def _onnx(training: Int8Training, variant: str, folder: Path, threads: int) -> Predict | None:
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


def prediction_line(row: Row) -> str:
    """Return one row."""
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


if __name__ == "__main__":
    _variant, _model, _batch, _threads, _dw = sys.argv[1:]
    print(json.dumps(peak_of_this_process(_variant, _model, int(_batch), int(_threads), int(_dw))))
