# SPDX-License-Identifier: Apache-2.0
"""Renders docs/benchmarks.md and its plots from bench/out/*.json: `./dev bench --report`. What the
page says about a bench is the bench's own docstring, its sources, its plots and its rows."""

from __future__ import annotations

import importlib
import json
import re
from types import ModuleType
from typing import Any

import plots
from harness import NAMES, ROOT, number, result_path

PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"

HEAD = """\
# Benchmarks

*Made by `./dev bench --report` from the last runs of `./dev bench`; edit `bench/`, not this page.*

Every figure is a median of runs, taken by `bench/run.py` on one machine, peers in the same run on
the same file system. Cold: the page cache dropped and the process started anew. A peer that could
not run is a row that says why. A bar is what a ratio has to keep. Run times include everything that
a client waits for: where a call is durable, its sync is in the figure.
"""


class Section:
    """One bench: its module and its last result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module: ModuleType | None = None
        self.result: dict[str, Any] | None = None
        if (ROOT / "bench" / f"{name}.py").exists():
            self.module = importlib.import_module(name)
        path = result_path(name, quick=False)
        if path.exists():
            self.result = json.loads(path.read_text())

    def rows(self) -> list[dict[str, Any]]:
        return self.result["rows"] if self.result else []

    def median(self, what: str, size: str) -> str:
        for row in self.rows():
            if (row["what"], row["size"]) == (what, size) and "median" in row:
                return f"{number(row['median'])} {row['unit']}"
        return "not measured"


def table(headings: list[str], rows: list[list[str]], right: set[int] | None = None) -> list[str]:
    right = right or set()
    rules = ["---:" if index in right else "---" for index in range(len(headings))]
    lines = [headings, rules, *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def machine_lines(sections: list[Section]) -> list[str]:
    facts = [section.result["machine"] for section in sections if section.result]
    if not facts:
        return ["Nothing has been measured yet.", ""]
    first = facts[0]
    probes = sorted(fact["fdatasync_ms"] for fact in facts)
    return [
        f"The machine: {first['cores']} cores ({first['cpu']}), {first['ram_gib']} GiB of memory, "
        f"Linux {first['kernel']}, {first['file_system']}. A 4 KiB write and its fdatasync took "
        f"{probes[0]:g} to {probes[-1]:g} ms (median of 200, before each bench). "
        f"Measured {min(fact['date'] for fact in facts)}.",
        "",
    ]


def verdict(holds: bool | None) -> str:
    return {True: "holds", False: "**does not hold**", None: "not measured"}[holds]


def bar_lines(sections: list[Section]) -> list[str]:
    rows = []
    for section in sections:
        if section.result is None:
            rows.append([section.name, "", "", "", "not run"])
            continue
        for name, value in section.result["ratios"].items():
            bar = section.result["bars"][name]
            shown = "" if value is None else number(value)
            link = f"[{section.name}](#{section.name})"
            rows.append([link, f"`{name}`", shown, bar["bar"], verdict(bar["holds"])])
    lines = ["## Bars", ""] + table(["bench", "ratio", "value", "bar", ""], rows, right={2, 3})
    missed = [line for section in sections for line in miss_lines(section)]
    return [*lines, "What does not hold, and why:", "", *missed, ""] if missed else lines


def miss_lines(section: Section) -> list[str]:
    """Why a bar does not hold, as far as its bench knows: `MISSES`, by ratio."""
    bars = section.result["bars"] if section.result else {}
    misses = getattr(section.module, "MISSES", {})
    return [
        f"* `{name}`: {misses[name]}"
        for name, bar in bars.items()
        if bar["holds"] is False and name in misses
    ]


def beside_lines(sections: list[Section]) -> list[str]:
    rows = [
        [beside.source, beside.work, beside.theirs, section.median(beside.what, beside.size)]
        for section in sections
        for beside in getattr(section.module, "BESIDE", [])
    ]
    text = (
        "The sources measured on other machines, in other years: their figures say what the problem "
        "looked like, ours what is left of it. What a peer does on this machine is in the sections."
    )
    head = ["source", "work", "theirs", "ours"]
    return ["## Beside the sources", "", text, ""] + table(head, rows, right={2, 3})


def row_lines(rows: list[dict[str, Any]]) -> list[str]:
    shown = []
    for row in rows:
        if "unavailable" in row:
            shown.append([row["what"], row["size"], f"cannot run: {row['unavailable']}", "", "", ""])
            continue
        figures = [number(row[name]) for name in ("median", "min", "max")]
        shown.append([row["what"], row["size"], *figures, f"{row['unit']}, {row['runs']} runs"])
    head = ["what", "size", "median", "min", "max", ""]
    body = table(head, shown, right={2, 3, 4})
    return ["<details><summary>All rows</summary>", "", *body, "</details>", ""]


def section_lines(section: Section) -> list[str]:
    lines = [f"## {section.name}", ""]
    if section.module is None:
        return [*lines, "There is no such bench in this tree.", ""]
    lines += [(section.module.__doc__ or "").strip(), ""]
    sources = getattr(section.module, "SOURCES", "")
    if sources:
        lines += ["What others measured:", "", sources.strip(), ""]
    if section.result is None:
        return [*lines, "Not run.", ""]
    for plot in getattr(section.module, "PLOTS", []):
        path = PLOTS / f"{section.name}-{plot.name}.svg"
        if plots.draw(plot, section.rows(), path):
            lines += [f"![{plot.title}](benchmarks/{path.name})", ""]
    lines += [f"* {note}" for note in section.result["notes"]]
    lines += [""] if section.result["notes"] else []
    return lines + row_lines(section.rows())


def render() -> None:
    PLOTS.mkdir(exist_ok=True)
    for old in PLOTS.glob("*.svg"):
        old.unlink()
    sections = [Section(name) for name in NAMES]
    lines = HEAD.splitlines() + [""]
    lines += machine_lines(sections) + bar_lines(sections) + beside_lines(sections)
    for section in sections:
        lines += section_lines(section)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)} and {len(list(PLOTS.glob('*.svg')))} plots")
