# SPDX-License-Identifier: Apache-2.0
"""qcow2 images: a base, and overlays that stand for clones of it. Written as a virtual machine's
disk is, through qemu-nbd on a unix socket."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness import Bench, Unavailable

START_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 60.0


def create_base(bench: Bench, path: Path, size_bytes: int) -> None:
    """With all its tables, as an image in use has; its data clusters stay holes."""
    options = "preallocation=metadata"
    bench.command("qemu-img", "create", "-q", "-f", "qcow2", "-o", options, path, size_bytes)


def create_overlay(bench: Bench, base: Path, path: Path, base_format: str = "qcow2") -> None:
    bench.command("qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", base_format, path)


@contextlib.contextmanager
def exported(
    bench: Bench, image: Path, *, image_format: str = "qcow2", cache: str = "unsafe"
) -> Iterator[str]:
    """Serves an image over NBD; gives its URI. The server ends with the context.

    `unsafe`: what is written becomes durable by a sync of the file system, once. `writeback`: by an
    NBD flush, as a guest asks for it."""
    socket = image.with_suffix(".sock")
    socket.unlink(missing_ok=True)
    command = ["qemu-nbd", f"--format={image_format}", "--persistent", f"--socket={socket}"]
    command += [f"--cache={cache}", "--shared=0", str(image)]
    try:
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise Unavailable("qemu-nbd is not installed") from error
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not socket.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"qemu-nbd: {server.stderr and server.stderr.read()}")
            time.sleep(0.01)
        yield f"nbd+unix:///?socket={socket}"
    finally:
        server.terminate()
        server.wait(timeout=STOP_SECONDS_MAX)
        if server.stderr is not None:
            server.stderr.close()
        socket.unlink(missing_ok=True)


def write(bench: Bench, uri: str, offsets: Iterable[int], length: int) -> None:
    """Writes `length` bytes at each offset, then flushes."""
    script = "".join(f"aio_write -q -P {1 + at // length % 254} {at} {length}\n" for at in offsets)
    bench.command("qemu-io", "-f", "raw", uri, stdin=script + "aio_flush\nflush\nquit\n")
