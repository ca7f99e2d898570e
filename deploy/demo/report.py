# SPDX-License-Identifier: Apache-2.0
"""What a run measured and checked: shown as tables, kept as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


def human(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


@dataclass
class Step:
    """A step of the run; `note` says what it did."""

    name: str
    seconds: float = 0.0
    note: str = ""
    _start: float = field(default_factory=time.monotonic, repr=False)

    def stop(self) -> float:
        """Ends the time that counts, before the end of its block. Returns the seconds."""
        self.seconds = time.monotonic() - self._start
        return self.seconds


@dataclass(frozen=True)
class Check:
    """Something that has to be true."""

    name: str
    ok: bool
    found: str


@dataclass
class CloneFigures:
    """What changing one clone cost. `ratio`: written bytes per byte of changed pages."""

    name: str
    section: str
    rows: int
    changed_pages: int
    written_bytes: int
    sublists: int
    entries: int
    ratio: float


@dataclass
class Report:
    """Everything a run found out."""

    console: Console = field(repr=False)
    steps: list[Step] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    clones: list[CloneFigures] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Times a step."""
        step = Step(name)
        yield step
        if step.seconds == 0.0:
            step.stop()
        self.steps.append(step)
        line = f"[bold]{step.name}[/] {step.seconds:.2f} s  {step.note}"
        self.console.print(line, highlight=False)

    def check(self, name: str, ok: bool, found: object) -> None:
        """Notes whether something holds."""
        self.checks.append(Check(name, ok, str(found)))
        if not ok:
            self.console.print(f"[bold red]NOT SO:[/] {name}: {found}", highlight=False)

    @property
    def failed(self) -> list[Check]:
        """The checks that did not hold."""
        return [check for check in self.checks if not check.ok]

    def show(self) -> None:
        """Prints the closing tables."""
        self.console.print(
            self._steps_table(), self._clones_table(), self._figures_table(), self._checks_table()
        )

    def write(self, path: Path, facts: Mapping[str, object]) -> None:
        """Writes the JSON document."""
        document = {
            **facts,
            "ok": not self.failed,
            "steps": [
                {"name": step.name, "seconds": round(step.seconds, 4), "note": step.note}
                for step in self.steps
            ],
            "figures": self.figures,
            "clones": [asdict(clone) for clone in self.clones],
            "checks": [asdict(check) for check in self.checks],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")

    def _steps_table(self) -> Table:
        table = Table("step", title="Steps", title_justify="left")
        table.add_column("time", justify="right")
        table.add_column("what")
        for step in self.steps:
            table.add_row(step.name, f"{step.seconds:.2f} s", step.note)
        return table

    def _clones_table(self) -> Table:
        table = Table("clone", "section", title="Changed clones", title_justify="left")
        for title in ("rows", "pages", "changed", "written", "ratio", "sublists", "entries"):
            table.add_column(title, justify="right")
        for one in self.clones:
            table.add_row(
                one.name, one.section, f"{one.rows:,}", f"{one.changed_pages:,}",
                human(one.changed_pages * 4096), human(one.written_bytes), f"{one.ratio:.2f}",
                str(one.sublists), f"{one.entries:,}",
            )  # fmt: skip
        return table

    def _figures_table(self) -> Table:
        table = Table("figure", title="Figures", title_justify="left")
        table.add_column("value", justify="right")
        for name, value in self.figures.items():
            shown = f"{value:,.4g}" if value != int(value) else f"{int(value):,}"
            table.add_row(name, f"{shown} ({human(value)})" if name.endswith("_bytes") else shown)
        return table

    def _checks_table(self) -> Table:
        table = Table("check", "holds", "found", title="Checks", title_justify="left")
        for check in self.checks:
            table.add_row(check.name, "yes" if check.ok else "[bold red]NO[/]", check.found)
        return table
