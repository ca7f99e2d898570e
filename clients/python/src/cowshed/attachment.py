# SPDX-License-Identifier: Apache-2.0
"""Datasets and snapshots as devices: who uses them, and where to attach."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from cowshed.types import to_datetime
from cowshed.v1 import attachment_pb2

_PROCESS = re.compile(r"uid:\d+ pid:(\d+)")


@dataclass(frozen=True)
class Attachment:
    """A connection that uses a dataset or snapshot as a device."""

    id: str
    name: str
    uid: str
    read_only: bool
    shared: bool
    client: str
    protocol: str
    since_time: datetime | None
    read_bytes: int
    written_bytes: int
    requests: int
    ending: bool

    @classmethod
    def from_proto(cls, m: attachment_pb2.Attachment) -> Attachment:
        """The value of a message."""
        return cls(
            id=m.id,
            name=m.name,
            uid=m.uid,
            read_only=m.read_only,
            shared=m.shared,
            client=m.client,
            protocol=m.protocol,
            since_time=to_datetime(m, "since_time"),
            read_bytes=m.read_bytes,
            written_bytes=m.written_bytes,
            requests=m.requests,
            ending=m.ending,
        )


@dataclass(frozen=True)
class Export:
    """Where a dataset or snapshot can be attached.

    Attributes:
        name: the dataset or snapshot; says what `@latest` is.
        uid: its uid.
        export: the name an NBD client asks for, options included.
        uris: one for each place where the server serves NBD.
        sockets: paths of those that are unix sockets of the server's host.
        size_bytes: size of the device.
        block_size_bytes: what it reads and writes best.
        read_only: whether it can only be read.
    """

    name: str
    uid: str
    export: str
    uris: tuple[str, ...]
    sockets: tuple[str, ...]
    size_bytes: int
    block_size_bytes: int
    read_only: bool

    @classmethod
    def from_proto(cls, m: attachment_pb2.GetExportResponse) -> Export:
        """The value of a message."""
        return cls(
            name=m.name,
            uid=m.uid,
            export=m.export_name,
            uris=tuple(address.uri for address in m.addresses),
            sockets=tuple(address.socket for address in m.addresses if address.socket),
            size_bytes=m.size_bytes,
            block_size_bytes=m.block_size_bytes,
            read_only=m.read_only,
        )

    @property
    def uri(self) -> str:
        """The one to take from here: a unix socket that is there, else the first by TCP."""
        return nearest(self.uris, self.sockets)

    @property
    def socket(self) -> str:
        """Path of the unix socket in `uri`; empty if it leads elsewhere."""
        return next((s for s in self.sockets if os.path.exists(s)), "")


def nearest(uris: Iterable[str], sockets: Iterable[str]) -> str:
    """Of `uris` the first through a socket that exists, else the first of another kind."""
    listed = list(uris)
    local = [uri for uri in listed if uri.startswith("nbd+unix:")]
    for uri, path in zip(local, sockets):
        if os.path.exists(path):
            return uri
    remote = [uri for uri in listed if uri not in local]
    return (remote or listed)[0]


def made_by_us(client: str) -> bool:
    """Whether the client of an attachment is this process or one that it has started."""
    found = _PROCESS.match(client)
    if found is None:
        return False  # by TCP: nothing tells
    pid = int(found[1])
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])
        except OSError:
            return False
    return False
