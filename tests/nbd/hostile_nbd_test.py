# SPDX-License-Identifier: Apache-2.0
"""NBD clients that mean no good: whatever they do to their own connections, others are served, and
memory stays bounded."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import raw_nbd
from nbd_support import BLOCK_BYTES, MIB, NbdServer, connected, cowshed, serving
from raw_nbd import Closed, Raw

nbd = pytest.importorskip("nbd", reason="not installed: python3-libnbd")

SIZE_BYTES = 64 * MIB
CROWD = 1000
GREEDY = 40
REQUESTS_EACH = 200
# What they may add all together: generous, but a bound. Unbounded, the greedy ask for 6 GiB.
CROWD_MEMORY_MIB = 320
# How much longer the median request of another client may take among them.
SLOWDOWN = 8
SLOWDOWN_FLOOR_SECONDS = 0.02
STALL_SECONDS = 2


@pytest.fixture(scope="module")
def strict() -> Iterator[NbdServer]:
    """A server that gives up soon on what is no client, with a dataset full of noise."""
    with serving(
        "--handshake-timeout-ms", 1000, "--stall-timeout-ms", STALL_SECONDS * 1000
    ) as server:
        with cowshed.connect(server.unix) as client:
            client.create("disk", SIZE_BYTES)
            client.write("disk", 0, random.Random(1).randbytes(SIZE_BYTES))
        yield server


def assert_served(server: NbdServer) -> None:
    """Others are served as ever."""
    with connected(server, "disk?read-only") as h:
        assert len(h.pread(4096, 0)) == 4096


def anonymous_mib(server: NbdServer) -> float:
    """The memory of the process that is no file's."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024


def ready(server: NbdServer, export: str = "disk?read-only") -> Raw:
    """A connection in the transmission phase."""
    one = Raw(server.socket)
    assert one.go(export) == SIZE_BYTES
    return one


# What is no NBD -----------------------------------------------------------------------------------


def _option(option: int, data: bytes = b"", length: int | None = None) -> bytes:
    head = struct.pack(">QII", raw_nbd.IHAVEOPT, option, len(data) if length is None else length)
    return head + data


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff" * 4,  # flags nobody knows
        b"\0\0\0\0" + b"\xff" * 64,
        b"\0\0\0\3" + struct.pack(">Q", 0x00420281861253) + bytes(100),  # the old style
        b"\0\0\0\3" + _option(raw_nbd.GO, b"", 0xFFFFFFFF) + bytes(1000),
        b"\0\0\0\3" + _option(raw_nbd.LIST_META_CONTEXT, b"", 1 << 30) + bytes(1000),
        b"\0\0\0\3" + _option(77, b"", 0x7FFFFFFF) + bytes(1000),
    ],
    ids=["http", "flags", "magic", "oldstyle", "huge go", "huge contexts", "huge unknown"],
)
def test_no_handshake_is_closed(strict: NbdServer, content: bytes) -> None:
    one = Raw(strict.socket)
    with contextlib.suppress(Closed):
        one.send(content)
    assert one.is_closed()
    assert_served(strict)


def test_random_noise_is_closed(strict: NbdServer) -> None:
    noise = random.Random(7)
    for _ in range(60):
        one = Raw(strict.socket)
        with contextlib.suppress(Closed):
            one.greet()
            one.send(noise.randbytes(noise.randrange(1, 3000)))
        assert one.is_closed()
    assert_served(strict)


@pytest.mark.parametrize("after", [0, 3, 4, 12, 19, 25, 29])
def test_half_a_handshake_is_given_up(strict: NbdServer, after: int) -> None:
    whole = b"\0\0\0\3" + _option(raw_nbd.GO, raw_nbd.text("disk") + b"\0\0")
    one = Raw(strict.socket)
    one.send(whole[:after])
    began = time.monotonic()
    assert one.is_closed()
    assert time.monotonic() - began < 8
    assert_served(strict)


def test_byte_after_byte_does_not_buy_time(strict: NbdServer) -> None:
    one = Raw(strict.socket)
    whole = b"\0\0\0\3" + _option(raw_nbd.GO, raw_nbd.text("disk") + b"\0\0")
    began = time.monotonic()
    with contextlib.suppress(Closed):
        for byte in whole:  # would take 15 s
            one.send(bytes([byte]))
            time.sleep(0.5)
    assert time.monotonic() - began < 10
    assert one.is_closed()


def test_options_without_end_are_cut(strict: NbdServer) -> None:
    one = Raw(strict.socket)
    one.greet()
    answered = 0
    with pytest.raises(Closed):
        while True:
            one.option(1234)
            one.last_reply()
            answered += 1
            assert answered < 1_000_000
    assert_served(strict)


# Garbage in transmission --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 28,
        b"\xff" * 28,
        struct.pack(">IHHQQI", raw_nbd.SIMPLE_REPLY_MAGIC, 0, 0, 1, 0, 1),
        b"x" * 10_000,
    ],
    ids=["zeros", "ones", "a reply", "text"],
)
def test_no_request_ends_the_connection(strict: NbdServer, content: bytes) -> None:
    one = ready(strict)
    with contextlib.suppress(Closed):
        one.send(content)
    assert one.is_closed()
    assert_served(strict)


def test_hangup_in_the_middle_of_a_write_leaves_whole_blocks(strict: NbdServer) -> None:
    with cowshed.connect(strict.unix) as client:
        for sent in (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 10 * BLOCK_BYTES + 5, MIB - 1):
            before = client.read("disk", 0, MIB)
            after = random.Random(sent).randbytes(MIB)
            one = ready(strict, "disk")
            one.send(raw_nbd.request(raw_nbd.WRITE, 0, MIB, data=after)[: 28 + sent])
            one.socket.shutdown(socket.SHUT_WR)
            assert one.is_closed()
            held = client.read("disk", 0, MIB)
            for at in range(0, MIB, BLOCK_BYTES):
                block = slice(at, at + BLOCK_BYTES)
                assert held[block] == before[block] or (
                    held[block] == after[block] and at + BLOCK_BYTES <= sent
                ), at
    assert_served(strict)


@pytest.mark.parametrize("command", [raw_nbd.READ, raw_nbd.WRITE])
def test_huge_length_takes_no_memory(strict: NbdServer, command: int) -> None:
    before = anonymous_mib(strict)
    crowd = [ready(strict, "disk?shared") for _ in range(20)]
    for one in crowd:
        with contextlib.suppress(Closed):
            one.send(raw_nbd.request(command, 0, 0xFFFFFFFF, data=bytes(100)))
    assert_served(strict)
    assert anonymous_mib(strict) - before < 64
    for one in crowd:
        one.close()


def test_one_cookie_for_all_is_the_clients_own_affair(strict: NbdServer) -> None:
    one = ready(strict)
    for _ in range(10):
        one.send(raw_nbd.request(raw_nbd.READ, 0, 4096, cookie=7))
    for _ in range(10):
        error, cookie, data = one.simple_reply(4096)
        assert (error, cookie, len(data)) == (0, 7, 4096)
    one.close()


def test_requests_after_disconnect_are_not_carried_out(strict: NbdServer) -> None:
    with cowshed.connect(strict.unix) as client:
        before = client.read("disk", 0, 4096)
        one = ready(strict, "disk")
        write = raw_nbd.request(raw_nbd.WRITE, 0, 4096, data=bytes(4096))
        one.send(raw_nbd.request(raw_nbd.DISC, 0, 0) + write)
        assert one.is_closed()
        assert client.read("disk", 0, 4096) == before


# Greed --------------------------------------------------------------------------------------------


def ask_for_much(one: Raw) -> None:
    """Asks for far more than it will take; stops when the server no longer reads."""
    one.socket.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        for n in range(REQUESTS_EACH):
            one.socket.send(raw_nbd.request(raw_nbd.READ, 0, MIB, cookie=n))


def test_client_that_takes_no_reply_is_cut_with_a_reason(strict: NbdServer) -> None:
    one = ready(strict)
    known = len(strict.log)
    ask_for_much(one)
    until = time.monotonic() + STALL_SECONDS + 10
    while not any("took no replies" in line for line in strict.log[known:]):
        assert time.monotonic() < until, "".join(strict.log[known:])
        time.sleep(0.05)
    one.socket.settimeout(5)
    assert one.is_closed()
    assert_served(strict)


def test_slow_client_that_takes_something_is_served(strict: NbdServer) -> None:
    one = ready(strict)
    with cowshed.connect(strict.unix) as client:
        expected = client.read("disk")
    for n in range(20):
        one.send(raw_nbd.request(raw_nbd.READ, n * MIB, MIB, cookie=n))
    answered = {}
    for _ in range(20):
        error, cookie, data = one.simple_reply(MIB)
        assert error == 0
        answered[cookie] = data
        time.sleep(STALL_SECONDS / 12)
    assert all(data == expected[n * MIB : (n + 1) * MIB] for n, data in answered.items())
    assert len(answered) == 20
    one.close()


def latencies(request: Callable[[], object], seconds: float) -> list[float]:
    """How long requests take, one after another."""
    taken = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        request()
        taken.append(time.monotonic() - began)
    return taken


def test_crowd_and_greed_hurt_nobody() -> None:
    """Bug: four clients that took no replies held all the memory there is for replies, and others
    waited until those were cut."""
    with serving("--nbd-max-connections", 2 * CROWD) as server, contextlib.ExitStack() as stack:
        client = stack.enter_context(cowshed.connect(server.unix, timeout=30))
        client.create("disk", SIZE_BYTES)
        client.create("busy", MIB)
        client.write("disk", 0, random.Random(1).randbytes(SIZE_BYTES))
        h = stack.enter_context(connected(server, "busy"))

        def work() -> None:
            h.pwrite(os.urandom(4096), 0)
            h.flush()
            h.pread(4096, 0)

        latencies(work, 0.3)
        before = statistics.median(latencies(work, 1))
        memory_before = anonymous_mib(server)
        crowd: list[Raw] = []
        for n in range(CROWD):
            one = ready(server)
            crowd.append(one)
            if n < GREEDY:
                ask_for_much(one)
        during = statistics.median(latencies(work, 2))
        memory_during = anonymous_mib(server)
        for one in crowd:
            one.close()
        after = statistics.median(latencies(work, 0.5))
        print(
            f"\n{CROWD} connections, {GREEDY} that take none of {REQUESTS_EACH} MiB each:"
            f" write+flush+read {before * 1000:.2f} ms alone, {during * 1000:.2f} ms among them,"
            f" {after * 1000:.2f} ms after; RssAnon {memory_before:.0f} MiB before,"
            f" {memory_during:.0f} MiB among them, {anonymous_mib(server):.0f} MiB after"
        )
        assert memory_during - memory_before < CROWD_MEMORY_MIB
        assert during < max(SLOWDOWN * before, SLOWDOWN_FLOOR_SECONDS)


def test_connections_past_the_limit_are_closed_and_those_within_stay() -> None:
    with serving("--nbd-max-connections", 20) as server:
        with cowshed.connect(server.unix) as client:
            client.create("disk", SIZE_BYTES)
        crowd = [ready(server) for _ in range(20)]
        for _ in range(10):
            assert Raw(server.socket).is_closed()
        assert crowd[0].ask(raw_nbd.READ, 0, 4096) == 0
        for one in crowd:
            one.close()
        until = time.monotonic() + 10
        while True:  # the server learns of the ends one by one
            try:
                return assert_served(server)
            except nbd.Error:
                assert time.monotonic() < until


def test_port_scan_leaves_nothing_behind(strict: NbdServer) -> None:
    for _ in range(300):
        one = socket.socket(socket.AF_UNIX)
        one.connect(strict.socket)
        one.close()
    assert_served(strict)
    descriptors = len(os.listdir(f"/proc/{strict.pid}/fd"))
    assert descriptors < 200
