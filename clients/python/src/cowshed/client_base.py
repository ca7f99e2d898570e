# SPDX-License-Identifier: Apache-2.0
"""What all parts of the blocking client stand on: the transport, and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from cowshed import calls
from cowshed.operation import Operation, info_of
from cowshed.transport import Transport
from cowshed.v1 import operation_pb2

R = TypeVar("R", bound=Message)
P = TypeVar("P")


class ClientBase:
    """The transport, and how a call goes over it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def call(self, call: calls.Call[R], timeout: float | None = None) -> R:
        """Sends a call made by `cowshed.calls` and returns the reply as it is on the wire."""
        return self.transport.unary(call, timeout)

    def _operation(self, message: operation_pb2.Operation | None) -> Operation:
        return Operation(self.transport, info_of(message))


def all_pages(fetch: Callable[[str], P]) -> Iterator[P]:
    """Fetches pages until there is no further one."""
    token = ""
    while True:
        page = fetch(token)
        yield page
        token = getattr(page, "next_page_token")
        if not token:
            return
