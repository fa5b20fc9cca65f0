"""A coordinator and its boards as one program, for the tests that kill it:
`python -m tests.flower.parent FOLDER BOARDS ROUNDS`.

Prints a line with every process id, then records as JSON lines; SIGINT ends it as Ctrl-C does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from edgegossip import recipe as recipes
from edgegossip.flower import Coordinator
from tests.flower import toy


def main(folder: str, boards: str, rounds: str) -> None:
    names = [f"board-{k}" for k in range(int(boards))]
    recipe = recipes.from_dict({"run": {"mode": "server", "rounds": int(rounds), "nodes": max(2, len(names))}})
    with Coordinator(recipe, toy.LAYOUT, toy.Toy(0).initial(1), names, toy.Lines(), Path(folder)) as coordinator:
        address = coordinator.start()
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.flower.toy", name, address, str(k)], stdout=subprocess.DEVNULL
            )
            for k, name in enumerate(names)
        ]
        assert coordinator._superlink is not None
        pids = [coordinator._superlink.process.pid, *(c.pid for c in children)]
        print(json.dumps({"pids": pids}), flush=True)
        coordinator.wait()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
