"""`fleet serve`: the desk at which boards check in, with the fleet's coordinator's identity."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from edgegossip.fleet.launch.admission import coordinator_of


def serve(folder: Path, listen: str, identity: Path | None, say: Callable[[str], None]) -> None:
    """Until KeyboardInterrupt. Raises EdgegossipError."""
    from edgegossip.fleet.serve import Server, open_desk

    desk = open_desk(folder, identity or coordinator_of(folder), say)
    with Server(desk, listen) as server:
        say(f"boards of fleet {desk.admission.identity.fleet} check in at {server.address}; Ctrl-C ends this")
        thread = threading.Thread(target=server.serve_forever, daemon=True, name="check-ins")
        thread.start()
        try:
            thread.join()
        finally:
            server.shutdown()
