# SPDX-License-Identifier: Apache-2.0
"""What the client does when the server is away, restarts, or is late."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import cowshed
import pytest

from client_support import MIB
from server_process import Proxy, Server


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that accepts connections and never says anything."""
    listener = socket.create_server(("127.0.0.1", 0))
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def test_unreachable_server_is_told_within_wait_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(cowshed.UnavailableError, match=str(port)):
        cowshed.connect(f"127.0.0.1:{port}", wait_ready=0.5)
    assert time.monotonic() - started < 5


def test_every_call_has_a_deadline(black_hole: str) -> None:
    client = cowshed.connect(black_hole, timeout=0.5, wait_ready=0)
    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        client.get("a")
    assert isinstance(caught.value, cowshed.DeadlineExceededError)
    with pytest.raises(cowshed.DeadlineExceededError):
        client.read("a")
    with pytest.raises(cowshed.DeadlineExceededError):
        client.write("a", 0, b"x")
    assert time.monotonic() - started < 10
    client.close()


def test_lost_reply_is_asked_for_again_and_the_call_happens_once(
    client: cowshed.Client, proxy: Proxy, base: str
) -> None:
    made: list[cowshed.Dataset] = []
    with cowshed.connect(proxy.address) as through:
        proxy.deafen()
        caller = threading.Thread(target=lambda: made.append(through.create(base, MIB)))
        caller.start()
        while not client.exists(base):
            pass
        proxy.cut()
        caller.join(timeout=30)
    # Without the request_id the second attempt would have been refused: the name is taken.
    assert [d.uid for d in made] == [client.get(base).uid]
    assert proxy.connections >= 2


def test_broken_read_stream_is_taken_up_again(
    client: cowshed.Client, proxy: Proxy, base: str
) -> None:
    data = os.urandom(12 * MIB)
    client.create(base, len(data))
    client.write(base, 0, data)
    received = bytearray()
    with cowshed.connect(proxy.address) as through:
        for chunk in through.read_chunks(base):
            received += chunk.data or bytes(chunk.length_bytes)
            if len(received) == 2 * MIB:
                proxy.cut()
    assert received == data
    assert proxy.connections >= 2


def test_proxy_of_the_environment_is_not_used_on_loopback(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with cowshed.connect(server.tcp) as c:
        assert c.server_info().boot_id


def test_forked_child_gets_a_channel_of_its_own(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.write(base, 0, b"child")
            status = 0 if client.get(base).name == base else 2
        finally:
            os._exit(status)
    _, raw = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(raw) == 0
    assert client.read(base, 0, 5) == b"child", "the parent's channel lives on"


def test_address_comes_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COWSHED_ADDRESS", server.unix)
    with cowshed.connect() as c:
        assert c.transport.address == server.unix
        assert c.server_info().version


def test_closed_client_refuses(server: Server) -> None:
    with cowshed.connect(server.unix) as c:
        pass
    with pytest.raises(ValueError, match="closed"):
        c.pool()


def test_call_outlives_a_restart(own_server: Server) -> None:
    with cowshed.connect(own_server.tcp, timeout=60) as c:
        c.create("a", MIB)
        own_server.kill()
        found: list[cowshed.Dataset] = []
        caller = threading.Thread(target=lambda: found.append(c.get("a")))
        caller.start()
        own_server.start()
        caller.join(timeout=60)
        assert [d.name for d in found] == ["a"]


def test_flushed_writes_survive_a_crash(own_server: Server) -> None:
    with cowshed.connect(own_server.unix, timeout=60) as c:
        c.create("a", MIB)
        f = c.open("a", "r+b")
        f.write(b"durable")
        f.flush()
        own_server.kill()
        own_server.start()
        f.flush()
        f.write(b" and more")
        f.close()
        assert c.read("a", 0, 16) == b"durable and more"


def test_stream_makes_little_writes_durable(own_server: Server) -> None:
    with cowshed.connect(own_server.unix, timeout=60) as c:
        c.create("a", MIB)
        with c.write_stream("a") as stream:
            for n in range(3):
                stream.write(n * 4096, b"kept")
                stream.fdatasync()
            stream.fdatasync()  # nothing is new
            assert stream.flush() > 0
            stream.write(0, b"both")
            stream.write(9 * 4096, b"kept")
            stream.fdatasync()
        own_server.kill()
        own_server.start()
        assert [c.read("a", n * 4096, 4) for n in (0, 1, 2, 9)] == [b"both", *3 * [b"kept"]]


def test_lost_writes_are_named_and_can_be_written_again(own_server: Server) -> None:
    with cowshed.connect(own_server.unix, timeout=60) as c:
        c.create("a", 8 * MIB)
        f = c.open("a", "r+b")
        f.write(b"flushed")
        f.flush()
        f.seek(4096)
        f.write(b"a" * 100)
        f.write(b"b" * 100)
        f.seek(MIB)
        f.write(b"c" * (2 * MIB))
        own_server.kill()
        own_server.start()
        with pytest.raises(cowshed.LostWritesError) as caught:
            f.flush()
        assert caught.value.ranges == ((4096, 4296), (MIB, 3 * MIB))
        assert caught.value.reason == "SERVER_RESTARTED"
        assert isinstance(caught.value, cowshed.ServerRestartedError)
        for start, end in caught.value.ranges:
            f.seek(start)
            f.write(b"d" * (end - start))
        f.close()
        assert c.read("a", 0, 7) == b"flushed"
        assert c.read("a", 4096, 200) == b"d" * 200


def test_write_after_a_crash_finds_the_loss_before_it_adds_to_it(own_server: Server) -> None:
    with cowshed.connect(own_server.unix, timeout=60) as c:
        c.create("a", 8 * MIB)
        f = c.open("a", "r+b")
        f.write(b"lost")
        own_server.kill()
        own_server.start()
        with pytest.raises(cowshed.LostWritesError) as caught:
            f.write(b"next")
        assert caught.value.ranges == ((0, 8),)
        f.seek(0)
        f.write(b"x" * (3 * MIB))
        own_server.kill()
        own_server.start()
        with pytest.raises(cowshed.LostWritesError) as caught:
            f.write(b"y" * (2 * MIB))
        assert caught.value.ranges == ((0, 5 * MIB),)
        f.close()


def test_server_stops_in_good_order(own_server: Server) -> None:
    with cowshed.connect(own_server.unix) as c:
        c.create("a", MIB)
        with c.open("a", "r+b") as f:
            f.write(b"unflushed, but the server is asked nicely")
            f.flush()
        assert own_server.stop() == 0
        own_server.start()
        assert c.read("a", 0, 9) == b"unflushed"
