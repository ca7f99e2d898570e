# SPDX-License-Identifier: Apache-2.0
"""Facts of the machine that figures depend on, and the means to start cold."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

SECTOR_BYTES = 4096


def drop_page_cache() -> None:
    """Writes back everything dirty, then forgets every clean page, inode and directory entry."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        raise RuntimeError(f"a cold cache needs root: {error}") from error


def fdatasync_seconds(directory: Path, count: int = 200) -> float:
    """Median of 4 KiB written in place and fdatasync'ed: what one durable step costs here."""
    path = directory / "fdatasync.probe"
    seconds = []
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(256 * SECTOR_BYTES))
        os.fsync(file.fileno())
        for index in range(count):
            block = os.urandom(SECTOR_BYTES)
            began = time.perf_counter()
            os.pwrite(file.fileno(), block, index % 256 * SECTOR_BYTES)
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(seconds)


def file_system(directory: Path) -> str:
    """Type of the file system that a folder lies on: the longest mount point above it."""
    found, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs_type = line.split()[:3]
        above = directory == Path(mount) or Path(mount) in directory.parents
        if above and len(mount) >= len(found):
            found, kind = mount, fs_type
    return kind


def _first_value(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "unknown"


def facts(directory: Path) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "cpu": _first_value("/proc/cpuinfo", "model name"),
        "ram_gib": round(int(_first_value("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "file_system": file_system(directory.resolve()),
        "fdatasync_ms": round(fdatasync_seconds(directory) * 1e3, 3),
        "load_1min": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }
