# SPDX-License-Identifier: Apache-2.0
"""A `cowshed serve` of its own for the benches that measure the service."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness import PROGRAMS

SERVER = PROGRAMS / "bin" / "cowshed"
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 60.0


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextlib.contextmanager
def serving(pool: Path) -> Iterator[str]:
    """Serves the pool, which it makes if it is missing; gives the address."""
    # Below /tmp: the path of a unix socket is short.
    with tempfile.TemporaryDirectory(prefix="cowshed-bench-") as folder:
        path = Path(folder) / "socket"
        command = [SERVER, "serve", "--pool", pool, "--listen", f"unix:{path}"]
        command += ["--metrics-listen", "off", "--log-level", "warning"]
        server = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not _answers(path):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("cowshed serve does not start")
                time.sleep(0.01)
            yield f"unix:{path}"
        finally:
            server.terminate()
            server.wait(timeout=STOP_SECONDS_MAX)
