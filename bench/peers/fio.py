# SPDX-License-Identifier: Apache-2.0
"""fio: what the file system itself gives for the same writes with the same durability."""

from __future__ import annotations

import json
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
