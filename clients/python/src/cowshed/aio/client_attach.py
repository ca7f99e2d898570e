# SPDX-License-Identifier: Apache-2.0
"""The asyncio client: datasets and snapshots as devices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType

from cowshed import attach_calls, errors
from cowshed.aio.client_base import AsyncClientBase, all_pages
from cowshed.attachment import Attachment, Export, made_by_us
from cowshed.types import Name


class AsyncAttach:
    """Where to attach; made by `AsyncClient.attach`. As a context it gives the URI.

    Leaving the context detaches what this process, or one that it has started, attached meanwhile
    through a unix socket; by TCP nothing tells whose a connection is.
    """

    def __init__(self, methods: AsyncAttachMethods, export: Export, before: frozenset[str]) -> None:
        self._methods = methods
        self._before = before
        self.info = export

    @property
    def uri(self) -> str:
        """What an NBD client is given; of several the nearest."""
        return self.info.uri

    @property
    def uris(self) -> tuple[str, ...]:
        """One for each place where the server serves NBD."""
        return self.info.uris

    @property
    def socket(self) -> str:
        """Path of the unix socket that `uri` goes through; empty for TCP."""
        return self.info.socket

    @property
    def export(self) -> str:
        """The name of the export, options included."""
        return self.info.export

    @property
    def size(self) -> int:
        """Size of the device in bytes."""
        return self.info.size_bytes

    async def detach(self) -> int:
        """Ends what was attached through it. Returns how many connections."""
        ended = 0
        async for one in self._methods.attachments(self.info.name):
            if one.uid != self.info.uid or one.id in self._before or not made_by_us(one.client):
                continue
            try:
                ended += await self._methods.detach(attachment=one.id)
            except errors.NotFoundError:
                pass  # it has gone by itself
        return ended

    async def __aenter__(self) -> str:
        return self.uri

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.detach()
        except errors.NotFoundError:
            pass  # destroyed meanwhile, and so detached


class AsyncAttachMethods(AsyncClientBase):
    """Datasets and snapshots as devices."""

    async def attach(
        self, name: Name, *, read_only: bool = False, shared: bool = False
    ) -> AsyncAttach:
        """Where a dataset or snapshot can be attached: `async with await c.attach(n) as uri:`.

        Nothing is taken before a client connects to the URI.

        Args:
            read_only: needs no lease; a snapshot is always read.
            shared: write beside others that do, too.

        Raises NotFoundError, and PreconditionError if the server serves no NBD.
        """
        reply = await self.call(attach_calls.get_export(name, read_only=read_only, shared=shared))
        before = frozenset(one.id for one in reply.attachments)
        return AsyncAttach(self, Export.from_proto(reply), before)

    def attachments(self, name: Name = "", *, prefix: str = "") -> AsyncIterator[Attachment]:
        """Yields attachments, oldest first: of a dataset and its snapshots, a subtree, or all."""
        pages = all_pages(
            lambda token: self.call(
                attach_calls.list_attachments(name, prefix=prefix, page_token=token)
            )
        )
        return (Attachment.from_proto(m) async for reply in pages for m in reply.attachments)

    async def detach(self, name: Name = "", *, attachment: str = "") -> int:
        """Ends all attachments of a dataset or snapshot, or one by its id. Returns how many.

        When it returns, they have ended. Raises NotFoundError.
        """
        return (await self.call(attach_calls.detach(name, attachment=attachment))).count
