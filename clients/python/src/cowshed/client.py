# SPDX-License-Identifier: Apache-2.0
"""The blocking client."""

from __future__ import annotations

from types import TracebackType

from cowshed.channel import Tls, resolve_address
from cowshed.client_attach import AttachMethods
from cowshed.client_bytes import BytesMethods
from cowshed.client_pool import PoolMethods
from cowshed.transport import Transport


def connect(
    address: str | None = None,
    timeout: float = 30.0,
    wait_ready: float = 10.0,
    tls: Tls | None = None,
) -> Client:
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
    client = Client(Transport(resolve_address(address), timeout, tls))
    if wait_ready > 0:
        try:
            client.transport.wait_ready(wait_ready)
        except BaseException:
            client.close()
            raise
    return client


class Client(BytesMethods, PoolMethods, AttachMethods):
    """A connection to a server; see `connect`. Thread-safe; usable after a fork.

    Wherever a name is asked for, an object that has one (a Dataset, a Snapshot) will do. Every
    method may raise the errors of `cowshed.errors`; those listed are the ones to expect.
    """

    def close(self) -> None:
        """Closes the connection."""
        self.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
