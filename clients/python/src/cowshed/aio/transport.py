# SPDX-License-Identifier: Apache-2.0
"""Sends calls over an asyncio channel; the rules are those of `cowshed.transport`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from cowshed import calls, channel, errors
from cowshed.transport import serialize, unreachable
from cowshed.types import Blocker
from cowshed.v1 import data_pb2

R = TypeVar("R", bound=Message)
T = TypeVar("T")


class AsyncTransport:
    """A channel to one server, for one event loop."""

    def __init__(self, address: str, timeout: float, tls: channel.Tls | None = None) -> None:
        self.address = address
        self.timeout = timeout
        options = channel.channel_options(address, tls)
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(address, tls.credentials(), options)

    async def close(self) -> None:
        """Closes the channel. Calls under way end CANCELLED."""
        await self._channel.close()

    async def wait_ready(self, seconds: float) -> None:
        """Waits until the server answers, else raises UnavailableError."""
        probe = calls.server_info()
        method = self._channel.unary_unary(probe.method, serialize, probe.reply.FromString)
        for wait, limit in ((True, seconds), (False, min(1.0, seconds))):
            try:
                await method(probe.request, timeout=limit, wait_for_ready=wait)
                return
            except grpc.RpcError as e:
                # Only the second attempt, which does not wait, tells what the trouble is.
                error = self.error(e)
                if error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    return  # an answer, if not a friendly one
        raise unreachable(self.address, seconds, error)

    async def unary(self, call: calls.Call[R], timeout: float | None = None) -> R:
        """Sends a call and returns its reply; tries again where that is safe and of use."""
        method = self._channel.unary_unary(call.method, serialize, call.reply.FromString)

        async def attempt(remaining: float) -> R:
            try:
                return await method(call.request, timeout=remaining)
            except grpc.RpcError as e:
                raise self.error(e) from None

        budget = (self.timeout if timeout is None else timeout) + call.wait_seconds
        return await self.retry(attempt, budget)

    async def retry(self, action: Callable[[float], Awaitable[T]], budget: float) -> T:
        """Does something that may be repeated, until it works, fails for good, or time is up."""
        deadline = time.monotonic() + budget
        attempt = 0
        while True:
            try:
                return await action(max(0.001, deadline - time.monotonic()))
            except errors.CowshedError as error:
                delay = channel.retry_delay(error, attempt)
                if delay is None or time.monotonic() + delay >= deadline:
                    raise
            await asyncio.sleep(delay)
            attempt += 1

    async def stream(self, call: calls.Call[R]) -> AsyncIterator[R]:
        """Sends a call and yields its replies. The timeout is for each, not for all."""
        method = self._channel.unary_stream(call.method, serialize, call.reply.FromString)
        replies = method(call.request)
        try:
            while True:
                reply = await asyncio.wait_for(replies.read(), self.timeout)
                if isinstance(reply, call.reply):
                    yield reply
                else:
                    return
        except asyncio.TimeoutError:
            raise errors.DeadlineExceededError(
                f"the stream brought nothing for {self.timeout:g} s"
            ) from None
        except grpc.RpcError as e:
            raise self.error(e) from None
        finally:
            replies.cancel()

    def open_write(
        self, call: calls.Call[data_pb2.WriteAck]
    ) -> grpc.aio.StreamStreamCall[data_pb2.WriteRequest, data_pb2.WriteAck]:
        """Starts a Write stream."""
        method: grpc.aio.StreamStreamMultiCallable[data_pb2.WriteRequest, data_pb2.WriteAck]
        method = self._channel.stream_stream(call.method, serialize, call.reply.FromString)
        return method()

    def error(self, error: grpc.RpcError) -> errors.CowshedError:
        """The exception for a failed call; its blockers can be listed through this transport."""
        return errors.from_rpc_error(error, fetch_async=self.blockers)

    async def blockers(self, list_token: str) -> AsyncIterator[Blocker]:
        """All blockers behind a token, page by page."""
        page_token = ""
        while True:
            page = await self.unary(calls.list_blockers(list_token, page_token=page_token))
            for blocker in page.blockers:
                yield Blocker.from_proto(blocker)
            page_token = page.next_page_token
            if not page_token:
                return
