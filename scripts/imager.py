"""Write the repository that Raspberry Pi Imager offers images of boards from.

    python scripts/imager.py URL IMAGE... > os_list.json

URL is the folder that serves the files. IMAGE is what `edgegossip image build` made, beside its
IMAGE.json, or that packed by xz. Imager takes the file with `rpi-imager --repo URL/os_list.json`.
It customises nothing: who a board is comes with its provisioning bundle, copied to the card's boot
partition as edgegossip.kit."""

import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from edgegossip.fleet.image.boards import BOARDS

TAGS = {  # of Imager's list of devices
    "raspberry-pi-3": "pi3-64bit",
    "raspberry-pi-4": "pi4-64bit",
    "raspberry-pi-5": "pi5-64bit",
    "raspberry-pi-zero-2-w": "pi3-64bit",
}


def entry(url: str, file: Path) -> dict:
    """Return what Imager needs to know of one image: `extract_` of the card, `image_download_` of
    the file."""
    about = json.loads(file.with_name(f"{file.name.removesuffix('.xz')}.json").read_text())
    board = BOARDS[about["board"]]
    packed = file.suffix == ".xz"
    return {
        "name": f"edgegossip for {board.title}",
        "description": f"Debian {about['debian']} with edgegossip {about['release']}; needs a bundle of `fleet kit`",
        "icon": "",
        "url": f"{url.rstrip('/')}/{file.name}",
        "extract_size": about["size"],
        "extract_sha256": about["sha256"],
        "image_download_size": file.stat().st_size,
        "image_download_sha256": digest(file) if packed else about["sha256"],
        "release_date": datetime.fromtimestamp(about["epoch"], UTC).date().isoformat(),
        "init_format": "none",
        "architecture": "armv8",
        "devices": [TAGS[board.name]],
    }


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


if __name__ == "__main__":
    url, *files = sys.argv[1:]
    print(json.dumps({"os_list": [entry(url, Path(file)) for file in files]}, indent=2))
