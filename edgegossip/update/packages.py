"""A release is two layers in one folder: our own package, and the packages of a lock file, which
change seldom and are a hundred times as large. A copy of that file, site/packages.lock, says which
they are; its SHA-256 is their name. Pure."""

from __future__ import annotations

import re

LOCK = "packages.lock"  # below site/
_OURS = re.compile(r"site/edgegossip(-[^/]*\.(dist-info|data))?/")


def is_ours(path: str) -> bool:
    """Whether this file of a release (site/...) is of our own package, and not of those that it
    needs."""
    return _OURS.match(path) is not None
