# SPDX-License-Identifier: Apache-2.0
"""The writer lease between processes: one writes, unless both say that they share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import server_process
from nbd_support import MIB, NbdServer, connected, cowshed, needs, open_export, run

nbd = pytest.importorskip("nbd", reason="not installed: python3-libnbd")

# How long a lease may outlive a client that was killed.
RELEASE_SECONDS_MAX = 10


class Holder:
    """Another process with an attachment; see lease_holder.py."""

    def __init__(self, server: NbdServer, export: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("lease_holder.py"), server.socket, export],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.greeting = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, order: str) -> str:
        """Gives an order. Returns the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self._line()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def holders(server: NbdServer) -> Iterator[list[Holder]]:
    """Those started here end with the test."""
    started: list[Holder] = []
    yield started
    for one in started:
        one.kill()


@pytest.fixture
def export(client: cowshed.Client, base: str) -> str:
    """A dataset."""
    client.create(base, MIB)
    return base


def attach(server: NbdServer, export: str, holders: list[Holder]) -> Holder:
    """Another process, which must be let in."""
    one = Holder(server, export)
    holders.append(one)
    assert one.greeting == "attached"
    return one


def assert_refused(server: NbdServer, export: str, client: str = "") -> None:
    """This process is refused, and told by whom."""
    with pytest.raises(nbd.Error) as caught:
        open_export(server, export)
    assert client in caught.value.string


def test_second_process_may_not_write(
    server: NbdServer, export: str, holders: list[Holder]
) -> None:
    first = attach(server, export, holders)
    assert first.tell("write 0 first") == "ok"
    assert_refused(server, export)
    assert_refused(server, f"{export}?shared")
    with connected(server, f"{export}?read-only") as h:
        assert h.pread(5, 0) == b"first"
    assert first.tell("write 0 again") == "ok"


def test_refusal_names_the_holder(
    server: NbdServer, export: str, holders: list[Holder], tmp_path: Path
) -> None:
    first = attach(server, export, holders)
    script = tmp_path / "attach.sh"
    script.write_text(f"nbdinfo --can connect '{server.uri(export)}'\n")
    said = run("sh", "-c", f"LIBNBD_DEBUG=1 nbdinfo '{server.uri(export)}' 2>&1; true")
    assert f"pid:{first.process.pid}" in said


def test_connections_of_one_process_share_its_lease(
    server: NbdServer, export: str, holders: list[Holder]
) -> None:
    with connected(server, export) as one, connected(server, export) as two:
        assert one.can_multi_conn() is True
        one.pwrite(b"one", 0)
        assert two.pread(3, 0) == b"one"
        two.pwrite(b"two", 0)
        other = Holder(server, export)
        holders.append(other)
        assert other.greeting.startswith("refused: ")
    # The lease goes with the last of them.
    assert attach(server, export, holders).tell("read 0 3") == b"two".hex()


def test_those_who_share_write_side_by_side(
    server: NbdServer, export: str, holders: list[Holder]
) -> None:
    first = attach(server, f"{export}?shared", holders)
    second = attach(server, f"{export}?shared", holders)
    assert first.tell("write 0 one") == "ok"
    assert second.tell("read 0 3") == b"one".hex()
    assert second.tell("write 3 two") == "ok"
    assert first.tell("read 0 6") == b"onetwo".hex()
    assert_refused(server, export)  # nobody has it alone now


def test_lease_ends_with_a_process_that_is_killed(
    server: NbdServer, export: str, holders: list[Holder]
) -> None:
    first = attach(server, export, holders)
    assert first.tell("write 0 first") == "ok"
    assert_refused(server, export)
    first.kill()
    until = time.monotonic() + RELEASE_SECONDS_MAX
    while True:  # the server learns of the end of the connection by itself
        try:
            h = open_export(server, export)
            break
        except nbd.Error:
            assert time.monotonic() < until
    assert h.pread(5, 0) == b"first"
    h.shutdown()


def test_lease_ends_with_an_orderly_disconnect(
    server: NbdServer, export: str, holders: list[Holder]
) -> None:
    for n in range(20):
        with connected(server, export) as h:
            h.pwrite(bytes([n]), 0)
        one = Holder(server, export)
        holders.append(one)
        assert one.greeting == "attached", n
        assert one.tell("read 0 1") == bytes([n]).hex()
        assert one.tell("quit") == ""
        assert one.process.wait(timeout=10) == 0


def test_leases_of_clones_are_their_own(
    server: NbdServer, client: cowshed.Client, export: str, holders: list[Holder]
) -> None:
    client.snapshot(f"{export}@s")
    client.clone(f"{export}@s", f"{export}/clone")
    attach(server, export, holders)
    attach(server, f"{export}/clone", holders)
    attach(server, f"{export}@s", holders)
    assert_refused(server, export)
    assert_refused(server, f"{export}/clone")
    for _ in range(3):
        attach(server, f"{export}@s", holders)


@pytest.mark.parametrize("tool", [pytest.param("qemu-io", marks=needs("qemu-io"))])
def test_tool_of_another_process_is_refused(
    server: NbdServer, export: str, holders: list[Holder], tool: str
) -> None:
    attach(server, export, holders)
    run(tool, "-f", "raw", "-c", "write 0 4k", server.uri(export), status=1)
    run(tool, "-f", "raw", "-r", "-c", "read 0 4k", server.uri(f"{export}?read-only"))


def test_grpc_writes_beside_an_attachment(
    server: NbdServer, client: cowshed.Client, export: str, holders: list[Holder]
) -> None:
    first = attach(server, export, holders)
    client.write(export, 0, b"grpc")
    assert first.tell("read 0 4") == b"grpc".hex()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace of pids")
@needs("unshare")
def test_processes_that_the_server_cannot_see_are_not_one_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: to a server in a pid namespace of its own, as in a container, all clients outside were
    `pid:0` and so one holder, and two machines wrote to one disk."""
    script = tmp_path / "cowshed"
    script.write_text(
        f'#!/bin/sh\nexec unshare --pid --fork --kill-child {server_process.server_binary()} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(server_process, "server_binary", lambda: script)
    directory = Path(tempfile.mkdtemp(prefix="nbd"))
    apart = NbdServer(directory)
    apart.start()
    try:
        with cowshed.connect(apart.unix) as client:
            client.create("disk", MIB)
        with connected(apart, "disk") as h:
            assert h.can_multi_conn() is False
            assert Holder(apart, "disk").greeting.startswith("refused: ")
            h.pwrite(b"mine", 0)
    finally:
        apart.kill()
        shutil.rmtree(directory)
