# SPDX-License-Identifier: Apache-2.0
"""Datasets as devices: where to attach, who has, and the file that nbdfuse makes of one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cowshed
import pytest
from client_support import MIB, Cow, Result, cow_environment
from cowshed import aio, devices
from server_process import Server

TOOLS = [tool for tool in ("nbdinfo", "nbdsh") if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(TOOLS), reason=f"not installed: {', '.join(TOOLS)}")
needs_fuse = pytest.mark.skipif(
    bool(devices.lacking_for_files()), reason=devices.lacking_for_files() or "-"
)

HOLD = "import sys, nbd; h = nbd.NBD(); h.connect_uri(sys.argv[1]); print(1, flush=True); input()"


@pytest.fixture(scope="module")
def nbd_server() -> Iterator[Server]:
    """A server that serves NBD, on a unix socket and by TCP."""
    directory = Path(tempfile.mkdtemp(prefix="cow"))
    server = Server(directory)
    server.start("--nbd-listen", f"unix:{directory}/nbd", "--nbd-listen", "127.0.0.1:0")
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


@pytest.fixture
def client(nbd_server: Server) -> Iterator[cowshed.Client]:
    """A client of that server."""
    with cowshed.connect(nbd_server.unix) as connected:
        yield connected


@pytest.fixture
def name(client: cowshed.Client, base: str) -> str:
    """A dataset of 8 MiB."""
    return client.create(f"{base}/d", 8 * MIB).name


@pytest.fixture
def cow(nbd_server: Server, tmp_path: Path) -> Cow:
    """Runs `cow` on that server; what it notes is in a directory of the test's."""

    def run(*arguments: object) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "cowshed", *map(str, arguments)],
            capture_output=True,
            env={**cow_environment(nbd_server.unix), "XDG_RUNTIME_DIR": str(tmp_path)},
            timeout=120,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    return run


class Holder:
    """A process of its own that has a URI attached."""

    def __init__(self, uri: str) -> None:
        self._process = subprocess.Popen(
            ["/usr/bin/python3", "-c", HOLD, uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.attached = self._process.stdout.readline() == "1\n"

    @property
    def error(self) -> str:
        """Why it could not attach."""
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def end(self) -> None:
        """Ends the process, and so the connection."""
        if self._process.poll() is None:
            self._process.communicate("\n", timeout=30)


@pytest.fixture
def hold() -> Iterator[Callable[[str], Holder]]:
    """Attaches a URI until the end of the test."""
    holders: list[Holder] = []

    def attach(uri: str) -> Holder:
        holders.append(Holder(uri))
        return holders[-1]

    yield attach
    for one in holders:
        one.end()


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that comes soon, at most 30 s."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def test_a_uri_that_clients_understand(client: cowshed.Client, name: str) -> None:
    client.write(name, 4096, b"moo")
    at = client.attach(name)
    assert at.export == name and at.size == 8 * MIB and not at.info.read_only
    assert os.path.exists(at.socket) and at.socket in at.uri
    assert len(at.uris) == 2 and at.uris[1].startswith("nbd://127.0.0.1:")
    for uri in at.uris:
        size = subprocess.run(
            ["nbdinfo", "--size", uri], capture_output=True, text=True, check=True
        )
        assert int(size.stdout) == 8 * MIB
    client.snapshot(f"{name}@s")
    snapshot = client.attach(f"{name}@latest")
    assert snapshot.export == f"{name}@s" and snapshot.info.read_only
    assert client.attach(name, shared=True).export == f"{name}?shared"
    assert client.attach(name, read_only=True).info.read_only
    with pytest.raises(cowshed.InvalidArgumentError):
        client.attach(name, read_only=True, shared=True)
    with pytest.raises(cowshed.NotFoundError):
        client.attach(f"{name}-missing")


def test_a_server_without_nbd_says_so(own_server: Server) -> None:
    with cowshed.connect(own_server.unix) as client:
        client.create("d", MIB)
        with pytest.raises(cowshed.PreconditionError) as caught:
            client.attach("d")
    assert caught.value.reason == "NBD_DISABLED"


def test_the_lease_is_one_writers(
    client: cowshed.Client, name: str, hold: Callable[[str], Holder]
) -> None:
    at = client.attach(name)
    first = hold(at.uri)
    assert first.attached
    [one] = client.attachments(name)
    assert one.name == name and not one.read_only and one.protocol == "nbd"
    assert one.client.startswith(f"uid:{os.getuid()} pid:") and one.since_time is not None
    assert not hold(at.uri).attached, "another process has the lease"
    assert hold(client.attach(name, read_only=True).uri).attached
    assert len(list(client.attachments(name))) == 2
    first.end()
    until(lambda: all(a.read_only for a in client.attachments(name)))
    assert hold(at.uri).attached, "the lease went with its process"


def test_what_is_attached_goes_by_force_only(
    client: cowshed.Client, name: str, hold: Callable[[str], Holder]
) -> None:
    client.snapshot(f"{name}@s")
    assert hold(client.attach(name).uri).attached
    for refused in (
        lambda: client.destroy(name, recursive=True),
        lambda: client.rollback(name),
        lambda: client.resize(name, MIB),
    ):
        with pytest.raises(cowshed.BlockedError) as caught:
            refused()
        assert caught.value.reason == "ATTACHED"
        [blocker] = caught.value.blockers
        assert blocker.kind is cowshed.BlockerKind.ATTACHMENT and blocker.name == name
        assert blocker.client.startswith("uid:") and blocker.attachment and blocker.since_time
    assert client.plan_destroy(name, recursive=True).blockers.total == 1
    client.rollback(name, force=True)
    until(lambda: not list(client.attachments(name)))
    assert hold(client.attach(name).uri).attached
    client.resize(name, MIB, force=True)
    until(lambda: not list(client.attachments(name)))
    assert hold(client.attach(name).uri).attached
    client.destroy(name, recursive=True, force=True)
    assert not client.exists(name)
    until(lambda: not list(client.attachments()))


def test_leaving_the_context_detaches_what_it_attached(
    client: cowshed.Client, name: str, hold: Callable[[str], Holder]
) -> None:
    earlier = hold(client.attach(name, read_only=True).uri)
    with client.attach(name) as uri:
        assert hold(uri).attached
        assert len(list(client.attachments(name))) == 2
    [left] = client.attachments(name)
    assert earlier.attached and left.read_only, "what was there before stays"
    assert client.detach(name) == 1
    assert client.detach(name) == 0
    with pytest.raises(cowshed.NotFoundError) as caught:
        client.detach(attachment=left.id)
    assert caught.value.reason == "ATTACHMENT_NOT_FOUND"


def test_scratch_goes_though_it_is_attached(
    client: cowshed.Client, name: str, hold: Callable[[str], Holder]
) -> None:
    with client.scratch(name) as scratch:
        assert hold(client.attach(scratch).uri).attached
    assert not client.exists(scratch)


def test_asyncio_has_the_same(
    nbd_server: Server, client: cowshed.Client, name: str, hold: Callable[[str], Holder]
) -> None:
    async def run() -> None:
        async with await aio.connect(nbd_server.unix) as c:
            async with await c.attach(name) as uri:
                assert (await asyncio.to_thread(hold, uri)).attached
                assert [a.name async for a in c.attachments(prefix=name)] == [name]
                with pytest.raises(cowshed.BlockedError):
                    await c.destroy(name)
            assert [a async for a in c.attachments(name)] == []
            assert await c.detach(name) == 0
            await c.destroy(name, force=True)

    asyncio.run(run())


def test_cow_prints_the_uri_and_lists(
    client: cowshed.Client, cow: Cow, name: str, hold: Callable[[str], Holder]
) -> None:
    uri = client.attach(name).uri
    assert cow("attach", name).text == f"{uri}\n"
    document = cow("attach", name, "--read-only", "--json").json
    assert document["export_name"] == f"{name}?read-only" and document["read_only"] is True
    assert "%3Fread-only" in document["uri"]
    assert hold(uri).attached
    [[number, listed, mode, who, *_]] = cow("attachments", name).lines
    assert listed == name and mode == "read-write" and who.startswith("uid:")
    assert cow("attachments", "--json", name).json["attachments"][0]["id"] == number
    refused = cow("destroy", name)
    assert refused.status == 1 and f"attachment {number} of {name} by uid:" in refused.stderr
    error = cow("destroy", "--json", name).json["error"]
    assert error["reason"] == "ATTACHED"
    assert error["blockers"][0]["kind"] == "BLOCKER_KIND_ATTACHMENT"
    assert error["blockers"][0]["client"].startswith("uid:")
    assert cow("detach", number).lines == [[number, "1"]]
    assert cow("detach", name).lines == [[name, "0"]]
    assert hold(uri).attached
    assert cow("destroy", name, "--force").status == 0
    assert cow("detach", name).status == 1


def test_cow_refuses_what_makes_no_sense(cow: Cow, name: str) -> None:
    assert cow("attach", name, "--file", "x", "--device").status == 2
    assert cow("attach", name, "--background").status == 2
    assert cow("detach", name, "--force").status == 2
    missing = cow("detach", "/nowhere/at/all")
    assert missing.status == 1 and "no attached file" in missing.stderr
    if not os.path.isdir("/sys/block/nbd0"):
        lacking = cow("attach", name, "--device")
        assert lacking.status == 1 and "no nbd" in lacking.stderr


@needs_fuse
def test_a_file_that_sqlite_changes_in_place(
    client: cowshed.Client, cow: Cow, name: str, tmp_path: Path
) -> None:
    seed = tmp_path / "seed.db"
    with sqlite3.connect(seed) as database:  # a device of zeros is no database
        database.execute("CREATE TABLE cow (name TEXT)")
    database.close()
    client.write(name, 0, seed.read_bytes())
    path = tmp_path / "disk.db"
    assert cow("attach", name, "--file", path, "--background").lines == [[str(path)]]
    assert path.stat().st_size == 8 * MIB
    with sqlite3.connect(path) as database:
        database.executemany("INSERT INTO cow VALUES (?)", [(f"cow {i}",) for i in range(1000)])
    database.close()
    assert len(list(client.attachments(name))) >= 1
    assert cow("attach", name, "--file", path, "--background").status == 1, "it is mounted"
    assert cow("detach", path).lines == [[str(path), "1"]]
    assert not path.exists(), "it was made for the mount"
    assert not list(client.attachments(name))
    exported = tmp_path / "exported.db"
    exported.write_bytes(client.read(name))
    with sqlite3.connect(exported) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT count(*) FROM cow").fetchone() == (1000,)
    database.close()


@needs_fuse
def test_a_file_in_the_foreground_goes_with_an_interrupt(
    nbd_server: Server, client: cowshed.Client, name: str, tmp_path: Path
) -> None:
    client.write(name, 0, b"moo")
    client.snapshot(f"{name}@s")
    path = tmp_path / "disk"
    path.touch()  # one that is there stays
    process = subprocess.Popen(
        [sys.executable, "-m", "cowshed", "attach", f"{name}@s", "--file", str(path)],
        stdout=subprocess.PIPE,
        env={**cow_environment(nbd_server.unix), "XDG_RUNTIME_DIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == f"{path}\n"
    with path.open("rb") as file:
        assert file.read(3) == b"moo"
    with pytest.raises(OSError), path.open("r+b") as file:
        file.write(b"a snapshot is read only")
        file.flush()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert path.stat().st_size == 0 and not devices.is_mounted(str(path))
    until(lambda: not list(client.attachments(f"{name}@s")))


@needs_fuse
def test_an_open_file_is_unmounted_by_force_only(
    client: cowshed.Client, cow: Cow, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "disk"
    assert cow("attach", name, "--file", path, "--background").status == 0
    with path.open("rb"):
        busy = cow("detach", path)
        assert busy.status == 1 and "could not be unmounted" in busy.stderr
        assert cow("detach", path, "--force").status == 0
    until(lambda: not list(client.attachments(name)))
    assert not devices.is_mounted(str(path))


@needs_fuse
def test_a_file_that_cannot_be_leaves_nothing(cow: Cow, name: str, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.write_text("mine")
    refused = cow("attach", name, "--file", full)
    assert refused.status == 1 and "no empty file" in refused.stderr
    assert full.read_text() == "mine"
    missing = cow("attach", f"{name}-missing", "--file", tmp_path / "new")
    assert missing.status == 1 and not (tmp_path / "new").exists()
