# SPDX-License-Identifier: Apache-2.0
"""Sends calls over a blocking channel: deadlines, retries, and a fresh channel after a fork."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from cowshed import calls, channel, errors
from cowshed.types import Blocker
from cowshed.v1 import data_pb2

R = TypeVar("R", bound=Message)
T = TypeVar("T")


def serialize(message: Message) -> bytes:
    """A message as it travels."""
    return message.SerializeToString()


def unreachable(
    address: str, seconds: float, cause: errors.CowshedError
) -> errors.UnavailableError:
    """The error for a server that did not answer when it was waited for."""
    return errors.UnavailableError(
        f"no server answers at {address} (waited {seconds:g} s): {cause.message}"
    )


class Transport:
    """A channel to one server.

    Thread-safe. A process that is forked gets a channel of its own with its first call: gRPC's
    threads do not survive a fork, so the parent's channel would only answer UNAVAILABLE.
    """

    def __init__(self, address: str, timeout: float, tls: channel.Tls | None = None) -> None:
        self.address = address
        self.timeout = timeout
        self._tls = tls
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._pid = os.getpid()
        self._closed = False
        # A parent's channel is kept, not closed: closing it would wait for threads that are gone.
        self._orphans: list[grpc.Channel] = []

    def channel(self) -> grpc.Channel:
        """The channel of this process."""
        if self._pid != os.getpid():
            # The lock may have been held by a thread that did not survive the fork.
            self._lock = threading.Lock()
        with self._lock:
            if self._closed:
                raise ValueError("the client is closed")
            if self._pid != os.getpid():
                self._pid = os.getpid()
                if self._channel is not None:
                    self._orphans.append(self._channel)
                    self._channel = None
            if self._channel is None:
                self._channel = channel.open_channel(self.address, self._tls)
            return self._channel

    def close(self) -> None:
        """Closes the channel. Calls under way end CANCELLED."""
        with self._lock:
            self._closed = True
            if self._channel is not None and self._pid == os.getpid():
                self._channel.close()
            self._channel = None

    def wait_ready(self, seconds: float) -> None:
        """Waits until the server answers.

        Raises:
            UnavailableError: it did not within that time.
        """
        # Not by grpc.channel_ready_future: the thread it leaves behind crashes the process in fork.
        probe = calls.server_info()
        method = self.channel().unary_unary(probe.method, serialize, probe.reply.FromString)
        for wait, limit in ((True, seconds), (False, min(1.0, seconds))):
            try:
                method(probe.request, timeout=limit, wait_for_ready=wait)
                return
            except grpc.RpcError as e:
                # Only the second attempt, which does not wait, tells what the trouble is.
                error = self.error(e)
                if error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    return  # an answer, if not a friendly one
        raise unreachable(self.address, seconds, error)

    def unary(self, call: calls.Call[R], timeout: float | None = None) -> R:
        """Sends a call and returns its reply; tries again where that is safe and of use."""

        def attempt(remaining: float, again: bool) -> R:
            method = self.channel().unary_unary(call.method, serialize, call.reply.FromString)
            try:
                return method(call.request, timeout=remaining, wait_for_ready=again)
            except grpc.RpcError as e:
                raise self.error(e) from None

        budget = (self.timeout if timeout is None else timeout) + call.wait_seconds
        return self.retry(attempt, budget)

    def retry(self, action: Callable[[float, bool], T], budget: float) -> T:
        """Does something that may be repeated, until it works, fails for good, or time is up.

        Args:
            action: gets the seconds that are left, and whether it was tried before. If it was, it
                should wait for the connection: gRPC makes no progress with that unless some call
                waits, but for a look every 5 s.
            budget: seconds from now.
        """
        deadline = time.monotonic() + budget
        attempt = 0
        while True:
            try:
                return action(max(0.001, deadline - time.monotonic()), attempt > 0)
            except errors.CowshedError as error:
                delay = channel.retry_delay(error, attempt)
                if delay is None or time.monotonic() + delay >= deadline:
                    raise
            time.sleep(delay)
            attempt += 1

    def stream(self, call: calls.Call[R], wait_for_ready: bool = False) -> Iterator[R]:
        """Sends a call and yields its replies. The timeout is for each, not for all."""
        method = self.channel().unary_stream(call.method, serialize, call.reply.FromString)
        replies = method(call.request, wait_for_ready=wait_for_ready)
        with Watchdog(replies, self.timeout) as watchdog:
            try:
                while True:
                    with watchdog.waiting():
                        reply = next(replies, None)
                    if reply is None:
                        return
                    yield reply
            except grpc.RpcError as e:
                raise self._late(watchdog) or self.error(e) from None
            finally:
                replies.cancel()

    def open_write(
        self,
        requests: Iterator[data_pb2.WriteRequest],
        call: calls.Call[data_pb2.WriteAck],
        wait_for_ready: bool = False,
    ) -> grpc.StreamCall[data_pb2.WriteAck]:
        """Starts a Write stream."""
        method = self.channel().stream_stream(call.method, serialize, call.reply.FromString)
        return method(requests, wait_for_ready=wait_for_ready)

    def error(self, error: grpc.RpcError) -> errors.CowshedError:
        """The exception for a failed call; its blockers can be listed through this transport."""
        return errors.from_rpc_error(error, fetch=self.blockers)

    def blockers(self, list_token: str) -> Iterator[Blocker]:
        """All blockers behind a token, page by page."""
        page_token = ""
        while True:
            page = self.unary(calls.list_blockers(list_token, page_token=page_token))
            yield from map(Blocker.from_proto, page.blockers)
            page_token = page.next_page_token
            if not page_token:
                return

    def _late(self, watchdog: Watchdog) -> errors.CowshedError | None:
        if not watchdog.fired:
            return None
        return errors.DeadlineExceededError(f"the stream brought nothing for {self.timeout:g} s")


class Watchdog:
    """Cancels a stream that keeps its reader waiting for too long.

    gRPC's own deadline covers a whole stream, which would be wrong at any value: it may move a
    megabyte or a terabyte. This one runs only while the reader waits.
    """

    def __init__(self, call: grpc.Call, seconds: float) -> None:
        self.fired = False
        self._call = call
        self._seconds = seconds
        self._condition = threading.Condition()
        self._due: float | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="cowshed-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()
        self._thread.join()

    def waiting(self) -> _Waiting:
        """Counts while the context lasts."""
        return _Waiting(self)

    def arm(self, on: bool) -> None:
        """Starts or stops counting."""
        # No notification: a thread that wakes early just looks again, and one that sleeps
        # without a due time does so in steps of the timeout.
        self._due = time.monotonic() + self._seconds if on else None

    def _run(self) -> None:
        with self._condition:
            while not self._stopped:
                due = self._due
                now = time.monotonic()
                if due is not None and now >= due:
                    self.fired = True
                    self._call.cancel()
                    return
                # Due at the latest one whole timeout after it was armed, so this step never
                # oversleeps by more than that; half a step bounds the error to half the timeout.
                step = self._seconds / 2 if due is None else min(due - now, self._seconds / 2)
                self._condition.wait(step)


class _Waiting:
    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def __enter__(self) -> None:
        self._watchdog.arm(True)

    def __exit__(self, *exc_info: object) -> None:
        self._watchdog.arm(False)
