"""What the C library keeps of memory that is free."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Hand memory that is free to the system, where the C library can (glibc). Call it where large buffers have just gone:
    otherwise the holes that they leave in the heap do not fit the next ones, and the peak grows. Costs no measurable time."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
