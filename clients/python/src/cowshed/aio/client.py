# SPDX-License-Identifier: Apache-2.0
"""The asyncio client. Every method does what its namesake of `cowshed.Client` does."""

from __future__ import annotations

from types import TracebackType

from cowshed.aio.client_attach import AsyncAttachMethods
from cowshed.aio.client_bytes import AsyncBytesMethods
from cowshed.aio.client_pool import AsyncPoolMethods
from cowshed.aio.transport import AsyncTransport
from cowshed.channel import Tls, resolve_address


async def connect(
    address: str | None = None,
    timeout: float = 30.0,
    wait_ready: float = 10.0,
    tls: Tls | None = None,
) -> AsyncClient:
    """Connects to a server.

    Args:
        address: `host:port`, `host`, `unix:path` or `/path`. None: $COWSHED_ADDRESS, else
            127.0.0.1:7420.
        timeout: seconds after which a call fails with DeadlineExceededError, retries included. For
            streams it is the longest wait for the next message.
        wait_ready: seconds to wait for the server; 0: do not wait, the first call connects.
        tls: how to trust the server; None: no TLS.

    Raises:
        UnavailableError: the server could not be reached within wait_ready.
    """
    client = AsyncClient(AsyncTransport(resolve_address(address), timeout, tls))
    if wait_ready > 0:
        try:
            await client.transport.wait_ready(wait_ready)
        except BaseException:
            await client.close()
            raise
    return client


class AsyncClient(AsyncBytesMethods, AsyncPoolMethods, AsyncAttachMethods):
    """A connection to a server; see `connect`. For the event loop it was made in.

    Wherever a name is asked for, an object that has one (a Dataset, a Snapshot) will do. Every
    method may raise the errors of `cowshed.errors`; those listed are the ones to expect.
    """

    async def close(self) -> None:
        """Closes the connection."""
        await self.transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
