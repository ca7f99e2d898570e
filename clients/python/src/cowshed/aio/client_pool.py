# SPDX-License-Identifier: Apache-2.0
"""The asyncio client: operations and the pool."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cowshed import calls
from cowshed.aio.client_base import AsyncClientBase, all_pages
from cowshed.aio.operation import AsyncOperation
from cowshed.calls import Span
from cowshed.operation import info_of
from cowshed.types import Name, OperationInfo
from cowshed.v1 import pool_pb2


class AsyncPoolMethods(AsyncClientBase):
    """Watches operations, and the pool as a whole."""

    async def operation(self, name: str) -> AsyncOperation:
        """Returns the handle of an operation. Raises NotFoundError."""
        return self._operation(await self.call(calls.get_operation(name)))

    def operations(self, *, unfinished: bool = False) -> AsyncIterator[AsyncOperation]:
        """Yields operations, newest first."""
        pages = all_pages(
            lambda token: self.call(
                calls.list_operations(unfinished=unfinished, page_token=token)
            )
        )
        return (self._operation(m) async for reply in pages for m in reply.operations)

    async def server_info(self) -> pool_pb2.GetServerInfoResponse:
        """Version, boot_id, features and limits of the server."""
        return await self.call(calls.server_info())

    async def pool(self) -> pool_pb2.Pool:
        """The state of the pool."""
        return await self.call(calls.pool())

    async def update_reclaim(
        self,
        *,
        paused: bool | None = None,
        rate_bytes_per_second: int | None = None,
        txg_budget: Span | None = None,
    ) -> pool_pb2.Reclaim:
        """Changes how reclaim runs; what is None stays as it is, a rate of 0 is no limit."""
        call = calls.update_reclaim(
            paused=paused, rate_bytes_per_second=rate_bytes_per_second, txg_budget=txg_budget
        )
        return (await self.call(call)).reclaim

    async def space(self, name: Name = "") -> pool_pb2.GetSpaceResponse:
        """Where the space of the pool, a dataset or a snapshot went."""
        return await self.call(calls.space(name))

    def livelist(self, dataset: Name) -> AsyncIterator[pool_pb2.Sublist]:
        """Yields the sublists of a dataset's livelist, oldest first."""
        pages = all_pages(lambda token: self.call(calls.livelist(dataset, page_token=token)))
        return (sublist async for reply in pages for sublist in reply.sublists)

    async def sync(self) -> int:
        """Makes all acknowledged writes to all datasets durable. Returns the txg."""
        return (await self.call(calls.sync())).txg

    async def check(self, timeout: float = 3600.0) -> pool_pb2.CheckResponse:
        """Checks the pool in small steps while it works; `cowshed check` offline compares more."""
        return await self.call(calls.check(), timeout)

    async def scrub(self, rate_bytes_per_second: int | None = None) -> AsyncOperation:
        """Reads every block and verifies it, or goes on with the scrub under way or paused.

        The operation's info tells `errors` and the first `damaged` places. None: no limit, or the
        rate it has; 0: no limit.
        """
        reply = await self.call(calls.start_scrub(rate_bytes_per_second))
        return self._operation(reply.operation)

    async def cancel_scrub(self, *, pause: bool = False) -> OperationInfo:
        """Ends the scrub under way, or pauses it until `scrub`."""
        return info_of((await self.call(calls.cancel_scrub(pause=pause))).operation)

    async def backup(self, directory: str) -> AsyncOperation:
        """Copies the pool to an empty or absent directory (absolute) of the server's host."""
        return self._operation((await self.call(calls.backup(directory))).operation)
