"""`edgegossip flash`: the decision, then the bytes."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgegossip.fleet.image import block_devices, configure, partitions
from edgegossip.fleet.image.card_source import Source, open_source
from edgegossip.fleet.image.refusals import Wish, describe, device_of, refusals
from edgegossip.fleet.image.steps import Tell
from edgegossip.fleet.image.writing import Progress
from edgegossip.fleet.image.writing import flash as write_card
from edgegossip.types import ConfigError, DataError

_TELL_EVERY_S = 2.0


def flash_card(image: Path, device: str, wish: Wish, tell: Tell, *, verify: bool, dry_run: bool) -> dict[str, Any]:
    """What the command line asks for (`wish.image_size` is filled in here); what was done, for
    JSON. Raises EdgegossipError: ConfigError with every reason when the device must not be
    written."""
    source = open_source(image, tell)
    facts = block_devices.gather(device, image)
    why = refusals(facts, Wish(source.size, wish.confirmed, wish.allow_fixed))
    if why:
        raise ConfigError("nothing was written: " + "; ".join(why))
    check(source)
    found = device_of(facts)
    assert found is not None  # or it would have been refused
    about = {"image": str(image), "device": found.path, "model": describe(found), "size": source.size}
    about["name"] = str(_about(source).get("name", ""))
    about["base"] = bool(_about(source)) and not about["name"]
    if dry_run:
        return {**about, "written": False}
    tell(f"writing {source.size / 1e9:.2f} GB to {found.path} ({describe(found)})")
    done = write_card(source, found.path, facts.medium, expected(source), _progress(tell), verify=verify)
    return {**about, "written": True, "verified": verify, **asdict(done)}


def check(source: Source) -> None:
    """Raises DataError unless it begins as the image of a whole card does, and is as long as its
    partitions need."""
    about = _about(source)
    if about.get("size", source.size) != source.size:
        raise DataError(
            f"{source.file} has {source.size} bytes, and the image that was built has {about['size']}: copy it again"
        )
    try:
        found = partitions.read(source.head(partitions.SECTOR), source.size)
    except DataError as error:
        raise DataError(f"{source.file}: {error}; nothing was written, as no board starts from it") from error
    if not found:
        raise DataError(f"{source.file}: its partition table is empty; nothing was written, as no board starts from it")


def expected(source: Source) -> str:
    """The SHA-256 that the file beside an image says; empty without one. Raises DataError."""
    return str(_about(source).get("sha256", ""))


def _about(source: Source) -> dict[str, Any]:
    return configure.described(source.file.with_name(source.image_name))


def _progress(tell: Tell) -> Progress:
    """A line every two seconds, and at the end of each part."""
    start, said = time.monotonic(), 0.0
    part = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal start, said, part
        now = time.monotonic()
        if what != part:
            start, said, part = now, now, what
        if done < total and now - said < _TELL_EVERY_S:
            return
        said = now
        rate = done / 1e6 / max(now - start, 1e-3)
        tell(f"{what} {done / total:4.0%}  {done / 1e6:.0f} of {total / 1e6:.0f} MB, {rate:.0f} MB/s")

    return show
