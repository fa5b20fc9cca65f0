from collections.abc import Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

ReadBuffer: TypeAlias = NDArray[Any] | bytes | bytearray | memoryview
WriteBuffer: TypeAlias = NDArray[Any] | bytearray | memoryview
QuantiserSpec: TypeAlias = tuple[int, int, int, int, tuple[float, ...] | None]

def isa() -> str: ...
def available_isas() -> list[str]: ...
def compiled_isas() -> list[str]: ...
def first_nonfinite(x: ReadBuffer, offsets: ReadBuffer, isa: str | None = None) -> int: ...
def steps_bits(
    x: ReadBuffer,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    key: int | None,
    step: float,
    eighths: ReadBuffer,
    isa: str | None = None,
) -> float: ...
def steps_error(
    x: ReadBuffer,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    key: int | None,
    step: float,
    eighths: ReadBuffer,
    isa: str | None = None,
) -> float: ...
def steps_encode(
    x: ReadBuffer,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    key: int | None,
    step: float,
    eighths: ReadBuffer,
    isa: str | None = None,
) -> bytes: ...
def steps_decode(
    body: ReadBuffer,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    dithered: bool,
    n: int,
    out: WriteBuffer | None = None,
    weight: float | None = None,
    isa: str | None = None,
) -> int: ...
def steps_integers(
    body: ReadBuffer,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    most: int,
    out: WriteBuffer,
    isa: str | None = None,
) -> int: ...
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
def eden_bytes(offsets: ReadBuffer, n: int, bits: int) -> int: ...
def eden_encode(
    x: ReadBuffer,
    offsets: ReadBuffer,
    keys: Sequence[int],
    bits: int,
    out: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> int: ...
def eden_fault(body: ReadBuffer, offsets: ReadBuffer, n: int, bits: int) -> int: ...
def eden_decode(
    body: ReadBuffer,
    offsets: ReadBuffer,
    keys: Sequence[int],
    bits: int,
    out: WriteBuffer,
    weight: float | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> int: ...
def sparse_capacity(offsets: ReadBuffer, counts: ReadBuffer, values: str) -> int: ...
def topk_encode(
    x: ReadBuffer,
    offsets: ReadBuffer,
    counts: ReadBuffer,
    values: str,
    out: WriteBuffer,
    zero: WriteBuffer | None = None,
    rest: WriteBuffer | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> int: ...
def topk_decode(
    body: ReadBuffer, offsets: ReadBuffer, out: WriteBuffer, weight: float | None = None, isa: str | None = None
) -> tuple[int, int]: ...
def randk_encode(
    x: ReadBuffer,
    offsets: ReadBuffer,
    counts: ReadBuffer,
    values: str,
    unbiased: bool,
    seed: int,
    out: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> int: ...
def randk_decode(
    body: ReadBuffer,
    offsets: ReadBuffer,
    out: WriteBuffer,
    weight: float | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> tuple[int, int]: ...
def sum_of_squares(x: ReadBuffer, isa: str | None = None) -> float: ...
def accumulate_momentum(
    u: ReadBuffer,
    v: ReadBuffer,
    g: ReadBuffer,
    momentum: float,
    factor: float,
    u_next: WriteBuffer,
    v_next: WriteBuffer,
    isa: str | None = None,
) -> None: ...
def quantise_norms(x: ReadBuffer, bucket: int, linf: bool, scales: WriteBuffer, isa: str | None = None) -> bool: ...
def quantise_moments(
    x: ReadBuffer, offsets: ReadBuffer, isa: str | None = None
) -> list[tuple[float, float, float, float]]: ...
def quantise(
    spec: QuantiserSpec,
    x: ReadBuffer,
    key: int,
    first: int,
    scales: NDArray[Any],
    symbols: WriteBuffer,
    linf: bool | None = None,
    isa: str | None = None,
) -> bool: ...
def dequantise(
    spec: QuantiserSpec,
    symbols: ReadBuffer,
    scales: ReadBuffer,
    out: WriteBuffer,
    weight: float | None = None,
    isa: str | None = None,
) -> bool: ...
def uniform32(key: int, first: int, out: WriteBuffer, isa: str | None = None) -> None: ...

CODING_STATE_BYTES: int

def coding_table_work() -> int: ...
def coding_bound(spec: QuantiserSpec, offsets: ReadBuffer, n: int, choice: int) -> int: ...
def coding_encode(
    spec: QuantiserSpec,
    x: ReadBuffer,
    offsets: ReadBuffer,
    keys: list[int],
    choice: int,
    linf: bool | None,
    scales: ReadBuffer,
    tables: ReadBuffer,
    preferred: ReadBuffer,
    state: WriteBuffer,
    out: WriteBuffer,
    threads: int | None = None,
    isa: str | None = None,
) -> int: ...
def coding_decode(
    spec: QuantiserSpec,
    body: ReadBuffer,
    position: int,
    offsets: ReadBuffer,
    n: int,
    tensor: int,
    tables: ReadBuffer,
    state: WriteBuffer,
    out: WriteBuffer | None,
    weight: float | None,
    threads: int | None = None,
    isa: str | None = None,
) -> tuple[int, int]: ...
def factors_sound(factors: ReadBuffer, rows: int, cols: int, rank: int, form: str, isa: str | None = None) -> bool: ...
def factors_product(
    factors: ReadBuffer,
    rows: int,
    cols: int,
    rank: int,
    form: str,
    out: WriteBuffer,
    weight: float | None = None,
    isa: str | None = None,
) -> None: ...
def power_step(
    x: ReadBuffer,
    error: ReadBuffer,
    decay: float,
    rows: int,
    cols: int,
    rank: int,
    form: str,
    start: ReadBuffer,
    factors: WriteBuffer,
    next: WriteBuffer,
    residual: WriteBuffer,
    isa: str | None = None,
) -> None: ...
def corrected(x: ReadBuffer, error: ReadBuffer, decay: float, out: WriteBuffer, isa: str | None = None) -> None: ...
def spectral_basis(
    x: ReadBuffer, rows: int, cols: int, basis: WriteBuffer, norms: WriteBuffer, isa: str | None = None
) -> None: ...
def spectral_atom(
    x: ReadBuffer,
    rows: int,
    cols: int,
    unit: ReadBuffer,
    divisor: float,
    out: WriteBuffer,
    isa: str | None = None,
) -> None: ...
def int8_quantise(
    x: ReadBuffer,
    batch: int,
    q: WriteBuffer,
    scale: WriteBuffer,
    zero: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_add(
    a_q: ReadBuffer,
    a_scale: ReadBuffer,
    a_zero: ReadBuffer,
    b_q: ReadBuffer,
    b_scale: ReadBuffer,
    b_zero: ReadBuffer,
    q: WriteBuffer,
    scale: WriteBuffer,
    zero: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_conv(
    shape: Sequence[int],
    x_q: ReadBuffer,
    x_scale: ReadBuffer,
    x_zero: ReadBuffer,
    weight: ReadBuffer,
    bias: ReadBuffer | None,
    q: WriteBuffer | None,
    scale: WriteBuffer | None,
    zero: WriteBuffer | None,
    values: WriteBuffer | None,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_conv_backward(
    shape: Sequence[int],
    x_q: ReadBuffer,
    x_scale: ReadBuffer,
    x_zero: ReadBuffer,
    weight: ReadBuffer,
    g: ReadBuffer,
    key: int,
    wide: bool,
    dx: WriteBuffer | None,
    dw: WriteBuffer | None,
    db: WriteBuffer | None,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_evonorm(
    shape: Sequence[int],
    y_q: ReadBuffer,
    y_scale: ReadBuffer,
    y_zero: ReadBuffer,
    v: ReadBuffer,
    gamma: ReadBuffer,
    beta: ReadBuffer,
    q: WriteBuffer,
    scale: WriteBuffer,
    zero: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_evonorm_backward(
    shape: Sequence[int],
    y_q: ReadBuffer,
    y_scale: ReadBuffer,
    y_zero: ReadBuffer,
    v: ReadBuffer,
    gamma: ReadBuffer,
    beta: ReadBuffer,
    g: ReadBuffer,
    dy: WriteBuffer,
    dv: WriteBuffer,
    dgamma: WriteBuffer,
    dbeta: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_conv_evonorm(
    shape: Sequence[int],
    x_q: ReadBuffer,
    x_scale: ReadBuffer,
    x_zero: ReadBuffer,
    weight: ReadBuffer,
    bias: ReadBuffer | None,
    y_q: WriteBuffer,
    y_scale: WriteBuffer,
    y_zero: WriteBuffer,
    norm: Sequence[int],
    v: ReadBuffer,
    gamma: ReadBuffer,
    beta: ReadBuffer,
    q: WriteBuffer,
    scale: WriteBuffer,
    zero: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_conv_evonorm_backward(
    shape: Sequence[int],
    x_q: ReadBuffer,
    x_scale: ReadBuffer,
    x_zero: ReadBuffer,
    weight: ReadBuffer,
    norm: Sequence[int],
    y_q: ReadBuffer,
    y_scale: ReadBuffer,
    y_zero: ReadBuffer,
    v: ReadBuffer,
    gamma: ReadBuffer,
    beta: ReadBuffer,
    g: ReadBuffer,
    key: int,
    wide: bool,
    dx: WriteBuffer | None,
    dw: WriteBuffer | None,
    db: WriteBuffer | None,
    dv: WriteBuffer,
    dgamma: WriteBuffer,
    dbeta: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_max_pool(
    shape: Sequence[int],
    x_q: ReadBuffer,
    q: WriteBuffer,
    tap: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_max_pool_backward(
    shape: Sequence[int], tap: ReadBuffer, g: ReadBuffer, out: WriteBuffer, threads: int | None = None
) -> None: ...
def int8_pad(
    shape: Sequence[int], x_q: ReadBuffer, zero: ReadBuffer, q: WriteBuffer, threads: int | None = None
) -> None: ...
def int8_slice(
    shape: Sequence[int], batch: int, x_q: ReadBuffer, q: WriteBuffer, threads: int | None = None
) -> None: ...
def int8_slice_backward(
    shape: Sequence[int], batch: int, pitch: int, g: ReadBuffer, dx: WriteBuffer, threads: int | None = None
) -> None: ...
def int8_relu(x_q: ReadBuffer, zero: ReadBuffer, q: WriteBuffer, threads: int | None = None) -> None: ...
def int8_relu_backward(
    x_q: ReadBuffer, zero: ReadBuffer, g: ReadBuffer, dx: WriteBuffer, threads: int | None = None
) -> None: ...
def int8_average_pool(
    shape: Sequence[int],
    x_q: ReadBuffer,
    x_scale: ReadBuffer,
    x_zero: ReadBuffer,
    count_padding: bool,
    out: WriteBuffer,
    threads: int | None = None,
) -> None: ...
def int8_average_pool_backward(
    shape: Sequence[int], g: ReadBuffer, count_padding: bool, out: WriteBuffer, threads: int | None = None
) -> None: ...
def int8_embedding(
    shape: Sequence[int],
    ids: ReadBuffer,
    table: ReadBuffer,
    q: WriteBuffer,
    scale: WriteBuffer,
    zero: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_embedding_backward(
    shape: Sequence[int],
    ids: ReadBuffer,
    g: ReadBuffer,
    key: int,
    wide: bool,
    padding: int,
    dw: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_attention(
    shape: Sequence[int],
    maps: Sequence[ReadBuffer],
    seen: ReadBuffer | None,
    mask: Sequence[int],
    dropped: float,
    key: int,
    out: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_attention_backward(
    shape: Sequence[int],
    maps: Sequence[ReadBuffer],
    seen: ReadBuffer | None,
    mask: Sequence[int],
    dropped: float,
    key: int,
    g: ReadBuffer,
    dq: WriteBuffer,
    dk: WriteBuffer,
    dv: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_layernorm(
    shape: Sequence[int],
    y_q: ReadBuffer,
    y_scale: ReadBuffer,
    y_zero: ReadBuffer,
    gamma: ReadBuffer,
    beta: ReadBuffer,
    factor: float,
    epsilon: float,
    q: WriteBuffer,
    scale: WriteBuffer,
    zero: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_layernorm_backward(
    shape: Sequence[int],
    y_q: ReadBuffer,
    y_scale: ReadBuffer,
    y_zero: ReadBuffer,
    gamma: ReadBuffer,
    factor: float,
    epsilon: float,
    g: ReadBuffer,
    dy: WriteBuffer,
    dgamma: WriteBuffer,
    dbeta: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_gelu(
    x_q: ReadBuffer,
    x_scale: ReadBuffer,
    x_zero: ReadBuffer,
    q: WriteBuffer,
    scale: WriteBuffer,
    zero: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> None: ...
def int8_gelu_backward(
    x_q: ReadBuffer,
    x_scale: ReadBuffer,
    x_zero: ReadBuffer,
    g: ReadBuffer,
    dx: WriteBuffer,
    threads: int | None = None,
) -> None: ...
def splitmix64(value: int) -> int: ...
def derive_key(seed: int, *counters: int) -> int: ...

class Relay:
    def __init__(self) -> None: ...
    def add(self, outside: int, inside: int) -> int: ...
    def cut(self, id: int) -> None: ...
    def fileno(self) -> int: ...
    def ended(self) -> list[tuple[int, int, int]]: ...
    def close(self) -> None: ...

def pool_empty(size: tuple[int, ...], format: str, channels_first: bool) -> object: ...
def pool_drop() -> None: ...
def pool_waiting_bytes() -> int: ...

class Int8Program:
    def __init__(self, size: int, isa: str | None = None) -> None: ...
    def quantise(self, x: int) -> int: ...
    def conv(self, x: int, shape: Sequence[int], weight: object, bias: object | None, as_floats: bool) -> int: ...
    def evonorm(self, y: int, shape: Sequence[int], v: object, gamma: object, beta: object) -> int: ...
    def add(self, a: int, b: int) -> int: ...
    def relu(self, x: int) -> int: ...
    def max_pool(self, x: int, shape: Sequence[int]) -> int: ...
    def average_pool(self, x: int, shape: Sequence[int], count_padding: bool) -> int: ...
    def pad(self, x: int, shape: Sequence[int]) -> int: ...
    def slice(self, x: int, shape: Sequence[int]) -> int: ...
    def flatten(self, x: int, channels: int) -> int: ...
    def end(self, x: int) -> int: ...
    def run(self, x: object, batch: int, out: object, threads: int | None = None) -> None: ...
