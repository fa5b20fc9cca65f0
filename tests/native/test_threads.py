"""The threads of the kernels: started once, the same results in forked children and from several
callers, no signals, and a process that ends."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.driver import SRC

PROGRAM = Path(__file__).parent / "team" / "main.cpp"
START = """
import os, sys, threading, time
import numpy as np
from edgegossip.native import int8
x = np.random.default_rng(0).standard_normal(64 * 1024).astype(np.float32)
def codes(threads):
    out = int8.Maps.empty(64, 1024)
    int8.quantise(x, 64, out, None, threads)
    return out.q.tobytes()
one = codes(1)
tasks = lambda: set(os.listdir("/proc/self/task"))
"""


def python(lines):
    done = subprocess.run([sys.executable, "-c", START + lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_are_started_once_and_only_where_they_are_asked_for():
    lines = """
before = tasks()
codes(1)
assert tasks() == before
assert codes(3) == one
made = tasks() - before
assert all(codes(3) == one and codes(2) == one for _ in range(100))
assert tasks() - before == made
print(len(made), *(line.split()[1] for t in made for line in open(f"/proc/self/task/{t}/status") if "SigBlk" in line))
"""
    count, *blocked = python(lines)
    assert int(count) == 2
    can_be_blocked = (1 << 31) - 1 & ~(1 << 8 | 1 << 18)  # of the first 31 signals all but SIGKILL and SIGSTOP
    assert [int(mask, 16) & can_be_blocked for mask in blocked] == [can_be_blocked] * 2


BESIDE_TORCH = """
import ctypes
torch.set_num_threads(2)
some = torch.randn(1 << 20)
shared = hasattr(ctypes.CDLL(None), "GOMP_parallel")
some.add_(1)
before = tasks()
assert codes(2) == one and codes(2) == one
some.add_(1)
other = threading.Thread(target=lambda: [codes(2) for _ in range(20)])
other.start()
other.join()
kept, until = 0 if shared else 1, time.monotonic() + 20
while len(tasks() - before) > kept and time.monotonic() < until:  # those of a caller that is gone end after it
    time.sleep(0.01)
assert len(tasks() - before) == kept, (shared, before, tasks())
"""
CHILDREN = """
import torch
for used in ("some.add_(1)", "codes(2)", "some.add_(1); codes(2)", "pass"):
    parent = os.fork()
    if parent:
        assert os.waitpid(parent, 0)[1] == 0, used
        continue
    torch.set_num_threads(2)
    some = torch.randn(1 << 20)
    exec(used)
    child = os.fork()
    if child == 0:
        grandchild = os.fork() if codes(2) == one else -1
        if grandchild == 0:
            os._exit(0 if codes(3) == one else 1)
        os._exit(0 if grandchild > 0 and os.waitpid(grandchild, 0)[1] == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert codes(2) == one
    os._exit(0)
"""


def test_beside_torch():
    """A child does not wait for threads of its parent, whatever that did before: each parent is a
    fork of one process that has loaded torch and not used it. Then that process does: torch's
    threads compute and no others. Both wait for work by spinning, and more threads than cores would
    hold one another up."""
    seen = BESIDE_TORCH if sys.platform.startswith("linux") else ""  # reads /proc
    assert python(CHILDREN + seen + 'print("done")') == ["done"]


def test_the_process_ends_while_threads_compute():
    lines = """
def go_on():
    while True:
        assert codes(4) == one
for _ in range(3):
    threading.Thread(target=go_on, daemon=True).start()
time.sleep(0.2)
print("done", flush=True)
"""
    assert python(lines) == ["done"]


# The thread sanitizer lets no forked child of a process with threads start its own, and the address
# sanitizer's allocator may be locked in the child of a process whose other threads allocate.
SANITIZERS = {"": [], "alone": ["-fsanitize=address,undefined", "-g1"], "never": ["-fsanitize=thread", "-g1"]}


# A compiler takes some ten seconds for what has sanitizers in it.
@pytest.mark.parametrize("forks", ["", *(pytest.param(f, marks=pytest.mark.slow) for f in SANITIZERS if f)])
def test_every_task_runs_once_whoever_calls(tmp_path, forks):
    compiler = shutil.which("clang++") or (None if forks else shutil.which("c++"))
    if compiler is None:
        pytest.skip("needs clang++")
    program, sources = tmp_path / "team", [PROGRAM, SRC / "runtime" / "thread_team.cpp"]
    flags = ["-std=c++17", "-O1", "-pthread", f"-I{SRC}", *SANITIZERS[forks]]
    empty = subprocess.run(
        [compiler, *SANITIZERS[forks], "-x", "c++", "-", "-o", program], input=b"int main() {}", capture_output=True
    )
    if empty.returncode:
        pytest.skip("this clang++ comes without its sanitizers")
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)
    done = subprocess.run([program, *forks.split()], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
