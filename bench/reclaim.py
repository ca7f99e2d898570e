# SPDX-License-Identifier: Apache-2.0
"""What does it cost to throw a clone away, and does that grow with what it stands on?

500 MiB are written in blocks of 16 KiB to a clone of a full dataset (sizes in GiB), at random places
or one after another, made durable every 64 MiB (peers: once, at the end, which spares them a
scattered layout). Then the clone is destroyed: *call* is until the
call returns, *free* until the last sector it held can be used again. Cold: all caches dropped, the
process (btrfs: the mount) started anew. Warm: the writer itself destroys.

The base is complete: all its pointers, nodes and checksums are on disk, 33 million pointers at
500 GB; only its data bytes are not stored, since nothing here reads them. The clone's bytes are
stored. *Tree walk* is our own fallback, pruned by birth, which runs when a list is damaged; here the
list is declared so. It reads one node after another; *tree walk, read ahead* lets the kernel read
ahead, which helps because our nodes lie in the order of the walk.

btrfs: on a loop device; a subvolume with one file of that size, laid out by fallocate (2,000
extents at 500 GB, as if written in one go; it has a pointer per extent, not per block); snapshot,
overwrite, `subvolume delete`; free when no deleted subvolume is left and a commit has followed,
polled every 5 ms (`subvolume sync` itself polls every second or more). Reflink: `cp --reflink` of
that file, overwrite, unlink, sync. qcow2: an overlay with 64 KiB clusters over a base with
preallocated metadata, written through qemu-nbd; unlink, sync of the file system."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from pathlib import Path

import peers.btrfs
import peers.qcow2
from harness import Bench, Beside, Plot, at_least, at_most

BARS = {
    "tree_walk_cold_500g": at_least(100),
    "flat_500g_over_1g": at_most(1.5),
    "btrfs_500g": at_least(20),
    "qcow2_500g": at_least(10),
    "contiguous_walk_over_livelist": at_least(1),
}

SOURCES = """\
| source | work | by tree walk | by livelist |
|---|---|---:|---:|
| S. Hartse, OpenZFS Developer Summit 2017 | 500 MB of scattered writes to a clone of a 500 GB dataset | 46 min | 30 s |
| OpenZFS 2.4 in userland, measured earlier on such a machine | the same, scattered, 64 to 256 GB | 0.7 to 3.4 s | 0.31 to 0.39 s |
| the same | contiguous | faster than its livelist | 0.08 to 0.18 s |
| btrfs, measured earlier on such a machine | scattered, every size | 1.4 to 1.8 s | |
| qcow2 overlay, measured earlier on such a machine | scattered | 1.0 s | |
"""

_HARTSE = "S. Hartse, OpenZFS Developer Summit 2017"
_WORK = "destroy a clone of 500 GB with 500 MB of scattered writes, "
BESIDE = [
    Beside(_HARTSE, _WORK + "by livelist", "30 s", "livelist, scattered, cold, free", "500 GB"),
    Beside(_HARTSE, _WORK + "by tree walk", "46 min", "tree walk, scattered, cold, free", "500 GB"),
]

_COLD_FREE = r"^(livelist|tree walk|tree walk, read ahead|btrfs|qcow2|reflink), {}, cold, free$"
PLOTS = [
    Plot(
        "scattered",
        "Until a clone with 500 MiB of scattered writes is gone, cold",
        "size of the dataset the clone stands on (GiB)",
        "seconds",
        rows=_COLD_FREE.format("scattered"),
        log_x=True,
        log_y=True,
    ),
    Plot(
        "contiguous",
        "Until a clone with 500 MiB of contiguous writes is gone, cold",
        "size of the dataset the clone stands on (GiB)",
        "seconds",
        rows=_COLD_FREE.format("contiguous"),
        log_x=True,
        log_y=True,
    ),
]

GIB = 1 << 30
BLOCK_BYTES = 16384
WRITE_BYTES = 500 << 20
PAYLOAD_BLOCKS = 1024
SIZES_GB = (1, 16, 128, 500)
PATTERNS = ("scattered", "contiguous")
LIVELIST, WALK, WALK_AHEAD = "livelist", "tree walk", "tree walk, read ahead"
FLAGS = {LIVELIST: (), WALK: ("--walk",), WALK_AHEAD: ("--walk", "--read-ahead")}


def caches(size_gb: int) -> tuple[str, ...]:
    """Warm rows show no trend between the least and the greatest size, and cost time."""
    return ("cold", "warm") if size_gb in (SIZES_GB[0], SIZES_GB[-1]) else ("cold",)


def record(
    bench: Bench, what: str, pattern: str, cache: str, size: str, call: float, free: float
) -> None:
    bench.sample(f"{what}, {pattern}, {cache}, call", size, call, "s")
    bench.sample(f"{what}, {pattern}, {cache}, free", size, free, "s")


# --- ours ---------------------------------------------------------------------------------------


def destroy_ours(
    bench: Bench, pool: Path, size_gb: int, method: str, pattern: str, cache: str, seed: int
) -> None:
    common = ["--dir", pool, "--size", size_gb * GIB, "--write", WRITE_BYTES, "--seed", seed]
    if pattern == "contiguous":
        common.append("--contiguous")
    if cache == "cold":
        bench.program("reclaim", "write", *common)
        bench.cold()
    step = "destroy" if cache == "cold" else "cycle"
    result = bench.program("reclaim", step, *common, *FLAGS[method])
    if bool(result["walked"]) != (method != LIVELIST):
        raise RuntimeError(f"the clone was not destroyed by {method}")
    size = f"{size_gb} GB"
    record(bench, method, pattern, cache, size, result["call_seconds"], result["free_seconds"])
    if cache == "cold" and method == WALK:
        bench.sample(f"{method}, {pattern}, nodes read", size, result["nodes_read"], "nodes")


def measure_ours(bench: Bench, size_gb: int) -> None:
    size = f"{size_gb} GB"
    with bench.folder("pool") as pool:
        bench.say(f"filling a dataset of {size}")
        built = bench.program("reclaim", "build", "--dir", pool, "--size", size_gb * GIB)
        bench.sample("filling the base", size, built["seconds"], "s")
        for run in bench.each_run(f"clones of {size}"):
            for pattern in PATTERNS:
                for method in FLAGS:
                    if method == WALK_AHEAD and pattern == "contiguous":
                        continue  # A few hundred nodes side by side: nothing to see.
                    destroy_ours(bench, pool, size_gb, method, pattern, "cold", run)
                for method in (LIVELIST, WALK):
                    if "warm" in caches(size_gb) or method == LIVELIST:
                        destroy_ours(bench, pool, size_gb, method, pattern, "warm", run)


# --- peers --------------------------------------------------------------------------------------


def offsets(size_gb: int, pattern: str, seed: int) -> Iterable[int]:
    count = WRITE_BYTES // BLOCK_BYTES
    blocks: Iterable[int] = range(count)
    if pattern == "scattered":
        blocks = random.Random(seed).sample(range(size_gb * GIB // BLOCK_BYTES), count)
    return [block * BLOCK_BYTES for block in blocks]


def overwrite(path: Path, places: Iterable[int]) -> None:
    payload = memoryview(os.urandom(PAYLOAD_BLOCKS * BLOCK_BYTES))
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for index, offset in enumerate(places):
            start = index % PAYLOAD_BLOCKS * BLOCK_BYTES
            os.pwrite(descriptor, payload[start : start + BLOCK_BYTES], offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def destroy_on_btrfs(
    bench: Bench, fs: peers.btrfs.Btrfs, size_gb: int, pattern: str, cache: str, seed: int
) -> None:
    size, places = f"{size_gb} GB", offsets(size_gb, pattern, seed)
    clone = fs.snapshot("base", "clone")
    overwrite(clone / "file", places)
    fs.sync()
    if cache == "cold":
        fs.remount()
        bench.cold()
    began = time.perf_counter()
    fs.delete("clone")
    call = time.perf_counter() - began
    fs.wait_deleted()
    record(bench, "btrfs", pattern, cache, size, call, time.perf_counter() - began)

    copy = fs.mount / "copy"
    bench.command("cp", "--reflink=always", fs.mount / "base" / "file", copy)
    overwrite(copy, places)
    fs.sync()
    if cache == "cold":
        fs.remount()
        bench.cold()
    began = time.perf_counter()
    copy.unlink()
    call = time.perf_counter() - began
    fs.sync()
    record(bench, "reflink", pattern, cache, size, call, time.perf_counter() - began)


def measure_btrfs(bench: Bench, size_gb: int) -> None:
    # Room for the file and for what the runs write beside it.
    with peers.btrfs.mounted(bench, size_gb * GIB * 5 // 4 + 16 * GIB) as fs:
        base = fs.subvolume("base")
        with open(base / "file", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_gb * GIB)
        fs.sync()
        for run in bench.each_run(f"btrfs, {size_gb} GB"):
            for pattern in PATTERNS:
                for cache in caches(size_gb):
                    destroy_on_btrfs(bench, fs, size_gb, pattern, cache, run)


def measure_qcow2(bench: Bench, size_gb: int) -> None:
    with bench.folder("qcow2") as folder:
        base, overlay = folder / "base.qcow2", folder / "overlay.qcow2"
        peers.qcow2.create_base(bench, base, size_gb * GIB)
        for run in bench.each_run(f"qcow2, {size_gb} GB"):
            for pattern in PATTERNS:
                for cache in caches(size_gb):
                    peers.qcow2.create_overlay(bench, base, overlay)
                    with peers.qcow2.exported(overlay) as uri:
                        peers.qcow2.write(bench, uri, offsets(size_gb, pattern, run), BLOCK_BYTES)
                    bench.command("sync", "-f", folder)
                    if cache == "cold":
                        bench.cold()
                    began = time.perf_counter()
                    overlay.unlink()
                    call = time.perf_counter() - began
                    bench.command("sync", "-f", folder)
                    free = time.perf_counter() - began
                    record(bench, "qcow2", pattern, cache, f"{size_gb} GB", call, free)


# --- all ----------------------------------------------------------------------------------------


def cold_free(what: str, size: str, pattern: str = "scattered") -> tuple[str, str]:
    return (f"{what}, {pattern}, cold, free", size)


def run(bench: Bench) -> None:
    sizes = SIZES_GB[:1] if bench.quick else SIZES_GB
    for size_gb in sizes:
        measure_ours(bench, size_gb)
        with bench.attempt("btrfs and reflink", f"{size_gb} GB"):
            measure_btrfs(bench, size_gb)
        with bench.attempt("qcow2", f"{size_gb} GB"):
            measure_qcow2(bench, size_gb)
    ours = cold_free(LIVELIST, "500 GB")
    bench.ratio("tree_walk_cold_500g", bench.over(cold_free(WALK, "500 GB"), ours))
    bench.ratio("flat_500g_over_1g", bench.over(ours, cold_free(LIVELIST, "1 GB")))
    bench.ratio("btrfs_500g", bench.over(cold_free("btrfs", "500 GB"), ours))
    bench.ratio("qcow2_500g", bench.over(cold_free("qcow2", "500 GB"), ours))
    contiguous = (
        bench.over(
            cold_free(WALK, f"{size_gb} GB", "contiguous"),
            cold_free(LIVELIST, f"{size_gb} GB", "contiguous"),
        )
        for size_gb in sizes
    )
    worst = min((ratio for ratio in contiguous if ratio is not None), default=None)
    bench.ratio("contiguous_walk_over_livelist", worst)
