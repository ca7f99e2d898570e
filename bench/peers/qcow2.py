# SPDX-License-Identifier: Apache-2.0
"""qcow2 images: a base, and overlays that stand for clones of it. Written as a virtual machine's
disk is, through qemu-nbd on a unix socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import peers.nbd
from harness import Bench


def create_base(bench: Bench, path: Path, size_bytes: int) -> None:
    """With all its tables, as an image in use has; its data clusters stay holes."""
    options = "preallocation=metadata"
    bench.command("qemu-img", "create", "-q", "-f", "qcow2", "-o", options, path, size_bytes)


def create_overlay(bench: Bench, base: Path, path: Path, base_format: str = "qcow2") -> None:
    bench.command("qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", base_format, path)


def exported(
    image: Path, *, image_format: str = "qcow2", cache: str = "unsafe"
) -> contextlib.AbstractContextManager[str]:
    """Serves an image over NBD; gives its URI. The server ends with the context.

    `unsafe`: what is written becomes durable by a sync of the file system, once. `writeback`: by an
    NBD flush, as a guest asks for it."""
    socket = image.with_suffix(".sock")
    command = ["qemu-nbd", f"--format={image_format}", "--persistent", f"--socket={socket}"]
    return peers.nbd.serving([*command, f"--cache={cache}", "--shared=0", str(image)], socket)


def write(bench: Bench, uri: str, offsets: Iterable[int], length: int) -> None:
    """Writes `length` bytes at each offset, then flushes."""
    script = "".join(f"aio_write -q -P {1 + at // length % 254} {at} {length}\n" for at in offsets)
    bench.command("qemu-io", "-f", "raw", uri, stdin=script + "aio_flush\nflush\nquit\n")
