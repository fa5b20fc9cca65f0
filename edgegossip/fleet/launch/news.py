"""A revocation list that the board's check-in brings reaches the node that runs.

The check-in (update/agent.py) is root's and keeps the list in /etc/edgegossip. The node is another
user, and what systemd gave it (LoadCredential=) is a copy of when it was started. So it looks at
that folder, which everybody may read, and takes a newer list over into its own, where the mesh and
the coordinator's clients look. Only what the fleet's authority signed counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgegossip.security.certificates import certificate_from_pem
from edgegossip.security.identity import CA, CRL, Revocations, stamp
from edgegossip.types import EdgegossipError

HELD = Path("/etc/edgegossip")  # as first boot makes it (deploy/rootfs)
LOOK_S = 2.0


class News:
    """`held`: the folder that is looked at; `own`: the identity folder that the node runs with."""

    def __init__(self, held: Path, own: Path, say: Callable[[str], None]) -> None:
        self._held, self._own, self._say = held / CRL, own, say
        self._seen: object = None

    def look(self) -> bool:
        """Whether a newer list was taken over. One that cannot be used, half copied for example, is
        looked at again when it changes."""
        found = stamp(self._held)
        if found is None or found == self._seen:
            return False
        self._seen = found
        try:
            authority = certificate_from_pem((self._own / CA).read_bytes())
            offered = Revocations.load(self._held, authority).present
            return Revocations.load(self._own / CRL, authority).offer(offered.der)
        except (EdgegossipError, OSError) as error:
            self._say(f"the revocation list of the check-in is not taken over: {error}")
            return False


def follow(held: Path, own: Path, say: Callable[[str], None]) -> None:
    """Look now, and from a thread of its own for as long as this process lives."""
    news = News(held, own, say)
    news.look()

    def go_on() -> None:
        while True:
            time.sleep(LOOK_S)
            news.look()

    threading.Thread(target=go_on, daemon=True, name="news").start()
