# SPDX-License-Identifier: Apache-2.0
"""nbd-client: the kernel's own NBD, where it has one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbd_support import MIB, NbdServer, cowshed, needs, run

pytestmark = needs("nbd-client")

DEVICES_MAX = 16


def kernel_nbd_is_missing() -> str:
    """Why the kernel attaches nothing here; empty if it does."""
    if os.geteuid() != 0:
        return "only root attaches a device"
    if not Path("/sys/module/nbd").exists():
        modprobe = shutil.which("modprobe")
        if modprobe is None or subprocess.run([modprobe, "nbd"], capture_output=True).returncode:
            return "the kernel has no nbd"
    return "" if Path("/dev/nbd0").exists() else "no /dev/nbd0"


needs_kernel_nbd = pytest.mark.skipif(
    bool(kernel_nbd_is_missing()), reason=kernel_nbd_is_missing()
)


@contextlib.contextmanager
def device(server: NbdServer, export: str, *options: str) -> Iterator[str]:
    """The export as a device of the kernel: the first one that is free."""
    for n in range(DEVICES_MAX):
        path = f"/dev/nbd{n}"
        if subprocess.run(["nbd-client", "-c", path], capture_output=True).returncode != 0:
            break
    run("nbd-client", "-unix", server.socket, path, "-name", export, *options)
    try:
        yield path
    finally:
        run("nbd-client", "-d", path)


def test_list_names_the_exports(own_server: NbdServer) -> None:
    with cowshed.connect(own_server.unix) as client:
        client.create("dev/alice", MIB)
        client.create("golden", MIB)
    said = run("nbd-client", "-l", "-unix", own_server.socket)
    assert {"dev/alice", "golden"} <= set(said.split())


@needs("mkfs.ext4", "e2fsck")
@needs_kernel_nbd
def test_file_system_on_a_device(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, 64 * MIB)
    with device(server, base) as path:
        assert run("blockdev", "--getsize64", path) == f"{64 * MIB}\n"
        run("mkfs.ext4", "-q", path)
        run("mount", path, tmp_path)
        try:
            (tmp_path / "file").write_bytes(b"on a device")
            run("fstrim", tmp_path)
        finally:
            run("umount", tmp_path)
        run("e2fsck", "-f", "-n", path)
    with device(server, f"{base}?read-only", "-readonly") as path:
        assert run("blockdev", "--getro", path) == "1\n"
