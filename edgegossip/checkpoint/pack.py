"""Typed values <-> bytes, without pickle: what a checkpoint holds of a state.

A value becomes a *tree* of tagged bytes and a list of *blobs*, the contents of its arrays and
message bodies, which are views of the arrays and not copies. Exact: numbers to the bit, big
integers, dtypes, the kind of every container, None, enums. An array or body that occurs twice is
kept once and comes back as one object. A `memoryview` comes back as `bytes`.

A tree names classes, and only those of a `Classes` table can appear: what is read from a disk
decides nothing but the values of fields whose types are checked (docs/checkpoints.md has the
format). Every length is held against the bytes that are there before anything is allocated by it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgegossip.checkpoint.classes import Classes
from edgegossip.types import DataError, UsageError

MAX_DEPTH = 64
MAX_ITEMS = 2**20  # of one container
INLINE_BYTES = 256  # longer bytes are blobs
_MAX_INT_BYTES = 4096
_FLOAT = struct.Struct("<d")
_DTYPES = ("<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1")
_CONTAINERS: Mapping[type, bytes] = {tuple: b"(", list: b"[", frozenset: b"f", set: b"s"}
_MAPPINGS: Mapping[type, bytes] = {dict: b"{", MappingProxyType: b"M"}


class Blobs(Protocol):
    """The contents of arrays and bodies, by number, while a tree is read. Both raise DataError when
    what is there has another size, or is damaged."""

    @property
    def count(self) -> int: ...

    def size(self, index: int) -> int: ...

    def bytes(self, index: int) -> bytes: ...

    def fill(self, index: int, into: memoryview) -> None: ...


def _content(array: NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


class Packer:
    """Values into one tree and its blobs. `blobs` holds on to the arrays until the packer is
    dropped."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._out = bytearray()
        self._seen: dict[int, int] = {}  # id -> blob
        self._kept: list[Any] = []  # so that no id is used twice
        self.blobs: list[memoryview] = []

    @property
    def tree(self) -> bytes:
        return bytes(self._out)

    def add(self, value: Any, where: str = "the state", depth: int = 0) -> None:
        """Append a value. Raises UsageError, with the way to it, on one that no table tells how to
        keep."""
        if depth > MAX_DEPTH:
            raise UsageError(f"{where} is nested more than {MAX_DEPTH} deep, which no checkpoint keeps")
        kind, out = type(value), self._out
        if value is None or value is True or value is False:
            out += b"N" if value is None else b"T" if value else b"F"
        elif kind is int:
            self._int(value, where)
        elif kind is float:
            out += b"D" + _FLOAT.pack(value)
        elif kind is str:
            out += b"S"
            self._piece(value.encode("utf-8", "surrogatepass"))
        elif kind in (bytes, memoryview) and memoryview(value).nbytes <= INLINE_BYTES:
            out += b"B"
            self._piece(bytes(value))
        elif kind in (bytes, memoryview):
            out += b"C"
            self._length(self._blob(value, memoryview(value)))
        elif kind is np.ndarray:
            self._array(value, where)
        elif kind in _CONTAINERS:
            out += _CONTAINERS[kind]
            self._length(len(value))
            for k, item in enumerate(sorted(value) if kind in (frozenset, set) else value):
                self.add(item, f"{where}[{k}]", depth + 1)
        elif kind in _MAPPINGS:
            out += _MAPPINGS[kind]
            self._length(len(value))
            for key, item in value.items():
                self.add(key, f"a key of {where}", depth + 1)
                self.add(item, f"{where}[{key!r}]", depth + 1)
        else:
            self._object(value, where, depth)

    def _object(self, value: Any, where: str, depth: int) -> None:
        name, fields = self._classes.take_apart(value, where)
        if isinstance(value, Enum):
            self._out += b"E"
            self._piece(name.encode())
            self.add(fields["value"], where, depth + 1)
            return
        self._out += b"O"
        self._piece(name.encode())
        self._length(len(fields))
        for field, item in fields.items():
            self._piece(field.encode())
            self.add(item, f"{where}.{field}", depth + 1)

    def _array(self, value: NDArray[Any], where: str) -> None:
        code = value.dtype.newbyteorder("<").str
        if code not in _DTYPES:
            raise UsageError(f"{where} is an array of {value.dtype}, which no checkpoint keeps")
        self._out += b"A"
        if id(value) not in self._seen:
            plain = np.ascontiguousarray(value.astype(code, copy=False))
            self._blob(value, _content(plain))
        self._length(self._seen[id(value)])
        self._piece(code.encode())
        self._length(value.ndim)
        for extent in value.shape:
            self._length(extent)

    def _blob(self, value: Any, content: memoryview) -> int:
        if id(value) not in self._seen:
            self._seen[id(value)] = len(self.blobs)
            self._kept.append(value)
            self.blobs.append(content.cast("B") if content.nbytes else memoryview(b""))
        return self._seen[id(value)]

    def _int(self, value: int, where: str) -> None:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        if len(data) > _MAX_INT_BYTES:
            raise UsageError(f"{where} is a number of {len(data)} bytes, which no checkpoint keeps")
        self._out += b"I"
        self._piece(data)

    def _piece(self, data: bytes) -> None:
        self._length(len(data))
        self._out += data

    def _length(self, value: int) -> None:
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)


class Unpacker:
    """One tree back into values. `value` raises DataError on anything that `Packer` did not
    write."""

    def __init__(self, classes: Classes, tree: bytes, blobs: Blobs, outside: Any = None) -> None:
        """`outside`: what the table's adapters need to know that no tree holds."""
        self._classes, self._tree, self._at, self._outside = classes, tree, 0, outside
        self._blobs, self._made = blobs, dict[int, Any]()
        self._readers: dict[bytes, Callable[[int], Any]] = {
            b"N": lambda _: None,
            b"T": lambda _: True,
            b"F": lambda _: False,
            b"I": lambda _: self._int(),
            b"D": lambda _: _FLOAT.unpack(self._take(8))[0],
            b"S": lambda _: self._text(),
            b"B": lambda _: self._piece(),
            b"C": lambda _: self._body(),
            b"A": lambda _: self._array(),
            b"E": self._enum,
            b"O": self._object,
            **{tag: self._container(kind) for kind, tag in _CONTAINERS.items()},
            **{tag: self._mapping(kind) for kind, tag in _MAPPINGS.items()},
        }

    def value(self, depth: int = 0) -> Any:
        tag = self._take(1)
        if depth > MAX_DEPTH or tag not in self._readers:
            raise DataError("its tree is too deep" if depth > MAX_DEPTH else f"its tree has the unknown tag {tag!r}")
        return self._readers[tag](depth + 1)

    def end(self) -> None:
        """Raises DataError unless all of the tree and every blob was used."""
        if self._at != len(self._tree) or len(self._made) != self._blobs.count:
            raise DataError("it holds more than its tree says")

    def _take(self, count: int) -> bytes:
        if count > len(self._tree) - self._at:
            raise DataError("its tree ends too early")
        self._at += count
        return self._tree[self._at - count : self._at]

    def _length(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise DataError("its tree has a length beyond 64 bits")

    def _count(self) -> int:
        """Of things that take a byte each at least."""
        count = self._length()
        if count > min(MAX_ITEMS, len(self._tree) - self._at):
            raise DataError(f"its tree claims {count} items, more than there can be")
        return count

    def _piece(self) -> bytes:
        return self._take(self._length())

    def _text(self) -> str:
        try:
            return self._piece().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise DataError("its tree has a text that is none") from None

    def _int(self) -> int:
        data = self._piece()
        if not 0 < len(data) <= _MAX_INT_BYTES:
            raise DataError(f"its tree has a number of {len(data)} bytes")
        return int.from_bytes(data, "little", signed=True)

    def _index(self) -> int:
        index = self._length()
        if index >= self._blobs.count:
            raise DataError(f"its tree names part {index}, and there are {self._blobs.count}")
        return index

    def _body(self) -> bytes:
        index = self._index()
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._blobs.bytes(index)
        if not isinstance(made, bytes):
            raise DataError(f"its part {index} is both an array and bytes")
        return made

    def _array(self) -> NDArray[Any]:
        index, code, ndim = self._index(), self._text(), self._length()
        if code not in _DTYPES or ndim > 8:
            raise DataError(f"its tree has an array of {code} in {ndim} dimensions")
        shape = tuple(self._length() for _ in range(ndim))
        dtype, size = np.dtype(code), self._blobs.size(index)
        count = 1
        for extent in shape:
            count *= extent
        if count * dtype.itemsize != size or (max(shape, default=0) > size and count):
            raise DataError(f"its array of {code}{list(shape)} does not fit the {size} bytes that are there")
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = np.empty(shape, dtype)
            self._blobs.fill(index, _content(made))
        if not isinstance(made, np.ndarray) or made.dtype != dtype or made.shape != shape:
            raise DataError(f"its part {index} is used as two different things")
        return made

    def _container(self, kind: type) -> Callable[[int], Any]:
        def read(depth: int) -> Any:
            items = [self.value(depth) for _ in range(self._count())]
            return kind(self._hashable(i) for i in items) if kind in (set, frozenset) else kind(items)

        return read

    def _mapping(self, kind: type) -> Callable[[int], Any]:
        def read(depth: int) -> Any:
            count, found = self._count(), dict[Any, Any]()
            for _ in range(count):
                key = self._hashable(self.value(depth))
                found[key] = self.value(depth)
            if len(found) != count:
                raise DataError("its tree has a key twice")
            return kind(found)

        return read

    def _hashable(self, key: Any) -> Any:
        try:
            hash(key)
        except TypeError:
            raise DataError(f"its tree has a key of type {type(key).__name__}") from None
        return key

    def _enum(self, depth: int) -> Any:
        return self._classes.put_together(self._text(), {"value": self.value(depth)}, self._outside)

    def _object(self, depth: int) -> Any:
        name, fields = self._text(), dict[str, Any]()
        for _ in range(self._count()):
            field = self._text()
            if field in fields:
                raise DataError(f"its {name} has the field {field} twice")
            fields[field] = self.value(depth)
        return self._classes.put_together(name, fields, self._outside)
