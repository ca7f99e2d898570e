# SPDX-License-Identifier: Apache-2.0
"""btrfs on a loop device over a sparse image file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Bench, Unavailable, as_root

DELETED_SECONDS_MAX = 300.0
POLL_SECONDS = 0.005


class Btrfs:
    """A mounted btrfs. Subvolumes are named relative to its root."""

    def __init__(self, bench: Bench, device: str, mount: Path) -> None:
        self._bench = bench
        self.device = device
        self.mount = mount

    def subvolume(self, name: str) -> Path:
        self._bench.command("btrfs", "subvolume", "create", self.mount / name)
        return self.mount / name

    def snapshot(self, source: str, name: str) -> Path:
        """A writable snapshot: what btrfs has for a clone."""
        self._bench.command("btrfs", "subvolume", "snapshot", self.mount / source, self.mount / name)
        return self.mount / name

    def delete(self, name: str) -> None:
        """Returns when the subvolume is out of sight; its space comes back later."""
        self._bench.command("btrfs", "subvolume", "delete", self.mount / name)

    def wait_deleted(self) -> None:
        """Waits until every deleted subvolume has given its space back. As `btrfs subvolume sync`
        does, but that sleeps a second or more between two looks, which is no part of the work."""
        self.sync()  # Wakes the cleaner.
        deadline = time.monotonic() + DELETED_SECONDS_MAX
        while self._bench.command("btrfs", "subvolume", "list", "-d", self.mount).strip():
            if time.monotonic() > deadline:
                raise Unavailable("a deleted subvolume is still there")
            time.sleep(POLL_SECONDS)
        self.sync()  # What the last commit unpinned can be used again.

    def sync(self) -> None:
        self._bench.command("btrfs", "filesystem", "sync", self.mount)

    def remount(self) -> None:
        """Forgets what the mounted file system keeps in memory: the peer's "process restarted"."""
        self._bench.command("umount", self.mount)
        self._bench.command("mount", "-t", "btrfs", "-o", "noatime", self.device, self.mount)


@contextlib.contextmanager
def loop_device(bench: Bench, image: Path, size_bytes: int) -> Iterator[str]:
    """A loop device over a new sparse file; both are gone afterwards."""
    as_root()
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    try:
        # Direct: what the peer reads comes from the disk, not from the image's page cache.
        device = bench.command("losetup", "--direct-io=on", "--find", "--show", image).strip()
        try:
            yield device
        finally:
            bench.command("losetup", "--detach", device)
    finally:
        image.unlink()


@contextlib.contextmanager
def mounted(bench: Bench, size_bytes: int, name: str = "btrfs") -> Iterator[Btrfs]:
    """A new btrfs of that capacity, mounted below the bench's folder."""
    mount = bench.directory / name
    mount.mkdir()
    try:
        with loop_device(bench, bench.directory / f"{name}.img", size_bytes) as device:
            bench.command("mkfs.btrfs", "--quiet", device)
            bench.command("mount", "-t", "btrfs", "-o", "noatime", device, mount)
            try:
                yield Btrfs(bench, device, mount)
            finally:
                bench.command("umount", mount)
    finally:
        mount.rmdir()
