# SPDX-License-Identifier: Apache-2.0
"""NBD as bytes: for tests that send what no client would send, or stop in the middle."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

WAIT_SECONDS = 20.0

NBDMAGIC = 0x4E42444D41474943
IHAVEOPT = 0x49484156454F5054
OPTION_REPLY_MAGIC = 0x0003E889045565A9
REQUEST_MAGIC = 0x25609513
SIMPLE_REPLY_MAGIC = 0x67446698
STRUCTURED_REPLY_MAGIC = 0x668E33EF

FIXED_NEWSTYLE, NO_ZEROES = 1, 2

EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED_REPLY = 1, 2, 3, 5, 6, 7, 8
LIST_META_CONTEXT, SET_META_CONTEXT = 9, 10

ACK, REP_SERVER, REP_INFO, REP_META_CONTEXT = 1, 2, 3, 4
ERROR = 1 << 31
ERR_UNSUP, ERR_POLICY, ERR_INVALID = ERROR + 1, ERROR + 2, ERROR + 3
ERR_TLS_REQD, ERR_UNKNOWN, ERR_TOO_BIG = ERROR + 5, ERROR + 6, ERROR + 9

READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)

EPERM, EIO, EINVAL, ENOSPC, ENOTSUP, ESHUTDOWN = 1, 5, 22, 28, 95, 108


class Closed(ConnectionError):
    """The server has closed the connection."""


@dataclass(frozen=True)
class Reply:
    """The answer to an option."""

    option: int
    kind: int
    data: bytes


def text(value: str) -> bytes:
    """A string with its length before it."""
    encoded = value.encode()
    return struct.pack(">I", len(encoded)) + encoded


def request(
    command: int, offset: int, length: int, *, cookie: int = 1, flags: int = 0, data: bytes = b""
) -> bytes:
    """A request of the transmission phase; `length` may lie about `data`."""
    return struct.pack(">IHHQQI", REQUEST_MAGIC, flags, command, cookie, offset, length) + data


class Raw:
    """One connection, at any stage. Reads wait WAIT_SECONDS at most."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(WAIT_SECONDS)
        self.socket.connect(path)

    @staticmethod
    def over_tcp(host: str, port: int) -> Raw:
        """One to a port."""
        raw = Raw.__new__(Raw)
        raw.socket = socket.create_connection((host, port), timeout=WAIT_SECONDS)
        return raw

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def receive(self, count: int) -> bytes:
        """Exactly that many bytes. Raises Closed."""
        received = bytearray()
        while len(received) < count:
            try:
                part = self.socket.recv(count - len(received))
            except ConnectionResetError:
                raise Closed from None
            if not part:
                raise Closed
            received += part
        return bytes(received)

    def is_closed(self) -> bool:
        """Whether the server closes, whatever it says before; False after WAIT_SECONDS."""
        try:
            while True:
                self.receive(1)
        except Closed:
            return True
        except TimeoutError:
            return False

    # Handshake --------------------------------------------------------------------------------

    def greet(self, flags: int = FIXED_NEWSTYLE | NO_ZEROES) -> None:
        """The greeting of both sides."""
        magic, option_magic, offered = struct.unpack(">QQH", self.receive(18))
        assert (magic, option_magic) == (NBDMAGIC, IHAVEOPT)
        assert offered == FIXED_NEWSTYLE | NO_ZEROES
        self.send(struct.pack(">I", flags))

    def option(self, option: int, data: bytes = b"", *, length: int | None = None) -> None:
        """Sends an option; `length` may lie about `data`."""
        count = len(data) if length is None else length
        self.send(struct.pack(">QII", IHAVEOPT, option, count) + data)

    def reply(self) -> Reply:
        """The next reply to an option."""
        magic, option, kind, length = struct.unpack(">QIII", self.receive(20))
        assert magic == OPTION_REPLY_MAGIC
        return Reply(option, kind, self.receive(length))

    def last_reply(self) -> Reply:
        """The reply that ends the answer to an option."""
        while True:
            reply = self.reply()
            if reply.kind == ACK or reply.kind & ERROR:
                return reply

    def go(self, export: str, *, structured: bool = False) -> int:
        """From the greeting into the transmission phase. Returns the size."""
        self.greet()
        if structured:
            self.option(STRUCTURED_REPLY)
            assert self.last_reply().kind == ACK
        self.option(GO, text(export) + struct.pack(">H", 0))
        size = -1
        while (reply := self.reply()).kind == REP_INFO:
            if reply.data[:2] == b"\0\0":
                (size,) = struct.unpack(">Q", reply.data[2:10])
        assert reply.kind == ACK, reply
        return size

    # Transmission -----------------------------------------------------------------------------

    def simple_reply(self, length: int = 0) -> tuple[int, int, bytes]:
        """A simple reply: error, cookie and, where there is no error, `length` bytes."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert magic == SIMPLE_REPLY_MAGIC, hex(magic)
        return error, cookie, b"" if error else self.receive(length)

    def ask(self, command: int, offset: int, length: int, flags: int = 0) -> int:
        """One request without data, and the error of its simple reply."""
        self.send(request(command, offset, length, flags=flags))
        error, _, _ = self.simple_reply(length if command == READ else 0)
        return error
