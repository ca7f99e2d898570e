# SPDX-License-Identifier: Apache-2.0
"""What a bench is made of. A bench is a module bench/NAME.py:

    '''One question, in the first line. Then how it is answered: read by whoever reads the report.'''
    from harness import Bench, Plot

    BARS = {"some_ratio": at_least(100)}   # every ratio it promises, with its bar
    SOURCES = "..."                        # Markdown: what others measured; may be missing
    BESIDE = [Beside(...)]                 # a source's figure and our row; may be missing
    PLOTS = [Plot(...)]                    # drawn by the report; may be missing

    def run(bench: Bench) -> None:
        for _ in bench.each_run("livelist"):
            bench.cold()
            result = bench.program("reclaim", "destroy", "--dir", bench.directory)
            bench.sample("livelist, cold", "1 GB", result["seconds"], "s")
        bench.ratio("some_ratio", bench.over(("walk", "1 GB"), ("livelist", "1 GB")))

Samples that share (what, size) are one row; a row is the median, least and greatest of its samples.
What cannot run is a row with its reason: `with bench.attempt("btrfs", "1 GB"): ...`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).resolve().parent.parent
_OUT = ROOT / "bench" / "out"
PROGRAMS = ROOT / "build" / "release"
# Longer than any step of a bench takes; what runs longer hangs.
COMMAND_SECONDS_MAX = 1200.0

# In the order of the report: what is destroyed, what is made, what it costs.
NAMES = (
    "reclaim",
    "snapshot",
    "clones",
    "write_path",
    "data",
    "storm",
    "condense",
    "memory",
    "open",
)

Key = tuple[str, str]  # what, size


def result_path(name: str, quick: bool) -> Path:
    """Where the last result of a bench lies. That of a smoke run stays apart: it is no figure."""
    return (_OUT / "quick" if quick else _OUT) / f"{name}.json"


class Unavailable(Exception):
    """A peer or a measurement cannot run here; the text says why."""


@dataclass(frozen=True)
class Bar:
    sign: str  # ">=" or "<="
    value: float

    def holds(self, ratio: float) -> bool:
        return ratio >= self.value if self.sign == ">=" else ratio <= self.value

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"


def at_least(value: float) -> Bar:
    return Bar(">=", value)


def at_most(value: float) -> Bar:
    return Bar("<=", value)


@dataclass(frozen=True)
class Plot:
    """A line or bar chart of rows. `rows` chooses by regular expression over "what"; the size of a
    row (its leading number) is the x of its point, and each "what" is one line. `bars`: one bar a
    row instead, for sizes that are no numbers."""

    name: str  # of the file: docs/benchmarks/<bench>-<name>.svg
    title: str
    x: str
    y: str
    rows: str = ".*"
    log_x: bool = False
    log_y: bool = False
    bars: bool = False


@dataclass(frozen=True)
class Beside:
    """A figure that a source gives, for the report's first table, and the row that is ours."""

    source: str
    work: str
    theirs: str  # with its unit
    what: str
    size: str


@dataclass
class Row:
    what: str
    size: str
    unit: str = ""
    samples: list[float] = field(default_factory=list)
    reason: str = ""  # why there are no samples

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"what": self.what, "size": self.size}
        if not self.samples:
            return row | {"unavailable": self.reason}
        return row | {
            "median": statistics.median(self.samples),
            "min": min(self.samples),
            "max": max(self.samples),
            "unit": self.unit,
            "runs": len(self.samples),
        }


class Bench:
    """One bench while it runs: its folder, its programs, its samples and its ratios."""

    def __init__(
        self, name: str, bars: dict[str, Bar], directory: Path, runs: int, quick: bool
    ) -> None:
        self.name = name
        self.bars = bars
        self.directory = directory  # empty, on the file system that is measured; removed in the end
        self.runs = runs
        self.quick = quick  # a smoke run: the least size, whatever the figures
        self.rows: dict[Key, Row] = {}
        self.ratios: dict[str, float | None] = dict.fromkeys(bars)
        self.notes: list[str] = []
        self._began = time.monotonic()

    # --- progress ---

    def say(self, text: str) -> None:
        print(f"[{self.name} {time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def note(self, text: str) -> None:
        """For the report: something a reader of the figures has to know."""
        self.notes.append(text)
        self.say(text)

    def each_run(self, what: str, runs: int | None = None) -> Iterator[int]:
        count = self.runs if runs is None else runs
        for index in range(count):
            self.say(f"{what}: run {index + 1} of {count}")
            yield index

    # --- running ---

    def command(
        self, *args: object, timeout: float = COMMAND_SECONDS_MAX, stdin: str | None = None
    ) -> str:
        """Runs a command and returns what it printed. Unavailable if there is no such program."""
        words = [str(arg) for arg in args]
        if shutil.which(words[0]) is None:
            raise Unavailable(f"{words[0]} is not installed")
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip().splitlines()
            said = output[-1] if output else f"exit code {done.returncode}"
            raise Unavailable(f"{' '.join(words[:3])}: {said}")
        return done.stdout

    def timed(self, *args: object, timeout: float = COMMAND_SECONDS_MAX) -> float:
        """Seconds that a command takes, its start included."""
        began = time.perf_counter()
        self.command(*args, timeout=timeout)
        return time.perf_counter() - began

    def program(self, name: str, *args: object, timeout: float = COMMAND_SECONDS_MAX) -> Any:
        """Runs <name>_bench of the release build in a process of its own; its last line, if it says
        anything, is JSON. Its stderr passes through. Its failure is the bench's failure."""
        path = PROGRAMS / "bench" / f"{name}_bench"
        words = [str(path), *(str(arg) for arg in args)]
        done = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode} of {' '.join(words)}")
        lines = done.stdout.strip().splitlines()
        return json.loads(lines[-1]) if lines else {}

    def cold(self) -> None:
        """Drops the page cache. With a process of its own for what follows, it starts cold."""
        machine.drop_page_cache()

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """A new folder below the bench's own, removed afterwards."""
        path = self.directory / name
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    # --- figures ---

    def sample(self, what: str, size: str, value: float, unit: str) -> None:
        row = self.rows.setdefault((what, size), Row(what, size))
        row.unit = unit
        row.samples.append(value)

    def unavailable(self, what: str, size: str, reason: str) -> None:
        self.rows.setdefault((what, size), Row(what, size)).reason = reason
        self.say(f"{what}, {size}: cannot run: {reason}")

    @contextlib.contextmanager
    def attempt(self, what: str, size: str) -> Iterator[None]:
        """What raises in here becomes a row that names the reason: for peers."""
        try:
            yield
        except (Unavailable, OSError, subprocess.SubprocessError) as error:
            self.unavailable(what, size, str(error))

    def samples(self, what: str, size: str) -> Sequence[float]:
        row = self.rows.get((what, size))
        return row.samples if row is not None else []

    def median(self, what: str, size: str) -> float | None:
        samples = self.samples(what, size)
        return statistics.median(samples) if samples else None

    def over(self, above: Key, below: Key, paired: bool = False) -> float | None:
        """Ratio of two rows' medians; None if one of them has no samples. `paired`: the median of
        the ratios of runs that were taken side by side, which a drift of the machine spares."""
        numerators, denominators = self.samples(*above), self.samples(*below)
        if not numerators or not denominators:
            return None
        if paired:
            return statistics.median(a / b for a, b in zip(numerators, denominators))
        return statistics.median(numerators) / statistics.median(denominators)

    def ratio(self, name: str, value: float | None) -> None:
        """Sets one of the promised ratios. None: not measured in this run."""
        if name not in self.bars:
            raise KeyError(f"{self.name} has no bar for {name}")
        self.ratios[name] = value

    def as_json(self) -> dict[str, Any]:
        bars = {}
        for name, bar in self.bars.items():
            value = self.ratios[name]
            bars[name] = {"bar": str(bar), "holds": None if value is None else bar.holds(value)}
        return {
            "bench": self.name,
            "ratios": self.ratios,
            "rows": [row.as_json() for row in self.rows.values()],
            "bars": bars,
            "notes": self.notes,
            "quick": self.quick,
            "seconds": round(time.monotonic() - self._began, 1),
        }


def number(value: float) -> str:
    """Four digits, for a reader."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3g}"


def as_root() -> None:
    """Unavailable unless we are root: for loop devices and mounts."""
    if os.geteuid() != 0:
        raise Unavailable("needs root")
