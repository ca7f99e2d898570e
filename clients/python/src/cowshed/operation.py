# SPDX-License-Identifier: Apache-2.0
"""Work that goes on after its call was answered."""

from __future__ import annotations

import time
from collections.abc import Callable

from cowshed import calls, errors
from cowshed.transport import Transport
from cowshed.types import NOTHING_TO_DO, OperationInfo, OperationState
from cowshed.v1 import error_pb2, operation_pb2

WAIT_STEP_SECONDS = 20.0
"""How long one WaitOperations asks the server to wait; a longer wait is made of several."""

SHOW_STEP_SECONDS = 1.0
"""The same where somebody watches."""


def failure(info: OperationInfo) -> errors.CowshedError | None:
    """Why an operation failed or stalled; None if it did neither."""
    if info.state not in (OperationState.FAILED, OperationState.STALLED):
        return None
    status = info.error if info.error is not None else error_pb2.Status()
    if status.code != 0:
        return errors.from_status(status)
    message = status.message or "no cause given"
    return errors.InternalError(f"{info.name} {info.state.name.lower()}: {message}")


def info_of(message: operation_pb2.Operation | None) -> OperationInfo:
    """The state that a reply's operation field shows; None: the call left no work behind."""
    if message is None or not message.name:
        return NOTHING_TO_DO
    return OperationInfo.from_proto(message)


class Operation:
    """A handle on long-running work, e.g. of a destroy: the names are gone, the space comes back.

    `info` is how it stood when last looked at; `refresh` looks, `wait` waits for its end. The
    operation of a call that left no work behind has the name "" and is done.
    """

    def __init__(self, transport: Transport, info: OperationInfo) -> None:
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

    def refresh(self) -> Operation:
        """Looks how it stands now."""
        if self.name and not self.done:
            reply = self._transport.unary(calls.get_operation(self.name))
            self.info = OperationInfo.from_proto(reply)
        return self

    def wait(
        self,
        timeout: float | None = None,
        *,
        show: Callable[[OperationInfo], None] | None = None,
    ) -> OperationInfo:
        """Waits until it has ended.

        Args:
            timeout: seconds; None: as long as it takes.
            show: called about every second with how it stands.

        Raises:
            TimeoutError: it has not ended within that time. It goes on.
            CowshedError: it failed or stalled; the class tells the cause as for any call.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            step = WAIT_STEP_SECONDS if show is None else SHOW_STEP_SECONDS
            if deadline is not None:
                step = min(step, max(0.0, deadline - time.monotonic()))
            reply = self._transport.unary(calls.wait_operations([self.name], timeout=step))
            self.info = OperationInfo.from_proto(reply.operations[0])
            if show is not None:
                show(self.info)
            if not self.done and deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name} is not done after {timeout:g} s")
        error = failure(self.info)
        if error is not None:
            raise error
        return self.info

    def __repr__(self) -> str:
        return f"Operation({self.name!r}, {self.state.name})"
