# SPDX-License-Identifier: Apache-2.0
"""The blocking client: operations and the pool."""

from __future__ import annotations

from collections.abc import Iterator

from cowshed import calls
from cowshed.calls import Span
from cowshed.client_base import ClientBase, all_pages
from cowshed.operation import Operation, info_of
from cowshed.types import Name, OperationInfo
from cowshed.v1 import pool_pb2


class PoolMethods(ClientBase):
    """Watches operations, and the pool as a whole."""

    def operation(self, name: str) -> Operation:
        """Returns the handle of an operation. Raises NotFoundError."""
        return self._operation(self.call(calls.get_operation(name)))

    def operations(self, *, unfinished: bool = False) -> Iterator[Operation]:
        """Yields operations, newest first."""
        pages = all_pages(
            lambda token: self.call(
                calls.list_operations(unfinished=unfinished, page_token=token)
            )
        )
        return (self._operation(m) for reply in pages for m in reply.operations)

    def server_info(self) -> pool_pb2.GetServerInfoResponse:
        """Version, boot_id, features and limits of the server."""
        return self.call(calls.server_info())

    def pool(self) -> pool_pb2.Pool:
        """The state of the pool."""
        return self.call(calls.pool())

    def update_reclaim(
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
        return (self.call(call)).reclaim

    def space(self, name: Name = "") -> pool_pb2.GetSpaceResponse:
        """Where the space of the pool, a dataset or a snapshot went."""
        return self.call(calls.space(name))

    def livelist(self, dataset: Name) -> Iterator[pool_pb2.Sublist]:
        """Yields the sublists of a dataset's livelist, oldest first."""
        pages = all_pages(lambda token: self.call(calls.livelist(dataset, page_token=token)))
        return (sublist for reply in pages for sublist in reply.sublists)

    def sync(self) -> int:
        """Makes all acknowledged writes to all datasets durable. Returns the txg."""
        return self.call(calls.sync()).txg

    def check(self, timeout: float = 3600.0) -> pool_pb2.CheckResponse:
        """Checks the pool in small steps while it works; `cowshed check` offline compares more."""
        return self.call(calls.check(), timeout)

    def scrub(self, rate_bytes_per_second: int | None = None) -> Operation:
        """Reads every block and verifies it, or goes on with the scrub under way or paused.

        The operation's info tells `errors` and the first `damaged` places. None: no limit, or the
        rate it has; 0: no limit.
        """
        return self._operation(self.call(calls.start_scrub(rate_bytes_per_second)).operation)

    def cancel_scrub(self, *, pause: bool = False) -> OperationInfo:
        """Ends the scrub under way, or pauses it until `scrub`."""
        return info_of(self.call(calls.cancel_scrub(pause=pause)).operation)

    def backup(self, directory: str) -> Operation:
        """Copies the pool to an empty or absent directory (absolute) of the server's host."""
        return self._operation(self.call(calls.backup(directory)).operation)
