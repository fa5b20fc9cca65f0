"""A base image and a board's kit make that board's card. The kit goes onto the boot partition;
first boot takes it from there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.fleet import kitfile
from edgegossip.fleet.image import disk, fat, partitions
from edgegossip.fleet.image.boards import BOARDS
from edgegossip.fleet.image.build import description
from edgegossip.fleet.image.partitions import SECTOR
from edgegossip.fleet.kitfile import Kit
from edgegossip.types import ConfigError, DataError, HostError

KIT = "edgegossip.kit"


@dataclass(frozen=True, slots=True)
class Configured:
    """The card's image and whose it is."""

    image: Path
    kit: Kit
    seconds: float


def configure(base: Path, kit_file: Path, output: Path) -> Configured:
    """Copy `base` to `output` (for its owner only: it holds a key) and put the kit into it. Raises
    EdgegossipError."""
    start = time.monotonic()
    kit = kitfile.read(kit_file)
    about = described(base)
    _check_fits(kit, about, base)
    if output.exists() and output.samefile(base):
        raise ConfigError(f"{output} is the base image itself: name another file, as other boards need it too")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output}: there is no folder {output.absolute().parent}: make it, or name another place")
    boot, _ = layout(base)
    aside = output.with_name(f".{output.name}.part")
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        aside.chmod(0o600)  # of an older one, too
        disk.copy_sparse(base, aside)
        _put_kit(aside, boot.start, kit_file)
        whole = {**about, "name": kit.name, "fleet_id": kit.fleet_id, "base_sha256": about.get("sha256", "")}
        whole["sha256"] = disk.sha256(aside)
        aside.rename(output)
        description(output).write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise HostError(f"{error.filename or output}: {(error.strerror or str(error)).lower()}") from error
    finally:
        aside.unlink(missing_ok=True)
    return Configured(output, kit, time.monotonic() - start)


def _put_kit(image: Path, offset: int, kit_file: Path) -> None:
    """Under the name that first boot looks for."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="edgegossip-kit-") as folder:  # 0700
        named = Path(folder, KIT)
        named.write_bytes(kit_file.read_bytes())
        fat.put(image, offset, [named], int(time.time()))


def layout(image: Path) -> tuple[partitions.Partition, partitions.Partition]:
    """Where boot and root file system are in a card's image. Raises DataError."""
    try:
        with open(image, "rb") as stream:
            head = stream.read(SECTOR)
        return partitions.boot_and_root(head, image.stat().st_size)
    except OSError as error:
        raise DataError(f"{image}: {(error.strerror or str(error)).lower()}") from error
    except DataError as error:
        if head[:6] == b"\xfd7zXZ\0":
            raise DataError(f"{image} is compressed: say `xz -dk {image}` first") from error
        raise DataError(f"{image}: {error}") from error


def described(image: Path) -> dict[str, Any]:
    """What the file beside an image says of it; nothing when there is none. Raises DataError for
    one that is damaged."""
    try:
        found = json.loads(description(image).read_text())
        if not isinstance(found, dict):
            raise ValueError
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{description(image)} is damaged: copy it again from where the image was built") from error


def _check_fits(kit: Kit, about: Mapping[str, Any], base: Path) -> None:
    if about.get("name"):
        raise ConfigError(
            f"{base} is the card of {about['name']} already: use the image that `edgegossip image build` made"
        )
    if kit.board in ("", "other") or "debian" not in about:
        return
    own = BOARDS.get(kit.board)
    if own is None:
        raise ConfigError(f"{kit.name} is a {kit.board}, which starts from no image of ours: see deploy/README.md")
    if own.debian.version != about["debian"]:  # boards of one Debian start from the same files
        raise ConfigError(
            f"{base} is for a {about['board']}, and {kit.name} is a {kit.board}: build an image for that board"
        )
