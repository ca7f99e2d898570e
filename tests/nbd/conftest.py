# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one server for all tests, another for those that kill theirs, and clients."""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from nbd_support import NbdServer, cowshed, server_binary, serving  # noqa: E402

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Fails at once where there is nothing to test."""
    if not server_binary().exists():
        pytest.exit(f"no server at {server_binary()}: build it, or set COWSHED_SERVER_BINARY", 2)


@pytest.fixture(scope="session")
def server() -> Iterator[NbdServer]:
    """A server that all tests share; each uses names of its own."""
    with serving() as one:
        yield one


@pytest.fixture
def own_server() -> Iterator[NbdServer]:
    """A server that the test may kill; one that runs at its end stops in order."""
    with serving() as one:
        yield one


@pytest.fixture
def client(server: NbdServer) -> Iterator[cowshed.Client]:
    """A gRPC client of the shared server."""
    with cowshed.connect(server.unix) as connected:
        yield connected


@pytest.fixture
def base() -> str:
    """A name for one test, and a subtree below it."""
    return f"n{next(_numbers)}"


@pytest.fixture
def rng() -> random.Random:
    """Random choices that can be had again: a failed test shows the seed."""
    seed = int(os.environ.get("COWSHED_TEST_SEED") or random.randrange(1 << 32))
    print(f"seed {seed} (COWSHED_TEST_SEED={seed} for the same choices)")
    return random.Random(seed)
