# SPDX-License-Identifier: Apache-2.0
"""Runs benches, one after another: `./dev bench [NAME...]`. Each prints a table of its rows, its
ratios with their bars, and as its last line one JSON object, which is also written to
bench/out/NAME.json, or of a smoke run to bench/out/quick/NAME.json. `--report` renders
docs/benchmarks.md from the former."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import machine
from harness import NAMES, ROOT, Bench, number, result_path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="a smoke run: least sizes, one run")
    parser.add_argument("--runs", type=int, help="samples of each row (5; quick: 1)")
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "bench", help="where to work")
    parser.add_argument("--report", action="store_true", help="render docs/benchmarks.md")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"no such bench: {', '.join(unknown)}")
    return args


def show(result: dict[str, Any]) -> None:
    # Wide even into a file: a cut figure is no figure.
    console = Console(width=None if sys.stdout.isatty() else 120)
    rows = Table("what", "size", title=result["bench"], title_style="bold")
    for heading in ("median", "min", "max", "unit", "runs"):
        rows.add_column(heading, justify="left" if heading == "unit" else "right")
    for row in result["rows"]:
        if "unavailable" in row:
            rows.add_row(row["what"], row["size"], f"cannot run: {row['unavailable']}")
            continue
        figures = (number(row[name]) for name in ("median", "min", "max"))
        rows.add_row(row["what"], row["size"], *figures, row["unit"], str(row["runs"]))
    console.print(rows)
    bars = Table("ratio", "value", "bar", "holds")
    for name, value in result["ratios"].items():
        bar = result["bars"][name]
        verdict = {True: "[green]yes", False: "[red]no", None: "not measured"}[bar["holds"]]
        bars.add_row(name, "" if value is None else number(value), bar["bar"], verdict)
    console.print(bars)


def rounded(value: Any) -> Any:
    """Figures to six digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def run_one(name: str, args: argparse.Namespace) -> None:
    module = importlib.import_module(name)
    directory = args.dir.resolve() / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        runs = args.runs or (1 if args.quick else 5)
        bench = Bench(name, module.BARS, directory, runs, args.quick)
        facts = machine.facts(directory)
        module.run(bench)
        result = bench.as_json() | {"machine": facts}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    show(result)
    line = json.dumps(rounded(result))
    path = result_path(name, args.quick)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    print(line, flush=True)


def main() -> int:
    args = arguments()
    if args.report:
        import report  # Needs matplotlib, which running a bench does not.

        report.render()
        return 0
    failed = []
    for name in args.names or NAMES:
        print(f"=== {name}", flush=True)
        try:
            run_one(name, args)
        except Exception:  # The other benches are worth running all the same.
            traceback.print_exc()
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
