# SPDX-License-Identifier: Apache-2.0
"""Does a full pool take longer to open than an empty one?

A pool with 100,000 clones of one snapshot, each with a snapshot of its own, and a pool with one
dataset. A server on the pool is killed with SIGKILL in the middle of its work (writes not yet
flushed, a snapshot just made); then the time from exec of a new one until it has answered its first
call, a Get of one of the clones. Full and empty pool take turns. Warm: files in the page cache, as
after a crash of the process; cold: all caches dropped, as after a crash of the host."""

from __future__ import annotations

from pathlib import Path

from harness import Bench, at_most
from served import SERVER

BARS = {"full_over_empty": at_most(2)}

CLONES = 100_000
CACHES = ("warm", "cold")


def run(bench: Bench) -> None:
    clones = 1000 if bench.quick else CLONES
    sizes = {"empty": 0, "full": clones}
    with bench.folder("full") as full, bench.folder("empty") as empty:
        pools: dict[str, Path] = {"full": full / "pool", "empty": empty / "pool"}
        for what, count in sizes.items():
            bench.say(f"making the {what} pool")
            bench.program("open", "fill", "--pool", pools[what], "--clones", count)
            # The first start is no start after a crash.
            start(bench, pools[what], count)
        for _ in bench.each_run("starts"):
            for cache in CACHES:
                for what, count in sizes.items():
                    if cache == "cold":
                        bench.cold()
                    seconds = start(bench, pools[what], count)
                    bench.sample(f"{what} pool, {cache}", f"{count} clones", seconds, "s")
    ratios = [
        bench.over((f"full pool, {cache}", f"{clones} clones"), (f"empty pool, {cache}", "0 clones"))
        for cache in CACHES
    ]
    bench.ratio("full_over_empty", max(ratio for ratio in ratios if ratio is not None))


def start(bench: Bench, pool: Path, clones: int) -> float:
    """Seconds from exec to the first answer."""
    flags = ["--pool", pool, "--clones", clones, "--server", SERVER, "--runs", 1]
    return float(bench.program("open", "start", *flags)["rows"][0]["seconds"])
