# SPDX-License-Identifier: Apache-2.0
"""Does a clone's livelist stay in proportion to what is alive, however long the clone is written?

A clone is written at random places, 512 MiB in blocks of 16 KiB with a flush every 16 MiB, and
overwritten 20 times over. *In passes*: every round takes each place once, in an order of its own.
*By chance*: every round takes as many places at random, so blocks of all ages survive, in small
pieces. A fresh clone is written once at the same places. Data bytes are not stored; trees and
metadata are.

*Entries* are what the livelist holds when the background has settled, *survivors* what a perfect
list would hold: the runs that are alive. Condense I/O counts every entry read and written, 24 bytes
each. Both clones are destroyed cold; which goes first alternates. The ratio of entries is the worse
of both ways to age, that of destroying is of passes: by chance, the aged clone has more runs to free
than a fresh one has, whatever its list looks like (its rows are there)."""

from __future__ import annotations

from harness import Bench, Plot, at_most

BARS = {
    "entries_over_live": at_most(2),
    "destroy_over_fresh": at_most(1.5),
    "condense_io_per_byte": at_most(0.01),
}

PLOTS = [
    Plot(
        "entries",
        "Entries of the livelist after 20 overwrites, and what is alive",
        "",
        "entries",
        rows=r"^(entries|survivors|fresh clone: entries), ",
        bars=True,
        log_y=True,
    )
]

ROUNDS = 20
AGES = ("in passes", "by chance")


def measure(bench: Bench, age: str, live: int, size: str, run: int) -> None:
    with bench.folder("pool") as pool:
        common = ["--dir", pool, "--live", live, "--seed", run + 1]
        flags = ["--random"] if age == "by chance" else []
        result = bench.program("condense", "age", *common, "--rounds", ROUNDS, *flags)
        for what, name in (
            ("entries", "entries"),
            ("greatest entries", "entries_greatest"),
            ("survivors", "survivors"),
            ("fresh clone: entries", "fresh_entries"),
        ):
            bench.sample(f"{what}, {age}", size, result[name], "entries")
        ratio = result["entries"] / result["survivors"]
        bench.sample(f"entries over survivors, {age}", size, ratio, "x")
        io = result["condense_bytes"] / result["written_bytes"]
        bench.sample(f"condense I/O per byte written, {age}", size, io, "x")
        bench.sample(f"condense runs, {age}", size, result["condenses"], "runs")
        names = ("aged", "fresh") if run % 2 == 0 else ("fresh", "aged")
        for name in names:
            bench.cold()
            destroyed = bench.program("condense", "destroy", *common, "--name", name)
            bench.sample(f"destroy {name}, {age}", size, destroyed["free_seconds"], "s")


def run(bench: Bench) -> None:
    live = (64 << 20) if bench.quick else (512 << 20)
    size = f"{live >> 20} MB"
    for index in bench.each_run("ageing a clone"):
        for age in AGES:
            measure(bench, age, live, size, index)

    def worse(what: str) -> float | None:
        medians = [bench.median(f"{what}, {age}", size) for age in AGES]
        return max((value for value in medians if value is not None), default=None)

    bench.ratio("entries_over_live", worse("entries over survivors"))
    if worse("condense runs"):  # Nothing condensed is no proof that condensing is cheap.
        bench.ratio("condense_io_per_byte", worse("condense I/O per byte written"))
    destroyed = ("destroy aged, in passes", size), ("destroy fresh, in passes", size)
    bench.ratio("destroy_over_fresh", bench.over(*destroyed, paired=True))
