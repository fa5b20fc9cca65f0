"""A member's identity folder inside the fleet's: written aside, and put in its place when the index
knows its certificate.

So nobody can copy a certificate that could not be revoked, and what an interrupted command leaves
is finished by the next one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from edgegossip.files import write_file
from edgegossip.security import identity as layout
from edgegossip.security.certificates import Issued, certificate_pem, key_pem


def stage(home: Path, issued: Issued, about: Mapping[str, str]) -> None:
    """Write aside what will be in the folder `home`. Raises OSError."""
    aside = _aside(home)
    shutil.rmtree(aside, ignore_errors=True)  # of a command that was interrupted before the index knew of it
    aside.mkdir(parents=True)
    aside.chmod(0o700)
    write_file(aside / layout.KEY, key_pem(issued.key), 0o600)
    write_file(aside / layout.CERTIFICATE, certificate_pem(issued.certificate))
    write_file(aside / layout.ABOUT, "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items()).encode())


def is_staged(home: Path, serial: str) -> bool:
    """Whether the certificate of this serial (hexadecimal) still waits to be put in its place."""
    try:
        return f'serial = "{serial}"\n' in (_aside(home) / layout.ABOUT).read_text()
    except FileNotFoundError:
        return False


def put_in_place(home: Path, fleet: Path) -> None:
    """Move what was staged to where people look for it, with the authority's certificate and
    revocation list of the folder `fleet`. May be said again at any point. Raises OSError."""
    aside = _aside(home)
    home.mkdir(exist_ok=True)
    home.chmod(0o700)
    _move(aside / layout.KEY, home)
    _move(aside / layout.CERTIFICATE, home)
    for file in (
        layout.CA,
        layout.CRL,
    ):  # the list last: a running board looks at its other files when this one changes
        write_file(home / file, (fleet / file).read_bytes())
    _move(aside / layout.ABOUT, home)
    aside.rmdir()


def _aside(home: Path) -> Path:
    return home.with_name(f".{home.name}.new")


def _move(file: Path, home: Path) -> None:
    if file.exists():  # else an interrupted command has moved it already
        os.replace(file, home / file.name)
