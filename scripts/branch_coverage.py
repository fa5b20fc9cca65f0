#!/usr/bin/env python3
"""Fail unless branch coverage of each given file or folder reaches a share; reads .coverage of the
last test run.

python scripts/branch_coverage.py PERCENT PATH...
"""

import sys
from pathlib import Path

from coverage import Coverage


def branches(coverage: Coverage, file: Path) -> tuple[int, int]:
    """(taken, all) branches of one file; all of them are missing when no test imported it."""
    numbers = coverage._analyze(str(file)).numbers
    return numbers.n_branches - numbers.n_missing_branches, numbers.n_branches


def main(required: float, paths: list[Path]) -> int:
    coverage = Coverage()
    coverage.load()
    failed = False
    for path in paths:
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        counts = [branches(coverage, file) for file in files]
        taken, total = sum(c[0] for c in counts), sum(c[1] for c in counts)
        percent = 100 * taken / total if total else 100.0
        failed |= percent < required
        print(f"branch coverage of {path}: {percent:.1f} % ({taken} of {total}), required {required:g} %")
        if percent < required:
            missing = [f"{f} ({t} of {n})" for f, (t, n) in zip(files, counts, strict=True) if t < n]
            print("  not fully covered: " + ", ".join(missing))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), [Path(p) for p in sys.argv[2:]]))
