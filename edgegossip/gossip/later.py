"""Mappings that are made when somebody looks: most who audit a state want a few numbers of it, several times a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Later(Mapping[K, V]):
    """What `make` gives, from the first look on."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Mapping[K, V]]) -> None:
        self._make = make
        self._made: Mapping[K, V] | None = None

    def _all(self) -> Mapping[K, V]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: K) -> V:
        return self._all()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
