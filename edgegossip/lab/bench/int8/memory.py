"""Peak memory of training steps, each variant in a process of its own:
`python -m edgegossip.lab.bench.int8.memory ...`.

The figure is the process's high-water mark of resident memory over two steps, less what it held
before them, with torch loaded and the model, the optimiser and the batch made. It is None where the
kernel does not tell (/proc/self/status)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 600.0


def peak_bytes(variant: str, model: str, batch: int, threads: int, dw: int) -> int | None:
    """Starts the process and waits for its figure. None when it could not tell or failed."""
    command = [sys.executable, "-m", __name__, variant, model, str(batch), str(threads), str(dw)]
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


def _measure(variant: str, model: str, batch: int, threads: int, dw: int) -> int | None:
    import torch

    from edgegossip.lab.bench.int8.variants import training_of

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


if __name__ == "__main__":
    _variant, _model, _batch, _threads, _dw = sys.argv[1:]
    print(json.dumps(_measure(_variant, _model, int(_batch), int(_threads), int(_dw))))
