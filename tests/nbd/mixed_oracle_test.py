# SPDX-License-Identifier: Apache-2.0
"""Random I/O over NBD and gRPC at once on one dataset, beside a plain file that says what is right.

A round draws requests of which none touches what another one changes, sends them all at once over
several connections, waits, and compares. So the seed alone decides what is sent, while the server
still has them all in flight together.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nbd_support import BLOCK_BYTES, SCALE, NbdServer, cowshed, open_export, whole_map

nbd = pytest.importorskip("nbd", reason="not installed: python3-libnbd")

ALLOCATION = "base:allocation"
CONNECTIONS = 4
REQUESTS_PER_ROUND = 32
ROUNDS = 60 * SCALE
SIZE_BYTES = 300 * BLOCK_BYTES + 1234
LENGTH_MAX = 12 * BLOCK_BYTES

CHANGES = ("write", "write", "write", "zero", "trim")
NBD_FLAGS = {
    "write": (0, nbd.CMD_FLAG_FUA),
    "zero": (0, nbd.CMD_FLAG_FUA, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FAST_ZERO),
    "trim": (0, nbd.CMD_FLAG_FUA),
    "read": (0,),
}


@dataclass
class Request:
    """One request of a round."""

    verb: str  # write, zero, trim or read
    offset: int
    length: int
    flags: int
    data: bytes  # what the range holds afterwards
    connection: int  # of NBD; -1: gRPC

    def overlaps(self, other: Request) -> bool:
        """Whether the ranges have a byte in common."""
        end, other_end = self.offset + self.length, other.offset + other.length
        return self.offset < other_end and other.offset < end

    def __str__(self) -> str:
        where = "gRPC" if self.connection < 0 else f"NBD {self.connection} flags {self.flags}"
        return f"{self.verb} {self.offset}+{self.length} over {where}"


class Bench:
    """A dataset, its connections, and the file beside it."""

    def __init__(self, server: NbdServer, client: cowshed.Client, name: str, oracle: Path) -> None:
        self.tally: Counter[str] = Counter()
        self._client = client
        self._name = name
        self._oracle = oracle.open("w+b", buffering=0)
        self._oracle.truncate(SIZE_BYTES)
        self._connections = [open_export(server, name, ALLOCATION) for _ in range(CONNECTIONS)]
        self._threads = ThreadPoolExecutor(max_workers=4)

    def expected(self, offset: int = 0, length: int = SIZE_BYTES) -> bytes:
        """What the file holds."""
        self._oracle.seek(offset)
        return self._oracle.read(length)

    def draw(self, rng: random.Random) -> list[Request]:
        """The requests of the next round."""
        drawn: list[Request] = []
        while len(drawn) < REQUESTS_PER_ROUND:
            verb = rng.choice(CHANGES) if rng.random() < 0.6 else "read"
            length = rng.choice((1, 512, 4096, BLOCK_BYTES, rng.randrange(1, LENGTH_MAX)))
            offset = rng.randrange(SIZE_BYTES - length + 1)
            if rng.random() < 0.3:
                offset -= offset % BLOCK_BYTES
            connection = rng.randrange(-1, CONNECTIONS)
            one = Request(verb, offset, length, rng.choice(NBD_FLAGS[verb]), b"", connection)
            if any(one.overlaps(o) and (verb, o.verb) != ("read", "read") for o in drawn):
                continue
            if verb == "write":
                one.data = rng.randbytes(length)
            elif verb == "read":
                one.data = self.expected(offset, length)
            else:
                one.data = bytes(length)
            drawn.append(one)
        return drawn

    def run(self, requests: list[Request]) -> None:
        """Sends them all at once and waits."""
        waits = [self._send(request) for request in requests]
        for request, wait in zip(requests, waits, strict=True):
            answer = wait()
            self.tally[f"{request.verb} {'gRPC' if request.connection < 0 else 'NBD'}"] += 1
            if request.verb == "read":
                assert answer == request.data, f"{request}: other bytes than the file's"
            else:
                self._oracle.seek(request.offset)
                self._oracle.write(request.data)

    def _send(self, request: Request) -> Callable[[], bytes]:
        if request.connection < 0:
            return self._threads.submit(self._over_grpc, request).result
        h = self._connections[request.connection]
        buffer = nbd.Buffer.from_bytearray(bytearray(request.data))
        at, length, flags = request.offset, request.length, request.flags
        if request.verb == "write":
            cookie = h.aio_pwrite(buffer, at, flags=flags)
        elif request.verb == "zero":
            cookie = h.aio_zero(length, at, flags=flags)
        elif request.verb == "trim":
            cookie = h.aio_trim(length, at, flags=flags)
        else:
            buffer = nbd.Buffer(length)
            cookie = h.aio_pread(buffer, at)

        def wait() -> bytes:
            while not h.aio_command_completed(cookie):
                assert h.poll(30_000) == 1, f"{request}: no answer"
            return bytes(buffer.to_bytearray()) if request.verb == "read" else b""

        return wait

    def _over_grpc(self, request: Request) -> bytes:
        if request.verb == "read":
            return self._client.read(self._name, request.offset, request.length)
        with self._client.write_stream(self._name) as stream:
            if request.verb == "write":
                stream.write(request.offset, request.data)
            elif request.verb == "zero":
                stream.zero(request.offset, request.length)
            else:
                stream.discard(request.offset, request.length)
        return b""

    def check_all(self) -> None:
        """Every byte by every way, and that the map calls nothing a hole that is none."""
        expected = self.expected()
        assert self._client.read(self._name) == expected
        for h in self._connections:
            assert h.pread(SIZE_BYTES, 0) == expected
        for offset, length, flags in whole_map(self._connections[0], ALLOCATION):
            assert flags in (0, 3)
            assert not flags or not any(expected[offset : offset + length]), offset

    def flush(self, connection: int) -> None:
        """A flush of one connection."""
        self._connections[connection].flush()

    def close(self) -> None:
        """Hangs up in order."""
        for h in self._connections:
            h.shutdown()
        self._threads.shutdown()
        self._oracle.close()


def test_random_io_by_all_ways_at_once(
    server: NbdServer, client: cowshed.Client, base: str, rng: random.Random, tmp_path: Path
) -> None:
    client.create(base, SIZE_BYTES)
    bench = Bench(server, client, base, tmp_path / "oracle")
    frozen: dict[str, bytes] = {}
    for round_ in range(ROUNDS):
        bench.run(bench.draw(rng))
        if rng.random() < 0.2:
            bench.flush(rng.randrange(CONNECTIONS))
        if rng.random() < 0.1:
            snapshot = f"{base}@s{round_}"
            client.snapshot(snapshot)
            frozen[snapshot] = bench.expected()
        if rng.random() < 0.1:
            bench.check_all()
    bench.check_all()
    bench.close()
    print(dict(bench.tally))
    assert len(bench.tally) == 8, bench.tally
    assert frozen
    for snapshot, content in frozen.items():
        h = open_export(server, snapshot)
        assert h.pread(SIZE_BYTES, 0) == content, snapshot
        h.shutdown()
        assert client.read(snapshot) == content, snapshot


def test_one_byte_that_differs_is_found(
    server: NbdServer, client: cowshed.Client, base: str, rng: random.Random, tmp_path: Path
) -> None:
    client.create(base, SIZE_BYTES)
    bench = Bench(server, client, base, tmp_path / "oracle")
    bench.run(bench.draw(rng))
    bench.check_all()
    at = rng.randrange(SIZE_BYTES)
    client.write(base, at, bytes([bench.expected(at, 1)[0] ^ 1]))
    with pytest.raises(AssertionError):
        bench.check_all()
    bench.close()
