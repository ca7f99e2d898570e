# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio: the names and arguments of `cowshed`, with methods to await.

    from cowshed import aio

    async with await aio.connect() as c:
        await c.clone("golden@v1", "dev/alice")
        async with await c.open("dev/alice", "r+b") as f:
            await f.write(b"mine alone")
        operation = await c.destroy("dev/alice")
        await operation.wait(60)
        async for dataset in c.list("dev"):
            print(dataset.name)

Exceptions and values are those of `cowshed`; iterate the `.blockers` of an error with `async for`.
"""

from cowshed.aio.client import AsyncClient, connect
from cowshed.aio.client_attach import AsyncAttach
from cowshed.aio.file import AsyncDatasetFile
from cowshed.aio.operation import AsyncOperation
from cowshed.aio.streams import AsyncWriteStream

__all__ = [
    "AsyncAttach",
    "AsyncClient",
    "AsyncDatasetFile",
    "AsyncOperation",
    "AsyncWriteStream",
    "connect",
]
