# SPDX-License-Identifier: Apache-2.0
"""Work that goes on after its call was answered, for asyncio."""

from __future__ import annotations

import time

from cowshed import calls
from cowshed.aio.transport import AsyncTransport
from cowshed.operation import WAIT_STEP_SECONDS, failure
from cowshed.types import OperationInfo, OperationState


class AsyncOperation:
    """As `cowshed.Operation`, with methods to await."""

    def __init__(self, transport: AsyncTransport, info: OperationInfo) -> None:
        self._transport = transport
        self.info = info

    @property
    def name(self) -> str:
        """Identifies it for ever, across restarts of the server too."""
        return self.info.name

    @property
    def state(self) -> OperationState:
        """How far it was when last looked at."""
        return self.info.state

    @property
    def done(self) -> bool:
        """Whether it had ended when last looked at."""
        return self.info.done

    async def refresh(self) -> AsyncOperation:
        """Looks how it stands now."""
        if self.name and not self.done:
            reply = await self._transport.unary(calls.get_operation(self.name))
            self.info = OperationInfo.from_proto(reply)
        return self

    async def wait(self, timeout: float | None = None) -> OperationInfo:
        """Waits until it has ended; raises TimeoutError, or the failure's own exception."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            step = WAIT_STEP_SECONDS
            if deadline is not None:
                step = min(step, max(0.0, deadline - time.monotonic()))
            call = calls.wait_operations([self.name], timeout=step)
            reply = await self._transport.unary(call)
            self.info = OperationInfo.from_proto(reply.operations[0])
            if not self.done and deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name} is not done after {timeout:g} s")
        error = failure(self.info)
        if error is not None:
            raise error
        return self.info

    def __repr__(self) -> str:
        return f"AsyncOperation({self.name!r}, {self.state.name})"
