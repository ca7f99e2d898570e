# SPDX-License-Identifier: Apache-2.0
"""What all parts of the asyncio client stand on: the transport, and pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from cowshed import calls
from cowshed.aio.operation import AsyncOperation
from cowshed.aio.transport import AsyncTransport
from cowshed.operation import info_of
from cowshed.v1 import operation_pb2

R = TypeVar("R", bound=Message)
P = TypeVar("P")


class AsyncClientBase:
    """The transport, and how a call goes over it."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport

    async def call(self, call: calls.Call[R], timeout: float | None = None) -> R:
        """Sends a call made by `cowshed.calls` and returns the reply as it is on the wire."""
        return await self.transport.unary(call, timeout)

    def _operation(self, message: operation_pb2.Operation | None) -> AsyncOperation:
        return AsyncOperation(self.transport, info_of(message))


async def all_pages(fetch: Callable[[str], Awaitable[P]]) -> AsyncIterator[P]:
    """Fetches pages until there is no further one."""
    token = ""
    while True:
        page = await fetch(token)
        yield page
        token = getattr(page, "next_page_token")
        if not token:
            return
