# SPDX-License-Identifier: Apache-2.0
"""What a client sees when the server is stopped in order and started again: those that connect
again by themselves go on, the others are told. (Of a crash: kill_nbd_test and file_test.)"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbd_support import (
    MIB,
    NbdServer,
    cowshed,
    needs,
    needs_fuse,
    open_export,
    run,
    shown_as_file,
)

nbd = pytest.importorskip("nbd", reason="not installed: python3-libnbd")

RECONNECT_SECONDS = 30


@pytest.fixture
def export(own_server: NbdServer) -> str:
    """A dataset."""
    with cowshed.connect(own_server.unix) as client:
        client.create("disk", 4 * MIB)
    return "disk"


def restart(server: NbdServer) -> None:
    """In order: nothing that was acknowledged is lost, flushed or not."""
    assert server.stop() == 0
    server.start()


def content(server: NbdServer, offset: int, length: int) -> bytes:
    """As gRPC shows it."""
    with cowshed.connect(server.unix) as client:
        return client.read("disk", offset, length)


class QemuIo:
    """qemu-io that is told one command after another."""

    PROMPT = "qemu-io> "

    def __init__(self, options: str) -> None:
        self.process = subprocess.Popen(
            ["qemu-io", "--image-opts", options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._until_prompt()

    def _until_prompt(self) -> str:
        assert self.process.stdout is not None
        said = ""
        while not said.endswith(self.PROMPT):
            character = self.process.stdout.read(1)
            assert character, said
            said += character
        return said.removesuffix(self.PROMPT)

    def _send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def tell(self, command: str) -> str:
        """Gives a command and waits for its end. Returns what it printed."""
        self._send(command)
        return self._until_prompt()

    def quit(self) -> int:
        """Ends it. Returns its exit status."""
        self._send("quit")
        return self.process.wait(timeout=30)


@needs("qemu-io")
def test_qemu_waits_for_the_server_and_goes_on(own_server: NbdServer, export: str) -> None:
    qemu = QemuIo(
        f"driver=nbd,server.type=unix,server.path={own_server.socket},export={export},"
        f"reconnect-delay={RECONNECT_SECONDS}"
    )
    assert "wrote" in qemu.tell("write -P 1 0 1M")
    restart(own_server)
    assert "failed" not in qemu.tell("read -P 1 0 1M")
    assert own_server.stop() == 0
    # What is sent while there is no server waits for one.
    starter = threading.Timer(0.5, own_server.start)
    starter.start()
    assert "wrote" in qemu.tell("write -P 2 1M 1M")
    assert "failed" not in qemu.tell("flush")
    assert qemu.quit() == 0
    starter.join()
    assert content(own_server, 0, 2 * MIB) == b"\1" * MIB + b"\2" * MIB


@needs("qemu-io")
def test_qemu_without_reconnection_is_told(own_server: NbdServer, export: str) -> None:
    qemu = QemuIo(
        f"driver=nbd,server.type=unix,server.path={own_server.socket},export={export}"
    )
    assert "wrote" in qemu.tell("write -P 1 0 64k")
    assert own_server.stop() == 0
    assert "Input/output error" in qemu.tell("read 0 64k")
    qemu.quit()
    own_server.start()
    assert content(own_server, 0, 65536) == b"\1" * 65536


@contextlib.contextmanager
def proxy(server: NbdServer, export: str, directory: Path) -> Iterator[str]:
    """nbdkit before the server, with its filter that connects again. Yields its socket."""
    path, pid = directory / "proxy.sock", directory / "proxy.pid"
    process = subprocess.Popen(
        ["nbdkit", "-f", "-U", str(path), "-P", str(pid), "--filter=retry", "nbd",
         server.uri(export), "retry-delay=1", "retry-exponential=no"]
    )  # fmt: skip
    try:
        while not pid.exists():
            assert process.poll() is None
        yield str(path)
    finally:
        process.terminate()
        process.wait()


@needs("nbdkit")
def test_nbdkit_with_its_retry_filter_goes_on(
    own_server: NbdServer, export: str, tmp_path: Path
) -> None:
    with proxy(own_server, export, tmp_path) as socket:
        h = nbd.NBD()
        h.connect_unix(socket)
        h.pwrite(b"before", 0)
        restart(own_server)
        assert h.pread(6, 0) == b"before"
        h.pwrite(b"after ", 0)
        h.flush()
        h.shutdown()
    assert content(own_server, 0, 6) == b"after "


@needs("nbdfuse")
@needs_fuse
def test_nbdfuse_gives_errors_until_it_is_mounted_again(
    own_server: NbdServer, export: str, tmp_path: Path
) -> None:
    with shown_as_file(own_server.uri(export), tmp_path / "disk") as shown:
        with shown.path.open("r+b", buffering=0) as file:
            file.write(b"before")
            restart(own_server)
            with pytest.raises(OSError):
                file.seek(MIB)
                file.read(4096)
    with shown_as_file(own_server.uri(export), tmp_path / "disk") as shown:
        assert shown.path.read_bytes()[:6] == b"before"


def test_library_is_told_and_attaches_again(own_server: NbdServer, export: str) -> None:
    h = open_export(own_server, export)
    h.pwrite(b"before", 0)
    restart(own_server)
    with pytest.raises(nbd.Error):
        h.pread(6, 0)
    again = open_export(own_server, export)
    assert again.pread(6, 0) == b"before"
    again.shutdown()


@needs("nbdcopy")
def test_copy_that_is_interrupted_fails(
    own_server: NbdServer, export: str, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"x" * (4 * MIB))
    slow = ["nbdkit", "-U", "-", "--filter=rate", "file", str(image), "rate=8M"]
    process = subprocess.Popen(
        [*slow, "--run", f"nbdcopy --synchronous \"$uri\" '{own_server.uri(export)}'"],
        stderr=subprocess.PIPE,
    )
    while not content(own_server, 0, 1)[0]:
        assert process.poll() is None
    restart(own_server)
    assert process.wait(timeout=60) != 0
    run("nbdcopy", "--flush", image, own_server.uri(export))
    assert content(own_server, 0, 4 * MIB) == image.read_bytes()
