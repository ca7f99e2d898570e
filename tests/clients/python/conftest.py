# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one server for all tests, another one for tests that kill it, clients, and `cow`."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from client_support import Cow, Result, cow_environment  # noqa: E402
from server_process import PYTHON_DIR, Proxy, Server, server_binary  # noqa: E402

sys.path.insert(0, str(PYTHON_DIR))

import cowshed  # noqa: E402

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Fails at once where there is nothing to test."""
    if not server_binary().exists():
        pytest.exit(f"no server at {server_binary()}: build it, or set COWSHED_SERVER_BINARY", 2)


def _short_directory() -> Path:
    # pytest's own directories are too long for the path of a unix socket.
    return Path(tempfile.mkdtemp(prefix="cow"))


def _run_server() -> Iterator[Server]:
    directory = _short_directory()
    server = Server(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that all tests share; each uses names of its own."""
    yield from _run_server()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may kill."""
    yield from _run_server()


@pytest.fixture
def client(server: Server) -> Iterator[cowshed.Client]:
    """A client of the shared server."""
    with cowshed.connect(server.unix) as connected:
        yield connected


@pytest.fixture
def base() -> str:
    """A subtree of names for one test."""
    return f"t{next(_numbers)}"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the shared server."""
    one = Proxy(server.tcp)
    yield one
    one.close()


@pytest.fixture
def cow(server: Server) -> Cow:
    """Runs `cow` on the shared server, off a terminal."""

    def run(*arguments: object, stdin: bytes = b"", address: str = server.unix) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "cowshed", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=cow_environment(address),
            timeout=120,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    return run
