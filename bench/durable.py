# SPDX-License-Identifier: Apache-2.0
"""What does a little durable write cost, and how many of them share one?

4 KiB at random places, each durable before the next: `pwrite` and `fdatasync` of a file, beside a
write and MakeDurable of a clone, which goes through the intent log, and a write and Flush, which
commits a txg. With 16 writers each has a file, or a clone, of its own: the log writes what all of
them want in one piece."""

from __future__ import annotations

from harness import Bench, at_least

BARS = {
    "durable_write_over_fdatasync": at_least(0.8),
    "durable_write_16_over_fdatasync": at_least(2),
}

WRITERS = (1, 16)
WAYS = {"file": "pwrite and fdatasync", "log": "intent log", "flush": "flush"}


def run(bench: Bench) -> None:
    with bench.folder("durable") as directory:
        seconds = 0.5 if bench.quick else 5
        for _ in bench.each_run("durable writes"):
            for writers in WRITERS:
                for way, name in WAYS.items():
                    result = bench.program(
                        "durable", way, "--dir", directory, "--writers", writers, "--seconds", seconds
                    )
                    rate = result["writes_per_second"]
                    bench.sample(name, f"{writers} writers", rate, "writes/s")
    for writers, bar in zip(WRITERS, BARS, strict=True):
        size = f"{writers} writers"
        ratio = bench.over((WAYS["log"], size), (WAYS["file"], size), paired=True)
        bench.ratio(bar, ratio)
