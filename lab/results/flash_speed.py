"""How fast `edgegossip flash` writes, beside dd in the same run, on a loop device over a file of
this machine.

    sudo python -m lab.results.flash_speed [--mib 2048] [--rounds 3] [--folder /var/tmp]

Prints seconds of both (median), and their ratio. The image has no zeros that could be skipped."""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edgegossip.fleet.image import flashing


def dd(image: Path, device: str) -> float:
    """As people are told to write cards."""
    start = time.monotonic()
    subprocess.run(["dd", f"if={image}", f"of={device}", "bs=4M", "conv=fsync", "status=none"], check=True)
    return time.monotonic() - start


def ours(image: Path, device: str) -> tuple[float, float]:
    """(seconds to write, seconds to verify)"""
    descriptor = os.open(device, os.O_RDWR | os.O_EXCL)
    try:
        done = flashing.write_card(image, descriptor, "", lambda *_: None)
    finally:
        os.close(descriptor)
    return done.write_s, done.verify_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/var/tmp")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("loop devices need root")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        image, card = Path(folder, "image"), Path(folder, "card")
        with open(image, "wb") as stream:
            block = random.Random(1).randbytes(1 << 20)
            for _ in range(options.mib):
                stream.write(block)
        card.touch()
        os.truncate(card, image.stat().st_size)
        # Or the first to write pays for finding room.
        os.posix_fallocate(os.open(card, os.O_RDWR), 0, image.stat().st_size)
        found = subprocess.run(["losetup", "--find", "--show", card], capture_output=True, text=True, check=True)
        device = found.stdout.strip()
        try:
            pairs = [(dd(image, device), *ours(image, device)) for _ in range(options.rounds)]
        finally:
            subprocess.run(["losetup", "--detach", device], check=True)
    theirs, mine, verify = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{options.mib} MiB, median of {options.rounds}: dd {theirs:.2f} s, flash {mine:.2f} s (then {verify:.2f} s to verify)"
    )
    print(f"rate of flash over dd's: {theirs / mine:.2f}")


if __name__ == "__main__":
    main()
