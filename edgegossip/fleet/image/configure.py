"""A base image and a board's bundle make that board's card. The bundle goes onto the boot
partition; first boot takes it from there."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.files import refused_as
from edgegossip.fleet import kitfile
from edgegossip.fleet.image import disk
from edgegossip.fleet.image.boards import BOARDS
from edgegossip.fleet.image.build import description
from edgegossip.fleet.image.disk import SECTOR, Partition
from edgegossip.fleet.image.filesystems import put_in_fat
from edgegossip.fleet.kitfile import ProvisioningBundle
from edgegossip.types import ConfigError, DataError, HostError

BUNDLE = "edgegossip.kit"


@dataclass(frozen=True, slots=True)
class Configured:
    """Says which image was made a card, and whose it is."""

    image: Path
    bundle: ProvisioningBundle
    seconds: float


def configure(base: Path, bundle_file: Path, output: Path) -> Configured:
    """Copy `base` to `output` (for its owner only: it holds a key) and put the bundle into it.
    Raises EdgegossipError."""
    start = time.monotonic()
    bundle = kitfile.read(bundle_file)
    about = described(base)
    _check_fits(bundle, about, base)
    if output.exists() and output.samefile(base):
        raise ConfigError(f"{output} is the base image itself: name another file, as other boards need it too")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output}: there is no folder {output.absolute().parent}: make it, or name another place")
    boot, _ = layout(base)
    aside = output.with_name(f".{output.name}.part")
    try:
        with refused_as(HostError, output):
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            aside.chmod(0o600)  # of an older one, too
            disk.copy_sparse(base, aside)
            _put_bundle(aside, boot.start, bundle_file)
            whole = {**about, "name": bundle.name, "fleet_id": bundle.fleet_id, "base_sha256": about.get("sha256", "")}
            whole["sha256"] = disk.sha256(aside)
            aside.rename(output)
            description(output).write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    finally:
        aside.unlink(missing_ok=True)
    return Configured(output, bundle, time.monotonic() - start)


def _put_bundle(image: Path, offset: int, bundle_file: Path) -> None:
    """Put the bundle into the boot partition, under the name that first boot looks for."""
    with tempfile.TemporaryDirectory(prefix="edgegossip-kit-") as folder:  # 0700
        named = Path(folder, BUNDLE)
        named.write_bytes(bundle_file.read_bytes())
        put_in_fat(image, offset, [named], int(time.time()))


def layout(image: Path) -> tuple[Partition, Partition]:
    """Find boot and root file system in a card's image. Raises DataError."""
    found = partitions(image)
    if [p.kind for p in found] != [disk.FAT32_LBA, disk.LINUX]:
        raise DataError(
            f"{image} has other partitions than a boot and a root file system: it is no card of this program"
        )
    return found[0], found[1]


def partitions(image: Path) -> tuple[Partition, ...]:
    """Read the partition table of an image. Raises DataError."""
    with refused_as(DataError, image), open(image, "rb") as stream:
        head, size = stream.read(SECTOR), image.stat().st_size
    try:
        return disk.parse_partitions(head, size)
    except DataError as error:
        raise DataError(f"{image}: {error}") from error


def described(image: Path) -> dict[str, Any]:
    """Read what the file beside an image says of it; nothing when there is none. Raises DataError
    for one that is damaged."""
    try:
        found = json.loads(description(image).read_text())
        if not isinstance(found, dict):
            raise ValueError
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{description(image)} is damaged: copy it again from where the image was built") from error


def _check_fits(bundle: ProvisioningBundle, about: Mapping[str, Any], base: Path) -> None:
    if about.get("name"):
        raise ConfigError(
            f"{base} is the card of {about['name']} already: use the image that `edgegossip image build` made"
        )
    if bundle.board in ("", "other") or "debian" not in about:
        return
    own = BOARDS.get(bundle.board)
    if own is None:
        raise ConfigError(f"{bundle.name} is a {bundle.board}, which starts from no image of ours: see docs/deploy.md")
    # Boards of one Debian start from the same files.
    if about["debian"] not in {debian.version for debian in own.debians}:
        raise ConfigError(
            f"{base} is for a {about['board']}, and {bundle.name} is a {bundle.board}: build an image for that board"
        )
