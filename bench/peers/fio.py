# SPDX-License-Identifier: Apache-2.0
"""fio: what the file system itself gives for the same reads and writes with the same durability, and
the load on NBD servers, ours and others alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import Bench


def write_seconds(
    bench: Bench,
    path: Path,
    *,
    random: bool,
    block_bytes: int,
    total_bytes: int,
    fdatasync_every: int,
    file_bytes: int | None = None,
) -> float:
    """Seconds of writing `total_bytes` to a file, buffered, with fdatasync after every so many
    blocks and at the end. The file is made, and laid out, before the clock starts."""
    size = file_bytes or total_bytes
    output = bench.command(
        "fio",
        "--name=write",
        f"--filename={path}",
        f"--rw={'randwrite' if random else 'write'}",
        f"--bs={block_bytes}",
        f"--size={size}",
        f"--io_size={total_bytes}",
        f"--fdatasync={fdatasync_every}",
        "--end_fsync=1",
        "--ioengine=psync",
        "--refill_buffers",
        "--randrepeat=1",
        "--norandommap=0",
        "--output-format=json",
    )
    job = json.loads(output[output.index("{") :])["jobs"][0]
    return float(job["job_runtime"]) / 1e3


@dataclass(frozen=True)
class Load:
    """What one client does. All of it is durable in the end, and so is every `fsync_every`-th write."""

    rw: str  # read, write, randread, randwrite
    block_bytes: int
    depth: int  # requests under way at once
    total_bytes: int
    fsync_every: int = 0


def on_device(uri: str) -> list[str]:
    """A client of an NBD server."""
    return ["--ioengine=nbd", f"--uri={uri}"]


def on_file(path: Path) -> list[str]:
    """The file system itself: buffered, as the servers use it."""
    return ["--ioengine=io_uring", f"--filename={path}"]


def seconds(
    bench: Bench, clients: Sequence[list[str]], load: Load, file_bytes: int, seed: int
) -> float:
    """Seconds until the last of the clients is done with its load."""
    command = [
        "fio",
        f"--rw={load.rw}",
        f"--bs={load.block_bytes}",
        f"--iodepth={load.depth}",
        f"--size={file_bytes}",
        f"--io_size={load.total_bytes}",
        f"--fsync={load.fsync_every}",
        f"--end_fsync={int('write' in load.rw)}",
        f"--randseed={seed}",
        "--allrandrepeat=1",
        "--refill_buffers",
        "--thread",
        "--output-format=json",
    ]
    for number, client in enumerate(clients):
        command += [f"--name=client{number}", *client]
    output = bench.command(*command)
    jobs = json.loads(output[output.index("{") :])["jobs"]
    return max(float(job["job_runtime"]) for job in jobs) / 1e3
