# SPDX-License-Identifier: Apache-2.0
"""Sums what llvm-cov exported by folder: a line each for engine and service, and the files with the
most lines that nothing ran.

    llvm-cov-14 export --summary-only ... | /usr/bin/python3 tests/support/coverage_report.py
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "service", "metrics")
WORST = 15


def relative(name: str) -> str:
    """A file's path below the checkout, however the compiler kept it: absolute, or by way of the
    build folder."""
    path = Path(os.path.normpath(ROOT / name))
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else name


def percent(summaries: list[dict[str, Any]], what: str) -> float:
    """How many of all there are were run."""
    count = sum(summary[what]["count"] for summary in summaries)
    covered = sum(summary[what]["covered"] for summary in summaries)
    return 100 * covered / count if count else 0


def main() -> int:
    files = {relative(f["filename"]): f["summary"] for f in json.load(sys.stdin)["data"][0]["files"]}
    missed = []
    lines = []
    for folder in FOLDERS:
        mine = {n: s for n, s in files.items() if n.startswith(f"{folder}/")}
        if not mine:
            continue
        for name, summary in mine.items():
            count, covered = summary["lines"]["count"], summary["lines"]["covered"]
            missed.append((count - covered, count, name))
        summaries = list(mine.values())
        lines.append(
            f"{folder:8}{percent(summaries, 'lines'):5.1f}%  (branches"
            f" {percent(summaries, 'branches'):.1f}%, {len(mine)} files)"
        )
    print("lines not run, of all, file:")
    for left, count, name in sorted(missed, reverse=True)[:WORST]:
        print(f"  {left:4} {count:5}  {name}")
    print(*lines, sep="\n")
    return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main())
