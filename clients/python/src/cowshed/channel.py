# SPDX-License-Identifier: Apache-2.0
"""The way to a server: addresses, channel options, and when to try again.

Retries: a call that ends UNAVAILABLE without a reason from the server's pool (the server is down,
restarting or stopping) is sent again, the same request with the same request_id, until the timeout
of the call has passed; so is one that found the queue full (SERVER_BUSY), after the delay the
server asks for. Both are safe: every changing call carries a request_id, and writes are idempotent
by offset. Nothing else is retried.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import grpc

from cowshed.errors import CowshedError

DEFAULT_ADDRESS = "127.0.0.1:7420"
DEFAULT_PORT = 7420
ADDRESS_VARIABLE = "COWSHED_ADDRESS"

MIB = 1024 * 1024
CHUNK_BYTES = MIB
"""The most bytes in one message."""

WINDOW_BYTES = 16 * MIB
"""How far a write stream runs ahead of its acks. The server acknowledges at least every 8 MiB, so
one ack is always on its way while the next 8 MiB are sent."""

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 1.0

_OPTIONS: list[tuple[str, str | int]] = [
    # A page of 1,000 datasets with full labels is above gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", 16 * MIB),
    # The server permits a ping every 10 s, calls or not.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted server should be found again within the timeout of one call.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # which also is how long a connection may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Two clients in one process must not share a connection, nor its fate.
    ("grpc.use_local_subchannel_pool", 1),
    # Retries are ours: gRPC's would not know about request_id.
    ("grpc.enable_retries", 0),
]


@dataclass(frozen=True)
class Tls:
    """How to trust the server and what to show it: paths of PEM files.

    Attributes:
        ca_file: certificates to trust; None: the system's.
        cert_file: our certificate chain, for a server that demands one.
        key_file: its private key.
        server_name: the name to expect in the server's certificate, if not the address.
    """

    ca_file: str | os.PathLike[str] | None = None
    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials for a channel; reads the files."""

        def content(path: str | os.PathLike[str] | None) -> bytes | None:
            return None if path is None else Path(path).read_bytes()

        return grpc.ssl_channel_credentials(
            content(self.ca_file), content(self.key_file), content(self.cert_file)
        )


def resolve_address(address: str | None) -> str:
    """The address as gRPC wants it: `unix:/path` or `host:port`.

    Args:
        address: `host:port`, `host` (port 7420), `unix:path` or a path that starts with `/`. None:
            $COWSHED_ADDRESS, else 127.0.0.1:7420.
    """
    address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    if address.startswith("/"):
        return f"unix:{address}"
    if address.startswith("unix:"):
        return address
    if address.count(":") > 1 and not address.startswith("["):
        address = f"[{address}]"  # a bare IPv6 address
    host, separator, port = address.rpartition(":")
    if address.endswith("]") or not separator:
        return f"{address}:{DEFAULT_PORT}"
    if not host or not port.isdigit():
        raise ValueError(f"{address!r} is no address: expected host:port or unix:/path")
    return address


def is_local(address: str) -> bool:
    """Whether the address is a unix socket or a loopback one."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or host == "::1" or host.startswith("127.")


def channel_options(address: str, tls: Tls | None) -> list[tuple[str, str | int]]:
    """The options of a channel to this address."""
    options = list(_OPTIONS)
    if is_local(address):
        # Else http_proxy in the environment would send loopback traffic to the proxy.
        options.append(("grpc.enable_http_proxy", 0))
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def open_channel(address: str, tls: Tls | None) -> grpc.Channel:
    """A blocking channel. It connects with its first call."""
    options = channel_options(address, tls)
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, tls.credentials(), options)


def retry_delay(error: CowshedError, attempt: int) -> float | None:
    """Seconds to wait before attempt number `attempt` + 1; None: do not try again."""
    backoff = min(_MAX_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0**attempt)
    jittered = backoff * random.uniform(0.5, 1.0)
    # A call that reaches a connection as the server closes it ends CANCELLED, though nobody did.
    ended_by_server = error.code in ("UNAVAILABLE", "CANCELLED")
    if ended_by_server and error.reason in ("", "SERVER_STOPPING"):
        return jittered
    if error.reason == "SERVER_BUSY":
        return max(jittered, error.retry_delay or 0.0)
    return None
