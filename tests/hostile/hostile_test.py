# SPDX-License-Identifier: Apache-2.0
"""A server among clients that mean no good: whatever they do to their own connections, others are
served, and memory stays bounded."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients/python"))

import http2  # noqa: E402
from server_process import PYTHON_DIR, Server  # noqa: E402

sys.path.insert(0, str(PYTHON_DIR))

import cowshed  # noqa: E402
from cowshed.v1 import data_pb2  # noqa: E402

MIB = 1 << 20
CROWD = 1000
STALLED_READERS = 40
SILENT_WRITERS = 10
SILENT_CALLS = 2000
# What 1,000 connections, 40 streams and 2,000 calls may add: generous, but a bound.
CROWD_MEMORY_MIB = 256
# How much longer the median call of another client may take among them.
SLOWDOWN = 5
SLOWDOWN_FLOOR_SECONDS = 0.01


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[Server]:
    """A server with these arguments."""
    directory = Path(tempfile.mkdtemp(prefix="cow"))
    server = Server(directory)
    server.start(*arguments)
    try:
        yield server
        assert server.alive(), "".join(server.log)
        assert server.stop() == 0
    finally:
        server.kill()
        shutil.rmtree(directory)


@pytest.fixture
def server() -> Iterator[Server]:
    """One that gives up soon on what is no client."""
    with serving("--handshake-timeout-ms", 1000, "--connection-idle-ms", 2000) as one:
        yield one


def assert_served(server: Server) -> None:
    """Others are served as ever."""
    with cowshed.connect(server.tcp, timeout=10) as client:
        list(client.list())


def assert_closed(one: socket.socket) -> None:
    """The server closes this connection, whatever it says before."""
    one.settimeout(http2.WAIT_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while one.recv(65536):
            pass
    one.close()


def anonymous_mib(server: Server) -> float:
    """The memory of the process that is no file's."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_connections_that_speak_something_else_are_closed(server: Server, kind: str) -> None:
    address = server.unix if kind == "unix" else server.tcp
    noise = random.Random(1)
    for content in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS hello
        *(noise.randbytes(noise.randrange(1, 5000)) for _ in range(20)),
        http2.PREFACE + noise.randbytes(200),
        http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, b"") + b"\xff" * 100,
    ):
        one = http2.connect(address)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            one.sendall(content)
        assert_closed(one)
    assert_served(server)


def test_half_open_and_slow_connections_are_closed(server: Server) -> None:
    silent = [http2.connect(server.tcp) for _ in range(20)]
    silent_local = [http2.connect(server.unix) for _ in range(20)]
    slow = http2.connect(server.tcp)
    slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.monotonic()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for byte in http2.PREFACE:  # would take 12 s
            slow.sendall(bytes([byte]))
            time.sleep(0.5)
    assert time.monotonic() - began < 10
    for one in [slow, *silent, *silent_local]:
        assert_closed(one)
    assert_served(server)


def test_connection_without_calls_is_closed_and_its_client_does_not_notice(
    server: Server,
) -> None:
    with cowshed.connect(server.tcp, timeout=10) as client:
        list(client.list())
        idle = http2.Connection(server.unix)
        assert_closed(idle.socket)
        list(client.list())


def test_ping_flood_ends_the_connection(server: Server) -> None:
    one = http2.Connection(server.tcp)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(20):
            one.send(http2.frame(http2.PING, 0, 0, bytes(8)))
    assert b"too_many_pings" in one.expect(http2.GOAWAY)
    one.close()
    assert_served(server)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_connection_past_the_limit_is_closed(kind: str) -> None:
    with serving("--max-connections", 30) as server:
        address = server.unix if kind == "unix" else server.tcp
        with cowshed.connect(server.tcp, timeout=10) as client:
            list(client.list())
            crowd = [http2.Connection(address) for _ in range(29)]
            for _ in range(50):
                assert_closed(http2.connect(address))
            list(client.list())  # who is in stays in
            assert any("30 connections are open" in line for line in server.log)
            with pytest.raises(cowshed.CowshedError):
                with cowshed.connect(address, timeout=2, wait_ready=1) as late:
                    list(late.list())
            for one in crowd:
                one.close()
            until = time.monotonic() + http2.WAIT_SECONDS
            while True:  # the server learns of the ends one by one
                try:
                    return assert_served(server)
                except cowshed.CowshedError:
                    assert time.monotonic() < until


def latencies(client: cowshed.Client, seconds: float) -> list[float]:
    """How long calls take, one after another: a write, a flush and a list."""
    taken = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        client.write("busy", 0, os.urandom(4096))
        client.flush("busy")
        list(client.list())
        taken.append(time.monotonic() - began)
    return taken


def test_thousand_connections_and_slow_readers_hurt_nobody() -> None:
    with serving("--max-data-streams", 64) as server:
        with cowshed.connect(server.unix, timeout=30) as client:
            client.create("busy", MIB)
            client.create("big", 64 * MIB)
            for i in range(64):
                client.write("big", i * MIB, random.Random(i).randbytes(MIB))
            client.flush("big")
            latencies(client, 0.5)
            alone = latencies(client, 2)
            memory_before = anonymous_mib(server)

            crowd = [http2.Connection(server.tcp) for _ in range(CROWD)]
            request = data_pb2.ReadRequest(name="big").SerializeToString()
            for one in crowd[:STALLED_READERS]:
                one.call("/cowshed.v1.DataService/Read", request)  # and takes nothing of it
            for one in crowd[STALLED_READERS : STALLED_READERS + SILENT_WRITERS]:
                one.call("/cowshed.v1.DataService/Write", None)
            for i in range(SILENT_CALLS):
                crowd[-1 - i % 500].call("/cowshed.v1.DatasetService/ListDatasets", None)
            among = latencies(client, 3)
            memory_among = anonymous_mib(server)

            for one in crowd:
                one.close()
            after = latencies(client, 1)
            before, during = statistics.median(alone), statistics.median(among)
            print(
                f"\n{CROWD} connections, {STALLED_READERS} stalled readers, {SILENT_CALLS} silent"
                f" calls: write+flush+list {before * 1000:.2f} ms alone,"
                f" {during * 1000:.2f} ms among them, {statistics.median(after) * 1000:.2f} ms"
                f" after; RssAnon {memory_before:.0f} MiB before, {memory_among:.0f} MiB among"
                f" them, {anonymous_mib(server):.0f} MiB after"
            )
            assert during < max(SLOWDOWN * before, SLOWDOWN_FLOOR_SECONDS)
            assert memory_among - memory_before < CROWD_MEMORY_MIB
