"""Reading a pickle that holds nothing but dicts, lists, bytes, text, numbers and uint8 arrays.

A pickle names the functions that rebuild its objects, and unpickling calls them: the stock reader
runs whatever a file asks for. This one resolves the three names that a numpy array needs to
stand-ins of its own and refuses every other; numpy's own reconstruction, which trusts its input, is
never called.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.types import DataError

_MAX_BYTES = 256 * 2**20  # the files this is for have 31 MB


class _Refused(Exception):
    """The pickle asks for something that is not plain data."""


class _Dtype:
    """Stand-in for numpy.dtype: unsigned bytes only."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1", "uint8", b"uint8"):
            raise _Refused(f"an array of type {code!r}")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment; bytes have none."""


class _Array:
    """Stand-in for numpy.ndarray: collects (version, shape, dtype, is_fortran, bytes)."""

    array: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes) or fortran:
            raise _Refused("an array that is not plain bytes in row-major order")
        if not all(type(d) is int and d >= 0 for d in shape) or math.prod(shape) != len(content):
            raise _Refused(f"an array of shape {shape} with {len(content)} bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape)


def _reconstruct(*_: Any) -> _Array:
    """Stand-in for numpy's _reconstruct(ndarray, (0,), b'b')."""
    return _Array()


def _encode(text: Any, codec: Any = "latin1") -> bytes:
    """Stand-in for _codecs.encode, with which Python 3 writes bytes in old protocols."""
    if not isinstance(text, str) or codec != "latin1":
        raise _Refused("a text encoding")
    return text.encode("latin-1")


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise _Refused(f"{module}.{name}")
        return _STAND_INS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a persistent object")


def load_plain(file: Path) -> Any:
    """The object in `file`; arrays in dicts come back as numpy arrays (uint8), text of Python 2 as
    bytes.

    Raises DataError for a truncated or malformed pickle, for one that asks for anything but plain
    data, and for a file of more than 256 MiB."""
    size = file.stat().st_size
    if size > _MAX_BYTES:
        raise DataError(f"{file}: expected at most {_MAX_BYTES} bytes, found {size}")
    try:
        loaded = _PlainUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
    except _Refused as refused:
        raise DataError(f"{file}: refused, because it asks for {refused}; expected plain arrays only") from None
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise DataError(f"{file}: expected a Python pickle, found damage: {type(error).__name__}: {error}") from error
    if isinstance(loaded, dict):
        return {k: v.array if isinstance(v, _Array) else v for k, v in loaded.items()}
    return loaded
