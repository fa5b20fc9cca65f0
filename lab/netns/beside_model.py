"""Two results side by side: real boards in namespaces, and the model.

python -m lab.netns.beside_model NETNS_FOLDER MODEL_FOLDER

Prints a table: what an exchange took beside the bytes that went over the link by its rate, T of
both, and T of both without Cp and En, which both take from the same device profile.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lab.netns.run_cell import given_s

Row = dict[str, Any]


def rows_of(folder: Path) -> dict[tuple[str, int], Row]:
    """Return the rows of a run by scheme and boards."""
    table = json.loads((folder / "table.json").read_text())
    return {(row["scheme"], row["devices"]): row for row in table["rows"] if row["t_s"] is not None}


def line(row: Row, modelled: Row) -> list[str]:
    """Return a cell beside the model's, as the table has it."""
    exchange = row["exchange"]
    link_s = exchange["rate_share"] * exchange["seconds"]
    return [
        row["scheme"],
        str(row["devices"]),
        f"{exchange['seconds']:.3f}",
        f"{link_s:.3f}",
        f"{exchange['seconds'] / link_s:.3f}",
        f"{exchange['dilation']:.2f}",
        f"{row['t_s']:.2f}",
        f"{modelled['t_s']:.2f}",
        f"{modelled['t_s'] / row['t_s']:.2f}",
        f"{row['t_s'] - given_s(row):.2f}",
        f"{modelled['t_s'] - given_s(modelled):.2f}",
        f"{(modelled['t_s'] - given_s(modelled)) / (row['t_s'] - given_s(row)):.2f}",
    ]


def main() -> None:
    """Print the table."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    netns, model = (rows_of(Path(folder)) for folder in sys.argv[1:])
    head: tuple[str, ...] = (
        "scheme",
        "boards",
        "exchange",
        "bytes / rate",
        "ratio",
        "dilation",
        "T netns",
        "T model",
        "model / netns",
    )
    head += ("netns without Cp, En", "model without", "model / netns without")
    print("| " + " | ".join(head) + " |")
    print("| --- | " + " | ".join(["---:"] * (len(head) - 1)) + " |")
    for key, row in netns.items():
        if key in model:
            print("| " + " | ".join(line(row, model[key])) + " |")


if __name__ == "__main__":
    main()
