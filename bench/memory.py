# SPDX-License-Identifier: Apache-2.0
"""How much memory does reclaim take, however long the list is that it works through?

A clone in blocks of 4 KiB is written through, 100 million blocks, and every second one is discarded
again: its livelist has 50 million entries that cannot join, and 50 million runs survive. Data bytes
are not stored; trees and metadata are. The clone is then destroyed in a new process whose anonymous
memory (RssAnon: what it allocated; LMDB's mapping is page cache) is sampled every 5 ms until the
last sector is free. One run: the figure is the greatest of thousands of samples.

A second, smaller list is made one single sublist (by a limit that no list reaches), which reclaim
has to work through in parts, for a list is otherwise cut every 500,000 blocks."""

from __future__ import annotations

from harness import Bench, at_most

BARS = {"rss_growth_mib": at_most(256)}

MILLION = 1_000_000


def measure(bench: Bench, what: str, entries: int, *flags: str) -> None:
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


def run(bench: Bench) -> None:
    entries = MILLION // 5 if bench.quick else 50 * MILLION
    measure(bench, "many sublists", entries)
    measure(bench, "one sublist", entries // 10, "--one-sublist")
    size = f"{entries / MILLION:g} M entries"
    bench.ratio("rss_growth_mib", bench.median("many sublists: growth of RssAnon", size))
