from typing import Any, TypeAlias

from numpy.typing import NDArray

ReadBuffer: TypeAlias = NDArray[Any] | bytes | bytearray | memoryview
WriteBuffer: TypeAlias = NDArray[Any] | bytearray | memoryview

def isa() -> str: ...
def available_isas() -> list[str]: ...
def compiled_isas() -> list[str]: ...
def first_nonfinite(x: ReadBuffer, offsets: ReadBuffer, isa: str | None = None) -> int: ...
def minmax8_encode(x: ReadBuffer, offsets: ReadBuffer, out: WriteBuffer, isa: str | None = None) -> int: ...
def minmax8_decode(
    body: ReadBuffer, offsets: ReadBuffer, out: WriteBuffer, weight: float | None = None, isa: str | None = None
) -> int: ...
def floats_encode(
    form: str,
    x: ReadBuffer,
    offsets: ReadBuffer,
    out: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> int: ...
def floats_finite(form: str, body: ReadBuffer, isa: str | None = None) -> bool: ...
def floats_decode(
    form: str,
    body: ReadBuffer,
    out: WriteBuffer,
    weight: float | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> bool: ...
