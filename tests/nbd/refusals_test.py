# SPDX-License-Identifier: Apache-2.0
"""Every error that a client can provoke: the request is refused with its own error, and the
connection goes on as if it had not been sent."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import raw_nbd
from nbd_support import MIB, NbdServer, connected, cowshed, extents, open_export
from raw_nbd import Raw

nbd = pytest.importorskip("nbd", reason="not installed: python3-libnbd")

SIZE_BYTES = MIB + 5
ALLOCATION = "base:allocation"
UNKNOWN_FLAG = 1 << 12

Request = Callable[[Any], object]


@pytest.fixture
def export(client: cowshed.Client, base: str) -> str:
    """A dataset with something in it, and a snapshot of it."""
    client.create(base, SIZE_BYTES)
    client.write(base, 0, b"x" * SIZE_BYTES)
    client.snapshot(f"{base}@s")
    return base


def refused(request: Request, h: Any) -> str:
    """The name of the error that the server answers a request with."""
    with pytest.raises(nbd.Error) as caught:
        request(h)
    return str(errno.errorcode[caught.value.errnum])


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize(
    "request_, error",
    [
        # Beyond the end, by a byte, from a byte before it, and by all that 64 bits can say.
        (lambda h: h.pread(1, SIZE_BYTES), "EINVAL"),
        (lambda h: h.pread(2, SIZE_BYTES - 1), "EINVAL"),
        (lambda h: h.pread(4096, (1 << 63) - 4096), "EINVAL"),
        (lambda h: h.pwrite(b"y", SIZE_BYTES), "ENOSPC"),
        (lambda h: h.pwrite(b"yy", SIZE_BYTES - 1), "ENOSPC"),
        (lambda h: h.pwrite(b"y", (1 << 63) - 1), "ENOSPC"),
        (lambda h: h.trim(2, SIZE_BYTES - 1), "EINVAL"),
        (lambda h: h.zero(2, SIZE_BYTES - 1), "ENOSPC"),
        (lambda h: h.zero(2, SIZE_BYTES - 1, nbd.CMD_FLAG_NO_HOLE), "ENOSPC"),
        (lambda h: h.cache(2, SIZE_BYTES - 1), "EINVAL"),
        (lambda h: h.trim((1 << 32) - 1, 0), "EINVAL"),
        # Flags that the command does not have, or nobody.
        (lambda h: h.pread(1, 0, UNKNOWN_FLAG), "EINVAL"),
        (lambda h: h.pwrite(b"y", 0, UNKNOWN_FLAG), "EINVAL"),
        (lambda h: h.flush(UNKNOWN_FLAG), "EINVAL"),
        (lambda h: h.trim(1, 0, UNKNOWN_FLAG), "EINVAL"),
        (lambda h: h.zero(1, 0, UNKNOWN_FLAG), "EINVAL"),
        (lambda h: h.cache(1, 0, UNKNOWN_FLAG), "EINVAL"),
        (lambda h: h.pread(1, 0, nbd.CMD_FLAG_NO_HOLE), "EINVAL"),
        (lambda h: h.trim(1, 0, nbd.CMD_FLAG_NO_HOLE), "EINVAL"),
        (lambda h: h.pwrite(b"y", 0, nbd.CMD_FLAG_FAST_ZERO), "EINVAL"),
        # More than the server said it takes.
        (lambda h: h.pread(32 * MIB + 1, 0), "EINVAL"),
    ],
)
def test_request_is_refused_and_changes_nothing(
    server: NbdServer,
    client: cowshed.Client,
    export: str,
    structured: bool,
    request_: Request,
    error: str,
) -> None:
    with connected(server, export, structured=structured, lenient=True) as h:
        assert refused(request_, h) == error
        assert h.pread(SIZE_BYTES, 0) == b"x" * SIZE_BYTES
        h.flush()
    assert client.read(export) == b"x" * SIZE_BYTES


@pytest.mark.parametrize("target", ["@s", "?read-only"])
@pytest.mark.parametrize(
    "request_",
    [
        lambda h: h.pwrite(b"y", 0),
        lambda h: h.pwrite(b"y", 0, nbd.CMD_FLAG_FUA),
        lambda h: h.trim(1, 0),
        lambda h: h.zero(1, 0),
        lambda h: h.zero(1, 0, nbd.CMD_FLAG_NO_HOLE),
    ],
)
def test_read_only_export_is_not_changed(
    server: NbdServer, client: cowshed.Client, export: str, target: str, request_: Request
) -> None:
    with connected(server, export + target, lenient=True) as h:
        assert h.is_read_only() is True
        assert refused(request_, h) == "EPERM"
        assert h.pread(SIZE_BYTES, 0) == b"x" * SIZE_BYTES
        h.cache(1, 0)
    assert client.read(export) == b"x" * SIZE_BYTES


def test_block_status_without_a_context_is_refused(server: NbdServer, export: str) -> None:
    with connected(server, export, lenient=True) as h:
        assert refused(lambda h: extents(h, 1), h) == "EINVAL"
        assert h.pread(1, 0) == b"x"


def test_block_status_beyond_the_end_is_refused(server: NbdServer, export: str) -> None:
    with connected(server, export, ALLOCATION, lenient=True) as h:
        assert refused(lambda h: extents(h, 2, SIZE_BYTES - 1), h) == "EINVAL"
        assert refused(lambda h: extents(h, 1, SIZE_BYTES), h) == "EINVAL"
        assert h.pread(1, 0) == b"x"


def test_df_without_structured_replies_is_refused(server: NbdServer, export: str) -> None:
    one = Raw(server.socket)
    assert one.go(export) == SIZE_BYTES
    df = 1 << 2
    assert one.ask(raw_nbd.READ, 0, 1, flags=df) == raw_nbd.EINVAL
    assert one.ask(raw_nbd.READ, 0, 1) == 0
    one.close()


def test_empty_requests_hurt_nobody(server: NbdServer, export: str) -> None:
    # The protocol leaves open what they mean; here they are refused or do nothing.
    with connected(server, export, ALLOCATION, lenient=True) as h:
        requests: list[Request] = [
            lambda h: h.pread(0, 0),
            lambda h: h.pwrite(b"", 0),
            lambda h: h.trim(0, SIZE_BYTES),
            lambda h: h.zero(0, 5),
            lambda h: h.cache(0, 0),
            lambda h: extents(h, 0),
        ]
        for request in requests:
            try:
                request(h)
            except nbd.Error as error:
                assert error.errnum == errno.EINVAL
        assert h.pread(SIZE_BYTES, 0) == b"x" * SIZE_BYTES


@pytest.mark.parametrize("command", [8, 42, 0xFFFF])
def test_unknown_command_is_refused(server: NbdServer, export: str, command: int) -> None:
    one = Raw(server.socket)
    one.go(export)
    assert one.ask(command, 0, 1) == raw_nbd.EINVAL
    assert one.ask(raw_nbd.FLUSH, 0, 0) == 0
    one.close()


def test_write_that_is_too_large_is_refused_or_ends_the_connection(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, 64 * MIB)
    h = open_export(server, base, lenient=True)
    try:
        assert refused(lambda h: h.pwrite(b"y" * (33 * MIB), 0), h) in ("EINVAL", "EOVERFLOW")
        assert h.pread(1, 0) == b"\0"
    except AssertionError:
        assert h.aio_is_dead() or h.aio_is_closed()
    assert not any(client.read(base, 0, 33 * MIB))


@pytest.mark.parametrize(
    "export", ["", "missing", "missing@s", "@s", "a@", "x" * 4096, "?read-only", "a?", "ä/ö"]
)
def test_unknown_export_is_refused_by_go_and_info(server: NbdServer, export: str) -> None:
    one = Raw(server.socket)
    one.greet()
    for option in (raw_nbd.INFO, raw_nbd.GO):
        one.option(option, raw_nbd.text(export) + b"\0\0")
        assert one.last_reply().kind == raw_nbd.ERR_UNKNOWN
    one.option(raw_nbd.ABORT)
    assert one.last_reply().kind == raw_nbd.ACK
    assert one.is_closed()


def test_unknown_option_of_an_export_is_refused(server: NbdServer, export: str) -> None:
    for name in (f"{export}?writable", f"{export}?read-only&x", f"{export}?read-only?shared"):
        with pytest.raises(nbd.Error):
            open_export(server, name)
    with connected(server, f"{export}?read-only&shared") as h:
        assert h.is_read_only() is True


def test_unknown_export_by_its_old_option_closes(server: NbdServer) -> None:
    one = Raw(server.socket)
    one.greet()
    one.option(raw_nbd.EXPORT_NAME, b"missing")
    assert one.is_closed()


@pytest.mark.parametrize("option", [4, 11, 1000, 0xFFFFFFFF])
def test_unknown_option_is_refused(server: NbdServer, export: str, option: int) -> None:
    one = Raw(server.socket)
    one.greet()
    one.option(option, b"whatever")
    assert one.last_reply().kind == raw_nbd.ERR_UNSUP
    one.option(raw_nbd.GO, raw_nbd.text(export) + b"\0\0")
    assert one.last_reply().kind == raw_nbd.ACK
    assert one.ask(raw_nbd.READ, 0, 1) == 0
    one.close()


@pytest.mark.parametrize(
    "option, data",
    [
        (raw_nbd.LIST, b"x"),
        (raw_nbd.STRUCTURED_REPLY, b"x"),
        (raw_nbd.GO, b""),
        (raw_nbd.GO, b"\0\0\0\xff"),
        (raw_nbd.GO, b"\0\0\0\1a\0\2\0\0"),
        (raw_nbd.INFO, b"\xff\xff\xff\xff\0\0"),
        (raw_nbd.SET_META_CONTEXT, b"\0\0\0\1a\0\0\0\5"),
        (raw_nbd.LIST_META_CONTEXT, b"\0\0\0\1a\xff\xff\xff\xff"),
    ],
)
def test_malformed_option_is_refused(server: NbdServer, option: int, data: bytes) -> None:
    one = Raw(server.socket)
    one.greet()
    if option in (raw_nbd.SET_META_CONTEXT, raw_nbd.LIST_META_CONTEXT):
        one.option(raw_nbd.STRUCTURED_REPLY)
        assert one.last_reply().kind == raw_nbd.ACK
    one.option(option, data)
    assert one.last_reply().kind == raw_nbd.ERR_INVALID
    one.option(raw_nbd.ABORT)
    assert one.last_reply().kind == raw_nbd.ACK


def test_contexts_need_structured_replies(server: NbdServer, export: str) -> None:
    one = Raw(server.socket)
    one.greet()
    query = raw_nbd.text(export) + b"\0\0\0\1" + raw_nbd.text(ALLOCATION)
    one.option(raw_nbd.SET_META_CONTEXT, query)
    assert one.last_reply().kind == raw_nbd.ERR_INVALID
    one.close()


def test_starttls_without_certificates_is_refused(server: NbdServer, export: str) -> None:
    one = Raw(server.socket)
    one.greet()
    one.option(raw_nbd.STARTTLS)
    assert one.last_reply().kind in (raw_nbd.ERR_UNSUP, raw_nbd.ERR_POLICY)
    one.option(raw_nbd.GO, raw_nbd.text(export) + b"\0\0")
    assert one.last_reply().kind == raw_nbd.ACK


def test_full_quota_is_no_space(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, 8 * MIB, quota=MIB)
    with connected(server, base) as h:
        with pytest.raises(nbd.Error) as caught:
            for n in range(8):
                h.pwrite(b"x" * MIB, n * MIB, nbd.CMD_FLAG_FUA)
        assert caught.value.errnum == errno.ENOSPC
        h.zero(8 * MIB, 0)
        h.flush()
        h.pwrite(b"y" * 4096, 0, nbd.CMD_FLAG_FUA)
        assert h.pread(4096, 0) == b"y" * 4096
