# SPDX-License-Identifier: Apache-2.0
"""How much memory does reclaim take, however long the list is that it works through?

A clone in blocks of 4 KiB is written through, 100 million blocks, and every second one is discarded
again: its livelist has 50 million entries that cannot join, and 50 million runs survive. Data bytes
are not stored; trees and metadata are. The clone is then destroyed in a new process whose anonymous
memory (RssAnon: what it allocated; LMDB's mapping is page cache) is sampled every 5 ms until the
last sector is free. One run: the figure is the greatest of thousands of samples.

Before it, the plan of that destroy (`destroy --dry-run`) forecasts how long it will take, and when
half is done the operation says how long the rest will: by what factor each was wrong is a ratio.

A second, smaller list is made one single sublist (by a limit that no list reaches), which reclaim
has to work through in parts, for a list is otherwise cut every 500,000 blocks."""

from __future__ import annotations

from typing import Any

from harness import Bench, at_most

Result = dict[str, Any]

BARS = {
    "rss_growth_mib": at_most(256),
    "forecast_off_by": at_most(2),
    "eta_off_by": at_most(2),
}

MILLION = 1_000_000


def off_by(forecast: float, actual: float) -> float | None:
    """By what factor, at least 1, a forecast missed; None if there was none."""
    return max(forecast / actual, actual / forecast) if min(forecast, actual) > 0 else None


def measure(bench: Bench, what: str, entries: int, *flags: str) -> Result:
    """Makes such a list and destroys it. Returns what the destroying program printed."""
    size = f"{entries / MILLION:g} M entries"
    with bench.folder("pool") as pool:
        common = ["--dir", pool, "--entries", entries, *flags]
        bench.say(f"{what}: making a livelist of {size}")
        built = bench.program("memory", "build", *common)
        if built["entries"] < entries:
            raise RuntimeError(f"the livelist has {built['entries']:.0f} entries only")
        bench.sample(f"{what}: making it", size, built["seconds"], "s")
        bench.sample(f"{what}: sublists", size, built["sublists"], "sublists")
        bench.cold()
        bench.say(f"{what}: destroying it")
        result = bench.program("memory", "reclaim", *common)
        if result["damaged"]:
            raise RuntimeError("the list was found damaged")
        growth = result["growth_bytes"] / (1 << 20)
        bench.sample(f"{what}: growth of RssAnon", size, growth, "MiB")
        bench.sample(f"{what}: until the last sector is free", size, result["seconds"], "s")
        bench.sample(f"{what}: freed", size, result["freed_bytes"] / 1e9, "GB")
        bench.sample(f"{what}: forecast of the plan", size, result["predicted_seconds"], "s")
        bench.sample(f"{what}: half done after", size, result["half_seconds"], "s")
        bench.sample(f"{what}: the rest, as forecast then", size, result["eta_seconds"], "s")
        return result


def run(bench: Bench) -> None:
    entries = MILLION // 5 if bench.quick else 50 * MILLION
    result = measure(bench, "many sublists", entries)
    measure(bench, "one sublist", entries // 10, "--one-sublist")
    size = f"{entries / MILLION:g} M entries"
    bench.ratio("rss_growth_mib", bench.median("many sublists: growth of RssAnon", size))
    bench.ratio("forecast_off_by", off_by(result["predicted_seconds"], result["seconds"]))
    left = result["seconds"] - result["half_seconds"]
    bench.ratio("eta_off_by", off_by(result["eta_seconds"], left))
