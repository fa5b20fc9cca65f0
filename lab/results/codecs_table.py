"""Print or write the table of docs/codecs.md: bits and errors of synthetic values, from the results
of `python -m lab.bench codecs`. Speeds depend on machine and day, and stand in lab/results alone.

    python -m lab.results.codecs_table lab/results/pages/NAME.json [--write docs/codecs.md]

With --write it is put there, with the link to the results.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HEAD = (
    "| codec | relative error | bits a value | with `huffman` |",
    "| --- | ---: | ---: | ---: |",
)
LINK = re.compile(r"\[(codecs-[\w-]+)\]\(\.\./lab/results/pages/\1\.json\)")
TABLE = re.compile(re.escape("\n".join(HEAD)) + r"\n(\|.*\n)+")


def rows_of(document: dict[str, Any]) -> list[Row]:
    """Those of synthetic values, of the largest size that was measured."""
    synthetic = [row for row in document["rows"] if row["input"] == "synthetic"]
    largest = max(row["n"] for row in synthetic)
    return [row for row in synthetic if row["n"] == largest]


def table(document: dict[str, Any]) -> str:
    """Lines of Markdown, each with its end: one a codec, with the coders to take."""
    codecs: dict[str, dict[str, Row]] = {}
    for row in rows_of(document):
        codecs.setdefault(row["codec"], {})[row["stage"] or "raw"] = row
    return "".join(f"{line}\n" for line in (*HEAD, *(_line(name, of) for name, of in codecs.items())))


def _line(name: str, of: dict[str, Row]) -> str:
    bits = (f"{of[stage]['bits_per_value']:.2f}" if stage in of else "" for stage in ("raw", "huffman"))
    error = next(iter(of.values()))["relative_error"]
    return f"| {' | '.join((name, f'{error:.3g}', *bits))} |"


def linked(page: str) -> str:
    """The name of the results that a page's table is of. ValueError unless it is one."""
    names = set(LINK.findall(page))
    if len(names) != 1:
        raise ValueError(f"the page links {sorted(names)}, and one file of results was looked for")
    return names.pop()


def written(page: str, document: dict[str, Any], name: str) -> str:
    """The page with table and link of these results. ValueError where it has no place for one."""
    for pattern, text in ((TABLE, table(document)), (LINK, f"[{name}](../lab/results/pages/{name}.json)")):
        page, count = pattern.subn(lambda _, text=text: text, page)
        if count != 1:
            raise ValueError(f"{count} places for {text.splitlines()[0]!r} on the page")
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The table of docs/codecs.md.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args(arguments)
    document = json.loads(options.results.read_text(encoding="utf-8"))
    if options.write is None:
        print(table(document), end="")
    else:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(written(page, document, options.results.stem), encoding="utf-8")


if __name__ == "__main__":
    main()
