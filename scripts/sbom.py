"""List what an image of boards' cards has, as CycloneDX: Debian's packages by what dpkg says of
them, Python's by the lock file that they were checked with.

    python scripts/sbom.py IMAGE OUTPUT

IMAGE.json beside it (of `edgegossip image build`) has the list. `make sbom` calls this, and
cyclonedx-py for the wheel."""

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from edgegossip.fleet.image.boards import BOOKWORM, TRIXIE

ROOT = Path(__file__).parents[1]
LOCKS = {debian.version: ROOT / "deploy/locks" / debian.lock for debian in (BOOKWORM, TRIXIE)}


def bill(about) -> Bom:
    """Return the bill of materials; the same for the same image."""
    bom = Bom(serial_number=UUID(about["sha256"][:32]))
    bom.metadata.timestamp = datetime.fromtimestamp(about["epoch"], UTC)
    bom.metadata.component = Component(
        name=f"edgegossip image for {about['board']}",
        version=about["release"],
        type=ComponentType.OPERATING_SYSTEM,
        bom_ref="image",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=about["sha256"])],
    )
    where = {"arch": "arm64", "distro": f"debian-{about['debian']}"}
    for name, version in about["packages"].items():
        add(bom, PackageURL("deb", "debian", name, version, where))
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", LOCKS[about["debian"]].read_text(), re.MULTILINE):
        add(bom, PackageURL("pypi", None, name, version))
    add(bom, PackageURL("generic", None, "edgegossip", about["release"]))
    bom.register_dependency(bom.metadata.component, bom.components)
    return bom


def add(bom, url) -> None:
    bom.components.add(
        Component(name=url.name, version=url.version, purl=url, bom_ref=str(url), type=ComponentType.LIBRARY)
    )


if __name__ == "__main__":
    image, output = map(Path, sys.argv[1:])
    found = bill(json.loads(image.with_name(f"{image.name}.json").read_text()))
    output.write_text(JsonV1Dot6(found).output_as_string(indent=1) + "\n")
    print(f"{output}: {len(found.components)} packages")
