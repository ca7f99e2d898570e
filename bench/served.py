# SPDX-License-Identifier: Apache-2.0
"""A `cowshed serve` of its own for the benches that measure the service."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import PROGRAMS

SERVER = PROGRAMS / "bin" / "cowshed"
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 60.0


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@dataclass(frozen=True)
class Served:
    """Where a server is to be found."""

    address: str  # for gRPC
    nbd_socket: Path
    metrics: str  # URL

    def nbd_uri(self, export: str) -> str:
        return f"nbd+unix:///{export}?socket={self.nbd_socket}"

    def counter(self, name: str) -> float:
        """The sum of a counter over its labels, now."""
        with urllib.request.urlopen(self.metrics, timeout=STOP_SECONDS_MAX) as reply:
            lines = reply.read().decode().splitlines()
        found = [line for line in lines if re.match(rf"{name}[{{ ]", line)]
        if not found:
            raise RuntimeError(f"the server has no counter {name}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@contextlib.contextmanager
def serving(pool: Path) -> Iterator[str]:
    """Serves the pool, which it makes if it is missing; gives the address."""
    with _started(pool, "--metrics-listen", "off") as (folder, _):
        yield f"unix:{folder / 'socket'}"


@contextlib.contextmanager
def serving_devices(pool: Path) -> Iterator[Served]:
    """As `serving`, over NBD too, and with its counters to be read."""
    with tempfile.TemporaryDirectory(prefix="cowshed-bench-") as name:
        nbd = Path(name) / "nbd"
        args = ("--metrics-listen", "127.0.0.1:0", "--nbd-listen", f"unix:{nbd}")
        with _started(pool, *args) as (folder, said):
            (metrics,) = [line.split()[-1] for line in said if line.startswith("metrics on ")]
            yield Served(f"unix:{folder / 'socket'}", nbd, f"http://{metrics}/metrics")


@contextlib.contextmanager
def _started(pool: Path, *args: str) -> Iterator[tuple[Path, list[str]]]:
    """A server; gives the folder of its socket and what it said until it was ready."""
    # Below /tmp: the path of a unix socket is short.
    with tempfile.TemporaryDirectory(prefix="cowshed-bench-") as name:
        folder = Path(name)
        path = folder / "socket"
        command = [str(SERVER), "serve", "--pool", str(pool), "--listen", f"unix:{path}"]
        command += ["--log-level", "warning", *args]
        # Into a file: nobody reads a pipe later, and a full one would stop the server.
        said = folder / "said"
        with said.open("w") as output:
            server = subprocess.Popen(command, stdout=output)
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not _answers(path) or "try: " not in said.read_text():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("cowshed serve does not start")
                time.sleep(0.01)
            yield folder, said.read_text().splitlines()
        finally:
            server.terminate()
            server.wait(timeout=STOP_SECONDS_MAX)
