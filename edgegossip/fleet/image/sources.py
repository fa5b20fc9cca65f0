"""Where Debian's packages come from: the mirror that this machine's own apt uses, or the one that
the user names. Pure but for `ask_apt`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgegossip.fleet.image.boards import Debian
from edgegossip.types import HostError

COMPONENTS = "main non-free-firmware"  # the latter: what a Raspberry Pi's boot loader and radio need
_FORMAT = "$(REPO_URI)|$(LABEL)"


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Base addresses of Debian's archive and of its security updates (empty: none)."""

    archive: str
    security: str


def ask_apt() -> Mirrors:
    """Those of this machine's apt. Raises HostError when it knows none: not a Debian, or
    `apt-get update` never ran."""
    from edgegossip.fleet.image.tools import run

    return of_index(run(["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"], 60).splitlines())


def of_index(lines: Iterable[str]) -> Mirrors:
    """From lines URI|LABEL of `apt-get indextargets`. Raises HostError."""
    known: dict[str, str] = {}
    for line in lines:
        address, _, label = line.partition("|")
        known.setdefault(label, address)
    if "Debian" not in known:
        raise HostError(
            "apt on this machine knows no archive of Debian: name one with --mirror (or run `apt-get update`)"
        )
    return Mirrors(known["Debian"], known.get("Debian-Security", ""))


def named(mirror: str) -> Mirrors:
    """One that the user names: MIRROR, or MIRROR,SECURITY. Raises HostError."""
    archive, _, security = mirror.partition(",")
    if not all(part.startswith(("http://", "https://", "file:", "copy:")) for part in (archive, security or archive)):
        raise HostError(
            f"--mirror {mirror}: write ADDRESS or ADDRESS,SECURITY_ADDRESS, each with http://, https:// or file:"
        )
    return Mirrors(archive, security)


def deb_lines(mirrors: Mirrors, debian: Debian) -> tuple[str, ...]:
    """What mmdebstrap takes: the release, its point updates, and security updates where they are to
    be had."""
    suites = [(mirrors.archive, debian.suite), (mirrors.archive, f"{debian.suite}-updates")]
    if mirrors.security:
        suites.append((mirrors.security, f"{debian.suite}-security"))
    return tuple(f"deb {address} {suite} {COMPONENTS}" for address, suite in suites)
