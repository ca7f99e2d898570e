# SPDX-License-Identifier: Apache-2.0
"""Other people's NBD servers, as child processes on unix sockets."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Unavailable

START_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 60.0


@contextlib.contextmanager
def serving(command: list[str], socket: Path) -> Iterator[str]:
    """Runs a server that makes `socket`; gives the URI. It ends with the context."""
    socket.unlink(missing_ok=True)
    try:
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is not installed") from error
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not socket.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"{command[0]}: {server.stderr and server.stderr.read()}")
            time.sleep(0.01)
        yield f"nbd+unix:///?socket={socket}"
    finally:
        server.terminate()
        server.wait(timeout=STOP_SECONDS_MAX)
        if server.stderr is not None:
            server.stderr.close()
        socket.unlink(missing_ok=True)


def memory(socket: Path, size_bytes: int) -> contextlib.AbstractContextManager[str]:
    """nbdkit's RAM disk, which keeps nothing: what the client and the protocol alone take."""
    return serving(["nbdkit", "-f", "-U", str(socket), "memory", str(size_bytes)], socket)
