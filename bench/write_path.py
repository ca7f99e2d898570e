# SPDX-License-Identifier: Apache-2.0
"""What do writes cost: with the livelist and without it, on the disk, and beside the file system?

*Overhead*: two datasets of one pool are written in turn, 16 MiB and a flush each, one with its
livelist, one with logging switched off by a failpoint; which comes first alternates. A sample is the
median of the stretches' time ratios. Clones are of a full dataset of 32 GB (so every write replaces
a block that its snapshot holds, and the deadlist grows, too), plain datasets start empty. Scattered:
16 KiB at random places, each once. Sequential: 1 MiB, rising. The ratio is the worse of clone and
plain.

*Amplification*: bytes that the process caused to be written to storage (/proc/self/io: data, nodes,
LMDB pages) per byte of data.

*Throughput*: the same bytes over a dataset, and over a file, of 2 GB that have been written through
once; durable every 64 MiB by a flush, and by fdatasync in fio (psync engine, buffered). Both start
with the page cache dropped. The shares say where the time went: *data* is checksums and nodes,
*tasks* the writes into the page cache, *fsync* and *commit* are durability, the rest is the client's
own copy. Rows at a
flush every 4 MiB show what durability costs: a flush here is an fdatasync of the data and the commit
of the metadata."""

from __future__ import annotations

import shutil
from pathlib import Path

import peers.fio
from harness import Bench, Plot, at_least, at_most

BARS = {
    "livelist_overhead_scattered": at_most(1.05),
    "livelist_overhead_sequential": at_most(1.05),
    "write_amplification_scattered": at_most(1.6),
    "seq_write_over_fio": at_least(0.8),
    "rand_write_over_fio": at_least(1),
}

PLOTS = [
    Plot(
        "throughput",
        "Writing over 2 GB, durable every 64 MiB",
        "",
        "MB/s",
        rows=r"(engine|fio), (sequential|random), flush every 64 MiB",
        bars=True,
    )
]

MIB, GIB = 1 << 20, 1 << 30
BASE_GB = 32
OVERHEAD_BYTES = 256 * MIB
OVERHEAD_FLUSH_BYTES = 16 * MIB
PATTERNS = ("scattered", "sequential")
KINDS = ("clone", "plain")
WRITE_SIZE = {"sequential": MIB, "random": 16 << 10}


def measure_overhead(bench: Bench) -> None:
    size = GIB if bench.quick else BASE_GB * GIB
    with bench.folder("overhead") as pool:
        common = ["--dir", pool, "--size", size]
        bench.say("filling the base")
        bench.program("write_path", "build", *common)
        for run in bench.each_run("livelist on and off"):
            for pattern in PATTERNS:
                for kind in KINDS:
                    args = ["--write", OVERHEAD_BYTES, "--flush", OVERHEAD_FLUSH_BYTES]
                    args += ["--seed", run + 1]
                    args += ["--contiguous"] if pattern == "sequential" else []
                    args += ["--plain"] if kind == "plain" else []
                    result = bench.program("write_path", "overhead", *common, *args)
                    what = f"{pattern}, {kind}"
                    bench.sample(f"livelist on over off, {what}", "16 MiB", result["ratio"], "x")
                    for side, name in (("listed", "livelist on"), ("unlisted", "livelist off")):
                        rate = OVERHEAD_BYTES / result[f"{side}_seconds"] / 1e6
                        bench.sample(f"{name}, {what}", "16 MiB", rate, "MB/s")
                    amplification = result["amplification"]
                    bench.sample(f"bytes stored per byte, {what}", "16 MiB", amplification, "x")
                    without = result["unlisted_amplification"]
                    row = f"bytes stored per byte without livelist, {what}"
                    bench.sample(row, "16 MiB", without, "x")


def write_engine(bench: Bench, pool: Path, args: list[object], pattern: str, row: str) -> float:
    flags = ["--contiguous"] if pattern == "sequential" else []
    result = bench.program("write_path", "throughput", "--dir", pool, *args, *flags)
    for phase in ("data", "tasks", "fsync", "commit"):
        share = result[f"{phase}_seconds"] / result["seconds"]
        bench.sample(f"engine, {row}: share of {phase}", "2 GB", share, "x")
    return float(result["seconds"])


def measure_throughput(bench: Bench) -> None:
    size = 256 * MIB if bench.quick else 2 * GIB
    file, pool = bench.directory / "fio.file", bench.directory / "engine"
    with bench.attempt("fio", "laying the file out"):
        peers.fio.write_seconds(
            bench, file, random=False, block_bytes=MIB, total_bytes=size, fdatasync_every=64
        )
    bench.program("write_path", "prepare", "--dir", pool, "--size", size)
    for flush_mib, part in ((64, 2), (4, 8)):
        total = size // part
        flush = flush_mib * MIB
        for run in bench.each_run(f"beside fio, flush every {flush_mib} MiB"):
            for pattern, block in WRITE_SIZE.items():
                row = f"{pattern}, flush every {flush_mib} MiB"
                bench.cold()
                args = ["--size", size, "--write", total, "--flush", flush, "--seed", run + 1]
                seconds = write_engine(bench, pool, args, pattern, row)
                bench.sample(f"engine, {row}", "2 GB", total / seconds / 1e6, "MB/s")
                bench.cold()
                with bench.attempt(f"fio, {row}", "2 GB"):
                    seconds = peers.fio.write_seconds(
                        bench,
                        file,
                        random=pattern == "random",
                        block_bytes=block,
                        total_bytes=total,
                        file_bytes=size,
                        fdatasync_every=flush // block,
                    )
                    bench.sample(f"fio, {row}", "2 GB", total / seconds / 1e6, "MB/s")
    shutil.rmtree(pool)
    file.unlink(missing_ok=True)


def worse(bench: Bench, what: str, pattern: str) -> float | None:
    medians = [bench.median(f"{what}, {pattern}, {kind}", "16 MiB") for kind in KINDS]
    return max((value for value in medians if value is not None), default=None)


def run(bench: Bench) -> None:
    measure_overhead(bench)
    measure_throughput(bench)
    for pattern in PATTERNS:
        bench.ratio(f"livelist_overhead_{pattern}", worse(bench, "livelist on over off", pattern))
    bench.ratio("write_amplification_scattered", worse(bench, "bytes stored per byte", "scattered"))
    for name, pattern in (("seq", "sequential"), ("rand", "random")):
        row = f"{pattern}, flush every 64 MiB"
        ratio = bench.over((f"engine, {row}", "2 GB"), (f"fio, {row}", "2 GB"), paired=True)
        bench.ratio(f"{name}_write_over_fio", ratio)
