"""What the C library keeps of memory that is free. Nothing happens where it is not glibc."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Hand memory that is free to the system, where the C library can (glibc). Call it where large
    buffers have just gone: otherwise the holes that they leave in the heap do not fit the next
    ones, and the peak grows. Costs no measurable time."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
_KEPT_BYTES, _LARGEST_BYTES = 128 << 20, 32 << 20  # the latter is the most that glibc takes


def keep() -> None:
    """Keep up to 128 MiB that are free for what is asked next, in blocks of up to 32 MiB. Otherwise
    an optimiser's temporary tensors are given back in every step, and the system clears them for
    the next one: of a step of a perceptron of 2 million weights that was a third. `give_back` still
    gives all back."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
