# SPDX-License-Identifier: Apache-2.0
"""A real server that serves NBD too, and the programs that are its clients."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients/python"))

from server_process import (  # noqa: E402
    PYTHON_DIR,
    START_SECONDS,
    Server,
    ServerEnded,
    server_binary,
)

sys.path.insert(0, str(PYTHON_DIR))

import cowshed  # noqa: E402

__all__ = ["PYTHON_DIR", "START_SECONDS", "ServerEnded", "cowshed", "server_binary"]

MIB = 1 << 20
# The default block size of a dataset.
BLOCK_BYTES = 16 << 10
TOOL_SECONDS_MAX = 120
# nbdsh takes the first python3 of the path: Debian's, which has its library.
TOOL_ENVIRONMENT = {**os.environ, "PATH": f"/usr/bin:/usr/sbin:/sbin:{os.environ['PATH']}"}
# The short form runs in CI; COWSHED_TEST_FULL asks for the long one.
SCALE = 10 if "COWSHED_TEST_FULL" in os.environ else 1


class NbdServer(Server):
    """A server that listens for NBD on a unix socket as well."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.socket = f"{directory}/nbd.sock"
        self.metrics = "off"

    def start(self, *arguments: object, failpoints: str = "") -> None:
        """As Server.start; returns once NBD is served."""
        known = len(self.log)
        super().start(
            "--nbd-listen", f"unix:{self.socket}", *arguments, failpoints=failpoints
        )
        until = time.monotonic() + START_SECONDS
        while not any(line.startswith("nbd on ") for line in self.log[known:]):
            assert time.monotonic() < until, "".join(self.log)
            if (status := self.wait(0.005)) is not None:
                raise ServerEnded(status, "".join(self.log))

    def nbd_addresses(self) -> list[str]:
        """Where it said that it serves NBD, most lately."""
        return [line.split()[2] for line in self.log if line.startswith("nbd on ")]

    def uri(self, export: str) -> str:
        """The export as clients are told of it."""
        return f"nbd+unix:///{quote(export, safe='/@')}?socket={self.socket}"


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[NbdServer]:
    """A server with these arguments. It must still live in the end, and stop in order."""
    # pytest's own directories are too long for the path of a unix socket.
    directory = Path(tempfile.mkdtemp(prefix="nbd"))
    server = NbdServer(directory)
    server.start(*arguments)
    try:
        yield server
        assert server.alive(), "".join(server.log)
        assert server.stop() == 0, "".join(server.log)
    finally:
        server.kill()
        shutil.rmtree(directory)


# Programs -----------------------------------------------------------------------------------------


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips where a program is not installed (deploy/packages.txt names the package)."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def run(*command: object, status: int = 0, stdin: str = "", cwd: Path | None = None) -> str:
    """Runs a program, which must exit with this status. Returns what it printed: of a failure
    also what it printed to stderr."""
    done = subprocess.run(
        [str(part) for part in command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS_MAX,
        cwd=cwd,
        env=TOOL_ENVIRONMENT,
    )
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if status == 0 else done.stdout + done.stderr


# libnbd -------------------------------------------------------------------------------------------


def open_export(
    server: NbdServer,
    export: str,
    *contexts: str,
    structured: bool = True,
    lenient: bool = False,
) -> Any:
    """A connection of libnbd to an export.

    Args:
        contexts: metadata contexts to ask for.
        structured: ask for structured replies.
        lenient: let the server refuse what the library would not even send.
    """
    import nbd

    connection = nbd.NBD()
    if lenient:
        connection.set_strict_mode(0)
    connection.set_request_structured_replies(structured)
    for context in contexts:
        connection.add_meta_context(context)
    connection.set_export_name(export)
    connection.connect_unix(server.socket)
    return connection


@contextlib.contextmanager
def connected(server: NbdServer, export: str, *contexts: str, **options: bool) -> Iterator[Any]:
    """As open_export; closed in order."""
    connection = open_export(server, export, *contexts, **options)
    try:
        yield connection
    finally:
        with contextlib.suppress(Exception):  # the test may have lost it on purpose
            connection.shutdown()


def extents(connection: Any, count: int, offset: int = 0, flags: int = 0) -> dict[str, Any]:
    """One BLOCK_STATUS: by context, pairs of length and flags."""
    found: dict[str, Any] = {}

    def learn(context: str, _offset: int, entries: list[int], _error: object) -> int:
        assert context not in found, "a context is told once in a reply"
        found[context] = list(zip(entries[::2], entries[1::2]))
        return 0

    connection.block_status(count, offset, learn, flags)
    return found


def whole_map(connection: Any, context: str) -> list[tuple[int, int, int]]:
    """All extents of an export as offset, length and flags, neighbours alike merged."""
    merged: list[tuple[int, int, int]] = []
    offset, size = 0, connection.get_size()
    while offset < size:
        for length, flags in extents(connection, min(size - offset, 1 << 30), offset)[context]:
            if merged and merged[-1][2] == flags:
                merged[-1] = (merged[-1][0], merged[-1][1] + length, flags)
            else:
                merged.append((offset, length, flags))
            offset += length
    return merged


# Files --------------------------------------------------------------------------------------------


class Mounted:
    """A file that nbdfuse shows."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self.path = path
        self.process = process

    def unmount(self) -> None:
        """Takes it away, whether or not its server and nbdfuse itself live."""
        unmount = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
        subprocess.run([*unmount, str(self.path)], capture_output=True)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            subprocess.run([*unmount, "-l", str(self.path)], capture_output=True)
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def shown_as_file(uri: str, path: Path, *arguments: str) -> Iterator[Mounted]:
    """The export as a file at `path`, through nbdfuse."""
    path.touch()
    ready = path.with_name(path.name + ".pid")
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        ["nbdfuse", "-P", str(ready), *arguments, str(path), uri],
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + TOOL_SECONDS_MAX
    while not ready.exists():
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError(f"nbdfuse: {process.stderr.read().decode()}")
        assert time.monotonic() < until
        time.sleep(0.005)
    mounted = Mounted(path, process)
    try:
        yield mounted
    finally:
        mounted.unmount()


def fuse_is_missing() -> str:
    """Why there are no FUSE mounts here; empty if there are."""
    if not Path("/dev/fuse").exists():
        return "no /dev/fuse"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "not root, and no fusermount3"
    return ""


def loop_is_missing() -> str:
    """Why a file cannot be made a loop device and mounted here; empty if it can."""
    if os.geteuid() != 0:
        return "only root mounts a loop device"
    if not Path("/dev/loop-control").exists():
        return "no /dev/loop-control"
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(MIB)
        tried = subprocess.run(["losetup", "-f", "--show", file.name], capture_output=True)
        if tried.returncode != 0:
            return f"losetup: {tried.stderr.decode().strip()}"
        subprocess.run(["losetup", "-d", tried.stdout.decode().strip()], check=True)
    return ""


needs_fuse = pytest.mark.skipif(bool(fuse_is_missing()), reason=fuse_is_missing())
needs_loop = pytest.mark.skipif(bool(loop_is_missing()), reason=loop_is_missing())
