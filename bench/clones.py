# SPDX-License-Identifier: Apache-2.0
"""Is the ten-thousandth clone of a snapshot made as fast as the first?

A `cowshed serve` process, asked over gRPC on a unix socket by a C++ client: clones of one snapshot,
each durable when it is acknowledged. In bands of 500 up to 4,000, then on in bands of 8,000. In each
band one caller and 16 callers take turns, five times; in between, the machine's own rate of 4 KiB
overwritten in place and fdatasync'ed on the same file system. A row is the median of the five turns.
After each band 1,000 clones are looked up at random (*Get*). In the end all are listed in pages of
1,000, by the C++ client and by the Python client.

qcow2: `qemu-img create -b` of the same base, then fsync of file and folder; btrfs: on a loop device,
`subvolume snapshot`, then `filesystem sync`. Both include the start of their command, as whoever
uses them pays for it, and stop at 4,000."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers.btrfs
import peers.qcow2
from harness import PROGRAMS, Bench, Beside, Plot, at_least, at_most
from served import serving

BARS = {
    "last_band_over_first": at_least(0.9),
    "one_caller_over_fdatasync": at_least(0.25),
    "callers16_over_1": at_least(3),
    "list_100k_seconds": at_most(2),
}

MISSES = {
    "one_caller_over_fdatasync": (
        "a clone is a commit of LMDB of its own: 10 to 13 pages that do not lie side by side and their "
        "fdatasync, 0.25 ms, then its meta page, 0.12 ms, where the yardstick writes one page, 0.09 ms; "
        "gRPC and the changes of threads take 0.13 ms. Those who call at once share the commit"
    ),
    "last_band_over_first": (
        "the B-trees are a level higher at 4,000 clones than at the first 500. Runs gave 0.89 to 1.0"
    ),
}

SOURCES = """\
| source | work | first | last |
|---|---|---:|---:|
| C. I. King, larger zcmd buffers, 2017 | clones per second on the way to 4,000 | 20/s | 3/s |
| OpenZFS, measured earlier on such a machine | the same | 119/s | 90/s |
"""

ONE, MANY, SYNCS = "one caller", "16 callers", "fdatasync"

BESIDE = [
    Beside(
        "C. I. King, larger zcmd buffers, 2017",
        "clones per second near 4,000 clones, one caller",
        "3/s",
        ONE,
        "4000 clones",
    )
]

PLOTS = [
    Plot(
        "rate",
        "Clones of one snapshot, each durable when acknowledged",
        "clones there are",
        "per second",
        rows=f"^({ONE}|{MANY}|{SYNCS}|qcow2|btrfs)$",
        log_x=True,
        log_y=True,
    ),
]

GIB = 1 << 30
CLONES = 100_000
PEER_CLONES, PEER_BAND = 4000, 500


# --- ours ---------------------------------------------------------------------------------------


def list_from_python(bench: Bench, address: str, clones: int) -> None:
    sys.path.insert(0, str(PROGRAMS / "python"))
    import cowshed

    with cowshed.connect(address) as client:
        for _ in bench.each_run("listing from Python", 3):
            began = time.perf_counter()
            listed = sum(1 for _ in client.list("clones"))
            bench.sample("list, Python", f"{clones} clones", time.perf_counter() - began, "s")
            if listed != clones:
                raise RuntimeError(f"{listed} of {clones} clones are listed")


def record_bands(bench: Bench, bands: list[dict[str, Any]]) -> None:
    for band in bands:
        size = f"{band['to']:.0f} clones"
        bench.sample(ONE, size, band["one_caller_per_second"], "/s")
        bench.sample(MANY, size, band["callers16_per_second"], "/s")
        bench.sample(SYNCS, size, band["fdatasyncs_per_second"], "/s")
        bench.sample("Get, p99", size, band["get_p99_ms"], "ms")

    def over(above: str, below: str) -> float:
        return float(statistics.median(band[above] / band[below] for band in bands))

    rates = ("one_caller_per_second", "callers16_per_second")
    bench.ratio("last_band_over_first", min(bands[-1][rate] / bands[0][rate] for rate in rates))
    bench.ratio("one_caller_over_fdatasync", over(rates[0], "fdatasyncs_per_second"))
    bench.ratio("callers16_over_1", over(rates[1], rates[0]))


def measure_ours(bench: Bench) -> None:
    clones = 200 if bench.quick else CLONES
    flags = ["--first-band", 100, "--first-bands-end", 200] if bench.quick else []
    with bench.folder("pool") as pool, serving(pool) as address:
        bench.say(f"making {clones} clones")
        probe = bench.directory / "fdatasync.probe"
        result = bench.program(
            "clones", "--address", address, "--probe", probe, "--clones", clones, *flags
        )
        record_bands(bench, [row for row in result["rows"] if row["kind"] == "band"])
        lists = [row["seconds"] for row in result["rows"] if row["kind"] == "list"]
        for seconds in lists:
            bench.sample("list, C++", f"{clones} clones", seconds, "s")
        if not bench.quick:
            bench.ratio("list_100k_seconds", statistics.median(lists))
        list_from_python(bench, address, clones)


# --- peers --------------------------------------------------------------------------------------


def in_bands(bench: Bench, what: str, make: Callable[[int], None]) -> None:
    count, band = (10, 5) if bench.quick else (PEER_CLONES, PEER_BAND)
    bench.say(f"{what}: making {count} clones")
    for first in range(0, count, band):
        began = time.perf_counter()
        for number in range(first, first + band):
            make(number)
        rate = band / (time.perf_counter() - began)
        bench.sample(what, f"{first + band} clones", rate, "/s")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def measure_qcow2(bench: Bench) -> None:
    with bench.folder("qcow2") as folder:
        base = folder / "base.qcow2"
        peers.qcow2.create_base(bench, base, GIB)

        def make(number: int) -> None:
            overlay = folder / f"{number}.qcow2"
            peers.qcow2.create_overlay(bench, base, overlay)
            sync(overlay)
            sync(folder)

        in_bands(bench, "qcow2", make)


def measure_btrfs(bench: Bench) -> None:
    with peers.btrfs.mounted(bench, 64 * GIB) as btrfs:
        base = btrfs.subvolume("base")
        (base / "disk").write_bytes(os.urandom(1 << 20))

        def make(number: int) -> None:
            btrfs.snapshot("base", str(number))
            btrfs.sync()

        in_bands(bench, "btrfs", make)


def run(bench: Bench) -> None:
    measure_ours(bench)
    last = f"{10 if bench.quick else PEER_CLONES} clones"
    with bench.attempt("qcow2", last):
        measure_qcow2(bench)
    with bench.attempt("btrfs", last):
        measure_btrfs(bench)
