# SPDX-License-Identifier: Apache-2.0
"""The life of a dataset while it is attached: what goes on, what is refused, what cuts."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from nbd_support import BLOCK_BYTES, MIB, NbdServer, connected, cowshed, open_export

nbd = pytest.importorskip("nbd", reason="not installed: python3-libnbd")

SIZE_BYTES = 4 * MIB
CUT_SECONDS_MAX = 10


@pytest.fixture
def export(client: cowshed.Client, base: str) -> str:
    """A dataset."""
    client.create(base, SIZE_BYTES)
    return base


def assert_cut(h: Any) -> None:
    """The server ends the connection soon, and the client sees it."""
    until = time.monotonic() + CUT_SECONDS_MAX
    while not (h.aio_is_dead() or h.aio_is_closed()):
        assert time.monotonic() < until, "still attached"
        try:
            h.pread(1, 0)
        except nbd.Error:
            pass


def test_snapshot_holds_what_was_written_before_it(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export) as h:
        h.pwrite(b"before", 0)  # acknowledged, not flushed
        client.snapshot(f"{export}@s")
        h.pwrite(b"after ", 0)
        assert h.pread(6, 0) == b"after "
    with connected(server, f"{export}@s") as frozen:
        assert frozen.pread(6, 0) == b"before"


def test_snapshots_of_a_busy_disk_are_points_in_time(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    # One writer counts up in one place after another: a snapshot that shows a count shows all
    # that were acknowledged before it was sent.
    stop = threading.Event()
    with connected(server, export) as h:

        def count() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                for place in (0, SIZE_BYTES - 8, MIB):
                    h.pwrite(number.to_bytes(8, "little"), place)

        thread = threading.Thread(target=count)
        thread.start()
        for n in range(20):
            client.snapshot(f"{export}@s{n}")
        stop.set()
        thread.join()
    last = 0
    for n in range(20):
        with connected(server, f"{export}@s{n}") as frozen:
            first, second, third = (
                int.from_bytes(frozen.pread(8, place), "little")
                for place in (0, SIZE_BYTES - 8, MIB)
            )
        assert first >= second >= third >= first - 1, n
        assert first >= last
        last = first
    assert last > 0


def test_clone_of_an_attached_dataset_goes_its_own_way(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export) as h:
        h.pwrite(b"parent", 0)
        client.clone(export, f"{export}/clone")
        with connected(server, f"{export}/clone") as clone:
            assert clone.pread(6, 0) == b"parent"
            clone.pwrite(b"clone ", 0)
            assert h.pread(6, 0) == b"parent"
            h.pwrite(b"again ", 0)
            assert clone.pread(6, 0) == b"clone "


def test_sixteen_clones_at_once(
    server: NbdServer, client: cowshed.Client, export: str, rng: random.Random
) -> None:
    golden = rng.randbytes(SIZE_BYTES)
    client.write(export, 0, golden)
    client.snapshot(f"{export}@v1")
    names = [f"{export}/clone/{n}" for n in range(16)]
    for name in names:
        client.clone(f"{export}@v1", name)
    handles = [open_export(server, name) for name in names]
    contents = [bytearray(golden) for _ in names]
    for _ in range(20):
        sent = []
        for n, h in enumerate(handles):
            at = rng.randrange(SIZE_BYTES - 9000)
            data = rng.randbytes(9000)
            contents[n][at : at + 9000] = data
            buffer = nbd.Buffer.from_bytearray(bytearray(data))
            sent.append((h, buffer, h.aio_pwrite(buffer, at)))
        for h, _, cookie in sent:
            while not h.aio_command_completed(cookie):
                assert h.poll(30_000) == 1
    for h, content in zip(handles, contents, strict=True):
        h.flush()
        assert h.pread(SIZE_BYTES, 0) == content
        h.shutdown()
    assert client.read(f"{export}@v1") == golden
    for name in names:
        used = client.get(name).used_bytes
        assert used < 20 * 2 * BLOCK_BYTES + MIB


def test_rename_does_not_disturb(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export) as h:
        h.pwrite(b"old name", 0)
        client.rename(export, f"{export}/renamed")
        assert h.pread(8, 0) == b"old name"
        h.pwrite(b"new name", 0)
        h.flush()
        with pytest.raises(nbd.Error):
            open_export(server, export)
        with connected(server, f"{export}/renamed?read-only") as other:
            assert other.pread(8, 0) == b"new name"


def test_growth_is_seen_by_new_connections(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export, lenient=True) as h:
        client.resize(export, 2 * SIZE_BYTES)
        assert h.get_size() == SIZE_BYTES
        h.pwrite(b"x", SIZE_BYTES - 1)
        with connected(server, export) as grown:
            assert grown.get_size() == 2 * SIZE_BYTES
            grown.pwrite(b"end", 2 * SIZE_BYTES - 3)
            assert grown.pread(1, SIZE_BYTES - 1) == b"x"


def test_shrinking_needs_force(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export) as h:
        with pytest.raises(cowshed.PreconditionError) as caught:
            client.resize(export, MIB)
        assert caught.value.reason == "ATTACHED"
        h.pwrite(b"x", SIZE_BYTES - 1)
    client.resize(export, MIB)
    with connected(server, export) as h:
        assert h.get_size() == MIB


def test_destroy_is_refused_and_names_the_client(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export) as h:
        with pytest.raises(cowshed.BlockedError) as caught:
            client.destroy(export)
        assert caught.value.reason == "ATTACHED"
        assert any("pid:" in str(blocker) for blocker in caught.value.blockers)
        h.pwrite(b"still here", 0)
        h.flush()
    client.destroy(export)


def test_destroy_by_force_cuts(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    h = open_export(server, export)
    h.pwrite(b"x" * MIB, 0)
    client.destroy(export, force=True).wait(60)
    assert_cut(h)
    assert not client.exists(export)
    with pytest.raises(nbd.Error):
        open_export(server, export)


def test_destroyed_with_requests_in_flight_answers_or_cuts_them_all(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    h = open_export(server, export)
    buffers = [nbd.Buffer.from_bytearray(bytearray(64 << 10)) for _ in range(60)]
    cookies = [h.aio_pwrite(one, n * (64 << 10)) for n, one in enumerate(buffers)]
    client.destroy(export, force=True)
    until = time.monotonic() + CUT_SECONDS_MAX
    for cookie in cookies:
        while True:
            assert time.monotonic() < until
            try:
                if h.aio_command_completed(cookie):
                    break
                h.poll(1000)
            except nbd.Error:
                break  # refused, or cut: not left waiting
    assert_cut(h)


def test_snapshot_in_use_is_not_destroyed(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    client.snapshot(f"{export}@s")
    with connected(server, f"{export}@s") as h:
        with pytest.raises(cowshed.BlockedError) as caught:
            client.destroy_snapshots(f"{export}@s")
        assert caught.value.reason == "ATTACHED"
        assert h.pread(1, 0) == b"\0"
    client.destroy_snapshots(f"{export}@s")


def test_rollback_is_refused_then_by_force_cuts(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    client.write(export, 0, b"good")
    client.snapshot(f"{export}@s")
    h = open_export(server, export)
    h.pwrite(b"bad!", 0)
    h.flush()
    with pytest.raises(cowshed.BlockedError) as caught:
        client.rollback(export)
    assert caught.value.reason == "ATTACHED"
    assert h.pread(4, 0) == b"bad!"
    client.rollback(export, force=True)
    assert_cut(h)
    with connected(server, export) as again:
        assert again.pread(4, 0) == b"good"


def test_detach_cuts_and_the_next_one_may_come(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    h = open_export(server, export)
    h.pwrite(b"kept", 0)
    (attachment,) = client.attachments(export)
    assert "pid:" in attachment.client
    assert client.detach(export) == 1
    assert_cut(h)
    assert list(client.attachments(export)) == []
    with connected(server, export) as again:
        assert again.pread(4, 0) == b"kept"


def test_attachments_count_what_they_carry(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export) as h:
        h.pwrite(b"x" * 5000, 0)
        h.pread(3000, 0)
        (attachment,) = client.attachments(export)
        assert attachment.name == export
        assert attachment.protocol == "nbd"
        assert attachment.read_only is False
        assert attachment.written_bytes == 5000
        assert attachment.read_bytes == 3000


def test_replacing_an_attached_clone_needs_a_detach(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    client.snapshot(f"{export}@s")
    client.clone(f"{export}@s", f"{export}/clone")
    with connected(server, f"{export}/clone") as h:
        with pytest.raises(cowshed.PreconditionError) as caught:
            client.clone(f"{export}@s", f"{export}/clone", replace=True)
        assert caught.value.reason == "ATTACHED"
        h.pwrite(b"x", 0)
    client.clone(f"{export}@s", f"{export}/clone", replace=True)


def test_stop_answers_what_is_in_flight_and_hangs_up(own_server: NbdServer) -> None:
    with cowshed.connect(own_server.unix) as client:
        client.create("disk", 64 * MIB)
    h = open_export(own_server, "disk")
    data = b"z" * MIB
    for n in range(30):
        h.pwrite(data, n * MIB)
    assert own_server.stop() == 0
    with pytest.raises(nbd.Error):
        h.flush()
    own_server.start()
    with connected(own_server, "disk") as again:
        assert again.pread(30 * MIB, 0) == data * 30
