"""`python -m lab.smoke [--work DIR] [--from STAGE] [STAGE...]`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from edgegossip.fleet.image import build
from edgegossip.fleet.image.tools import need
from edgegossip.types import EdgegossipError, HostError
from lab.smoke.machine import GUEST, Stopped
from lab.smoke.stages import ADDRESSES, STAGES

_INSIDE = "EDGEGOSSIP_SMOKE_INSIDE"


def main() -> int:
    names = [stage.__name__ for stage in STAGES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/edgegossip/image-smoke")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/edgegossip/images")
    parser.add_argument("--from", dest="start", choices=names, help="do this stage and those after it again")
    parser.add_argument("--only", choices=names, help="do this stage alone, again")
    options = parser.parse_args()
    if os.geteuid():
        print("this needs root: for the root file system's owners, and a network namespace of its own", file=sys.stderr)
        return 4
    try:
        need(*build.NEEDS, *build.CARD_NEEDS, "qemu-system-aarch64", "ip")
    except HostError as error:
        print(error, file=sys.stderr)
        return 4
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`: no emulator is left behind
    options.work.mkdir(parents=True, exist_ok=True)
    again = [options.only] if options.only else names[names.index(options.start) :] if options.start else []
    if not os.environ.get(_INSIDE):
        for name in again:
            (options.work / f"{name}.done").unlink(missing_ok=True)
        if (code := carry_out(options.work, options.cache, names[:1] if options.only in (None, names[0]) else [])) == 0:
            words = [
                "--work",
                options.work,
                "--cache",
                options.cache,
                *(["--only", options.only] if options.only else []),
            ]
            inside = ["unshare", "--net", "--", sys.executable, "-m", "lab.smoke", *map(str, words)]
            code = subprocess.run(inside, env={**os.environ, _INSIDE: "1"}).returncode
        return code
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in ADDRESSES:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    # Who calls the board from here must not come from the board's own address, which its kernel
    # would drop: the emulator shows it loopback's as 10.0.2.2.
    route = f"ip route replace local {GUEST} dev lo table local proto kernel scope host src 127.0.0.1"
    subprocess.run(route.split(), check=True)
    return carry_out(options.work, options.cache, [options.only] if options.only else names[1:])


def carry_out(work: Path, cache: Path, wanted: list[str]) -> int:
    for stage in STAGES:
        name, done = stage.__name__, work / f"{stage.__name__}.done"
        if name not in wanted:
            continue
        if done.exists():
            before = json.loads(done.read_text())
            print(f"{name}: done before in {before['seconds']:.0f} s: {before['says']}", flush=True)
            continue
        print(f"{name} ...", flush=True)
        start = time.monotonic()
        try:
            says = stage(work, cache)
        except (Stopped, EdgegossipError, subprocess.TimeoutExpired) as error:
            print(f"{name}: stopped after {time.monotonic() - start:.0f} s: {error}", flush=True)
            return 1
        seconds = time.monotonic() - start
        done.write_text(json.dumps({"seconds": seconds, "says": says}))
        print(f"{name}: {seconds:.0f} s: {says}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
