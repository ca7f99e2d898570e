# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 by hand, as little of it as it takes to misbehave: what no gRPC client would send."""

from __future__ import annotations

import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
WAIT_SECONDS = 30


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame as it is on the wire."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(method: str) -> bytes:
    """The header block of a call, every field a literal that is not indexed."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b""
    for name, value in fields.items():
        block += b"\0" + bytes([len(name)]) + name.encode()
        block += bytes([len(value)]) + value.encode()
    return block


def connect(address: str) -> socket.socket:
    """A plain connection to HOST:PORT or unix:PATH."""
    if address.startswith("unix:"):
        one = socket.socket(socket.AF_UNIX)
        one.connect(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        one = socket.create_connection((host, int(port)))
    one.settimeout(WAIT_SECONDS)
    return one


class Connection:
    """An HTTP/2 connection that does only what it is told: it answers nothing by itself."""

    def __init__(self, address: str) -> None:
        self.socket = connect(address)
        self._received = b""
        self._next_stream = 1
        self.send(PREFACE + frame(SETTINGS, 0, 0, b""))
        self.expect(SETTINGS)
        self.send(frame(SETTINGS, ACK, 0, b""))

    def send(self, content: bytes) -> None:
        """Sends bytes as they are."""
        self.socket.sendall(content)

    def call(self, method: str, request: bytes | None) -> int:
        """Opens a call; without a request it stays open and silent. Returns its stream."""
        stream = self._next_stream
        self._next_stream += 2
        content = frame(HEADERS, END_HEADERS, stream, headers(method))
        if request is not None:
            message = b"\0" + struct.pack(">I", len(request)) + request
            content += frame(DATA, END_STREAM, stream, message)
        self.send(content)
        return stream

    def read(self) -> tuple[int, bytes] | None:
        """The next frame (kind, payload); None at the end of the connection."""
        header = self._take(9)
        if header is None:
            return None
        payload = self._take(int.from_bytes(header[:3], "big"))
        return None if payload is None else (header[3], payload)

    def expect(self, kind: int) -> bytes:
        """The payload of the next frame of a kind; others are passed by."""
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            got = self.read()
            assert got is not None, f"the connection ended before a frame of kind {kind}"
            if got[0] == kind:
                return got[1]
        raise AssertionError(f"no frame of kind {kind}")

    def close(self) -> None:
        """Closes it without a word."""
        self.socket.close()

    def _take(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._received += more
        taken, self._received = self._received[:size], self._received[size:]
        return taken
