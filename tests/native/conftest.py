"""What tests of the kernels share."""

import ctypes
import mmap
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def at_the_edge():
    """A function that puts bytes right before a page that must not be touched: reading on ends the
    process."""
    page, pages = mmap.PAGESIZE, 64
    memory = mmap.mmap(-1, (pages + 1) * page)
    raw = np.frombuffer(memory, np.uint8)
    if sys.platform == "linux":
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(raw.ctypes.data + pages * page, page, mmap.PROT_READ & 0) == 0

    def put(body):
        end = pages * page
        raw[end - len(body) : end] = np.frombuffer(bytes(body), np.uint8)
        return raw[end - len(body) : end]

    return put
