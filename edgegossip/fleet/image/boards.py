"""What an image needs to know of a board: its Debian, its Python, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from edgegossip.choices import did_you_mean
from edgegossip.options import REQUIRED, option
from edgegossip.types import ConfigError


@dataclass(frozen=True, slots=True)
class Debian:
    """Describes a release of Debian, as far as images are concerned."""

    suite: str
    version: int
    python: str  # its python3, as "3.11"
    glibc: tuple[int, int]  # the newest that our wheel for it may need

    @property
    def lock(self) -> str:
        """The hashed lock file of the client's Python packages, below deploy/locks."""
        return f"debian-{self.version}-python{self.python}-aarch64.txt"


# It has glibc 2.36; the same wheel is for JetPack 6, which is Ubuntu 22.04.
BOOKWORM = Debian("bookworm", 12, "3.11", (2, 35))
# It has glibc 2.41; the same wheel, by the stable ABI, is for JetPack 7.2, which is Ubuntu 24.04.
TRIXIE = Debian("trixie", 13, "3.13", (2, 39))


@dataclass(frozen=True, slots=True)
class BoardKind:
    """Describes a kind of board, and the releases of Debian that start on it, its usual one first.
    `emulated` says what of its image ran under emulation; no image has run on a physical board."""

    name: str
    title: str
    debians: tuple[Debian, ...]
    emulated: str

    @property
    def debian(self) -> Debian:
        """The release of Debian that its image has unless another is asked for."""
        return self.debians[0]

    def with_suite(self, suite: str) -> BoardKind:
        """Return the board with that suite as its only one; empty: with its usual one. Raises
        ConfigError."""
        there = {debian.suite: debian for debian in self.debians}
        if suite and suite not in there:
            hint = did_you_mean(suite, there) or f": one of {', '.join(there)}"
            raise ConfigError(f"--suite {suite}: no image of {self.name} has it{hint}")
        return replace(self, debians=(there[suite] if suite else self.debian,))


_BOTH = (BOOKWORM, TRIXIE)
_ALL = (
    BoardKind("raspberry-pi-3", "Raspberry Pi 3, 3+, CM3", _BOTH, "no more than raspberry-pi-4: the same files"),
    BoardKind("raspberry-pi-4", "Raspberry Pi 4, 400, CM4", _BOTH, "first boot and a round, qemu -M virt -cpu cortex-a72"),
    BoardKind("raspberry-pi-zero-2-w", "Raspberry Pi Zero 2 W", _BOTH, "no more than raspberry-pi-4: the same files"),
    BoardKind("raspberry-pi-5", "Raspberry Pi 5, 500, CM5", (TRIXIE,), "first boot and a round, qemu -M virt -cpu cortex-a72"),
)  # fmt: skip
BOARDS = MappingProxyType({board.name: board for board in _ALL})


# Boards with a system of their own that takes the wheel of one of these: JetPack 7.2 that of
# Debian 13, JetPack 6 that of Debian 12
_ALSO = (BoardKind("jetson-orin-nano", "NVIDIA Jetson Orin", (TRIXIE, BOOKWORM), "nothing"),)
CLIENTS = MappingProxyType({**BOARDS, **{board.name: board for board in _ALSO}})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFrom:
    """Says for which board something is built, and of what, as options of `edgegossip image`."""

    board: str = option(REQUIRED, "Such as raspberry-pi-4; docs/images.md lists them.")
    suite: str = option("", "Debian's: bookworm (12) or trixie (13); default: the board's usual one.")
    mirror: str | None = option(
        None, "Debian's archive; default: that of this machine's apt.", metavar="ADDRESS[,SECURITY]"
    )
    source: Path | None = option(
        None, "A checkout of edgegossip; default: the one this command runs from.", path="folder", metavar="DIR"
    )
    cache: Path | None = option(
        None, "Where finished steps are kept; default: ~/.cache/edgegossip/images.", path="folder", metavar="DIR"
    )

    def kind(self, known: Mapping[str, BoardKind] = BOARDS) -> BoardKind:
        """Return the board of this name among those `known`, with this suite. Raises ConfigError
        with the nearest valid choice."""
        if self.board not in known:
            hint = did_you_mean(self.board, known)
            raise ConfigError(f"--board {self.board}: nothing is built for it; there are {', '.join(known)}{hint}")
        return known[self.board].with_suite(self.suite)
