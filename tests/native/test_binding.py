"""The binding: what it accepts, what it refuses, and which instruction set it runs."""

import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip import native
from edgegossip.accept.machine import FLAGS
from edgegossip.native import int8
from edgegossip.types import UsageError

X = np.linspace(-1, 1, 6, dtype=np.float32)
OFFSETS = np.array([0, 2, 6])
SOURCES = Path(__file__).parents[2] / "edgegossip" / "native" / "src"


def out():
    return np.empty(22, np.uint8)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (X.astype(np.float64), TypeError),
        (X.astype(">f4"), TypeError),
        (X.view(np.int32), TypeError),
        (list(X), TypeError),
        (None, TypeError),
        (X.reshape(2, 3), ValueError),
        (np.repeat(X, 2)[::2], ValueError),
        (np.frombuffer(bytes(25), np.uint8)[1:].view(np.float32), ValueError),
    ],
)
def test_a_wrong_vector_is_refused(x, error):
    with pytest.raises(error, match="x must be .*float32"):
        native.minmax8_encode(x, OFFSETS, out())
    with pytest.raises(error, match="x must be .*float32"):
        native.first_nonfinite(x, OFFSETS)


@pytest.mark.parametrize("offsets", [[], [0], [1, 6], [0, 5], [0, 7], [0, 4, 2, 6], [-1, 6], [0, -3, 6]])
def test_wrong_offsets_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets must start at 0, never fall, and end at .* 6"):
        native.minmax8_encode(X, np.array(offsets, np.int64), out())


def test_offsets_of_another_type_are_refused():
    with pytest.raises(TypeError, match="offsets must be .*int64"):
        native.minmax8_encode(X, OFFSETS.astype(np.int32), out())


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="out must have 22 elements, it has 21"):
        native.minmax8_encode(X, OFFSETS, out()[1:])
    for size in (0, 21, 23):
        with pytest.raises(ValueError, match=f"body must have 22 elements, it has {size}"):
            native.minmax8_decode(bytes(size), OFFSETS, X.copy())


def test_read_only_output_is_refused():
    with pytest.raises(ValueError, match="out must be .*writable"):
        native.minmax8_encode(X, OFFSETS, bytes(22))
    fixed = X.copy()
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="out must be .*writable"):
        native.minmax8_decode(bytes(22), OFFSETS, fixed)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e39])
def test_weight_must_be_a_finite_float32(weight):
    with pytest.raises(ValueError, match="weight must be a finite float32"):
        native.minmax8_decode(bytes(22), OFFSETS, X.copy(), weight)


def test_the_best_instruction_set_is_chosen(monkeypatch):
    monkeypatch.delenv("EDGEGOSSIP_ISA", raising=False)
    assert native.available_isas()[0] == "portable"
    assert set(native.available_isas()) <= set(native.compiled_isas())
    assert native.isa() == native.available_isas()[-1]


def test_all_that_this_machine_can_execute_is_built_in():
    """CMakeLists.txt reads the same list when it leaves out what an editable install cannot use."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(found[1].split())
    here = {name for name, needed in FLAGS.items() if flags.issuperset(needed)}
    assert here | {"portable"} == set(native.available_isas())


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setenv("EDGEGOSSIP_ISA", "portable")
    assert native.isa() == "portable"
    monkeypatch.setenv("EDGEGOSSIP_ISA", "")
    assert native.isa() == native.available_isas()[-1]


def test_an_unknown_instruction_set_is_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"isa=mmx: .* no such instruction set; they can use portable"):
        native.first_nonfinite(X, OFFSETS, isa="mmx")
    monkeypatch.setenv("EDGEGOSSIP_ISA", "AVX2")
    with pytest.raises(UsageError, match=r"EDGEGOSSIP_ISA=AVX2: .* no such instruction set; .* portable"):
        native.isa()


def test_flushing_denormals_elsewhere_changes_nothing():
    """torch.set_flush_denormal sets its thread's floating-point mode; kernels must not care, and
    must leave it alone."""
    torch = pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
    x, offsets = np.array([0, 1e-44, 3e-44, 1e-40], np.float32), np.array([0, 4])

    def run():
        body, y = np.empty(12, np.uint8), np.empty(4, np.float32)
        assert native.minmax8_encode(x, offsets, body) == native.minmax8_decode(body, offsets, y) == -1
        return body.tobytes() + y.tobytes()

    seen = []

    def in_another_mode():
        flushes = torch.set_flush_denormal(True)
        seen.append(run())
        seen.append(not flushes or bool(torch.tensor([1e-40]) * 0.5 == 0))

    thread = threading.Thread(target=in_another_mode)
    thread.start()
    thread.join()
    assert seen == [run(), True]


def test_the_gil_is_released():
    """Only a kernel that lets go of the GIL can be interrupted here: nobody is asked to give it up
    for 100 seconds."""
    x = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    offsets, body = np.array([0, len(x)]), np.zeros(8 + len(x), np.uint8)
    stop, stopped = threading.Event(), []

    def work():
        for _ in range(5000):
            native.minmax8_encode(x, offsets, body)
            if stop.is_set():
                stopped.append(True)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        stop.set()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert stopped


def test_kernel_bodies_use_no_inline_library_function():
    """Inline functions of the C++ library, compiled with one file's flags, could be called by
    another's (runtime/isa/table.inc)."""
    allowed = {
        "cfloat",
        "cstddef",
        "cstdint",
        "cstring",
        "immintrin.h",
        "arm_neon.h",
        "runtime/kernels.hpp",
        "int8/kernels.hpp",
    }
    files = [*SOURCES.glob("*/kernels/*"), *SOURCES.glob("runtime/isa/*")]
    assert len(files) >= 60
    for file in files:
        text = file.read_text()
        for include in re.findall(r'#include [<"]([^>"]+)[>"]', text):
            assert include in allowed or "/kernels/" in include or include.startswith("runtime/isa/"), (
                f"{file.name} includes {include}"
            )
        assert set(re.findall(r"std::\w+", text)) <= {"std::memcpy", "std::memmove", "std::memset"}, file.name


def test_memory_may_be_an_address():
    values: Any = np.arange(8, dtype=np.float32)
    out, expected = int8.Maps.empty(2, 4), int8.Maps.empty(2, 4)
    int8.quantise(values, 2, expected)
    place: Any = (values.ctypes.data, 8, "f", values)
    int8.quantise(place, 2, out)
    np.testing.assert_array_equal(out.q, expected.q)
    bad: Any
    for bad in (
        (values.ctypes.data, 8, "d", values),
        (values.ctypes.data, 8, "f"),
        ("x", 8, "f", values),
        (1.5, 8, "f", values),
    ):
        with pytest.raises(TypeError, match="x must be an aligned"):
            int8.quantise(bad, 2, out)
    for bad in ((values.ctypes.data + 1, 4, "f", values), (values.ctypes.data, -4, "f", values)):
        with pytest.raises(ValueError, match="x must be an aligned"):
            int8.quantise(bad, 2, out)
    with pytest.raises(ValueError, match="elements"):
        int8.quantise(values, 2, out._replace(scale=(values.ctypes.data, 3, "f", values)))
