# SPDX-License-Identifier: Apache-2.0
"""Datasets and snapshots as devices: attach, detach, attachments."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

import click

from cowshed import attach_calls, devices, errors
from cowshed.attachment import Attachment, Export
from cowshed.cli.base import NAME, App, Verb, pass_app
from cowshed.cli.output import Column, Kind, to_json
from cowshed.v1 import attachment_pb2

_ANY_DEVICE = "any"


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.option("--read-only", is_flag=True, help="Needs no lease; snapshots are always read.")
@click.option("--shared", is_flag=True, help="Write beside others that say so, too.")
@click.option("--file", "path", type=click.Path(), help="Bring it here as the file PATH (nbdfuse).")
@click.option("--background", is_flag=True, help="With --file: come back once it is there.")
@click.option(
    "--device",
    is_flag=False,
    flag_value=_ANY_DEVICE,
    metavar="[DEVICE]",
    help="Bring it here as a device of the kernel (nbd-client), by default the first free one.",
)
@pass_app
def attach(
    app: App,
    name: str,
    read_only: bool,
    shared: bool,
    path: str | None,
    background: bool,
    device: str | None,
) -> None:
    """Print the NBD URI of the dataset or snapshot NAME, or bring it here.

    With --file the file is there until cow is interrupted, or with --background until
    `cow detach PATH`. Columns in a pipe: URI, or the path or device.
    """
    if path is not None and device is not None:
        raise click.UsageError("give either --file or --device")
    if background and path is None:
        raise click.UsageError("--background goes with --file")
    reply = app.call(attach_calls.get_export(name, read_only=read_only, shared=shared))
    export = Export.from_proto(reply)
    if path is not None:
        _attach_file(app, export, path, background)
    elif device is not None:
        chosen = "" if device == _ANY_DEVICE else device
        made = devices.connect_device(chosen, export.uri, read_only=export.read_only)
        app.done({"name": export.name, "device": made, "uri": export.uri}, made, made)
    elif app.json:
        app.document({**to_json(reply), "uri": export.uri})
    else:
        click.echo(export.uri)


def _attach_file(app: App, export: Export, path: str, background: bool) -> None:
    # A signal before the wait below must not end us without unmounting.
    with _Interrupts() as interrupts:
        mounted = devices.mount_file(path, export.uri, read_only=export.read_only)
        document = {
            "name": export.name,
            "file": mounted.path,
            "pid": mounted.pid,
            "uri": export.uri,
        }
        app.done(document, f"{export.name} is {mounted.path}", mounted.path)
        if background:
            return
        click.get_text_stream("stdout").flush()
        interrupts.wait(mounted)
    if devices.find_mounted(mounted.path) is not None:
        devices.unmount_file(mounted.path)


class _Interrupted(Exception):
    """A signal has come."""


class _Interrupts:
    """Within it SIGINT and SIGTERM end the wait instead of the process."""

    def __enter__(self) -> _Interrupts:
        self._came = self._waiting = False
        kinds = (signal.SIGINT, signal.SIGTERM)
        self._before = {kind: signal.signal(kind, self._handle) for kind in kinds}
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        if self._waiting:
            raise _Interrupted

    def wait(self, mounted: devices.Mounted) -> None:
        """Until a signal has come or the mount has ended."""
        process = os.pidfd_open(mounted.pid)  # our child: its number is still its own
        try:
            self._waiting = True
            if not self._came:
                select.select([process], [], [])
        except _Interrupted:
            pass
        finally:
            self._waiting = False
            os.close(process)


@click.command(cls=Verb)
@click.argument("what", metavar="NAME|ID|PATH")
@click.option("--force", is_flag=True, help="Unmount a file that programs have open, too.")
@pass_app
def detach(app: App, what: str, force: bool) -> None:
    """End the attachments of a dataset or snapshot NAME, the one with this ID, or what is at PATH.

    A file of `cow attach --file` is flushed and unmounted, a device of --device is given up. A NAME
    or ID is cut by the server, which flushes nothing. Columns in a pipe: what, how many.
    """
    if devices.is_device(what):
        devices.disconnect_device(what)
        count = 1
    elif what.startswith(("/", "./", "../")) or _is_file(what):
        devices.unmount_file(what, force=force)
        count = 1
    else:
        if force:
            raise click.UsageError("--force is for files")
        count = _cut(app, what)
    noun = "attachment" if count == 1 else "attachments"
    app.done({"what": what, "count": count}, f"ended {count:,} {noun} of {what}", what, count)


def _is_file(what: str) -> bool:
    return os.path.exists(what) and devices.find_mounted(what) is not None


def _cut(app: App, what: str) -> int:
    if what.isdecimal():
        try:
            return app.call(attach_calls.detach(attachment=what)).count
        except errors.NotFoundError:
            pass  # a dataset may be called so, too
    return app.call(attach_calls.detach(what)).count


COLUMNS = (
    Column("ID"),
    Column("NAME"),
    Column("MODE"),
    Column("CLIENT"),
    Column("SINCE", Kind.TIME),
    Column("READ", Kind.BYTES),
    Column("WRITTEN", Kind.BYTES),
    Column("REQUESTS", Kind.COUNT),
)


@click.command(cls=Verb)
@click.argument("name", type=NAME, default="")
@click.option("--prefix", default="", help="Of a subtree: this dataset and all below it.")
@pass_app
def attachments(app: App, name: str, prefix: str) -> None:
    """List who uses what as a device: all, or those of NAME (of a dataset with its snapshots)."""
    messages: list[attachment_pb2.Attachment] = []
    token = ""
    while True:
        page = app.call(
            attach_calls.list_attachments(name, prefix=prefix, page_size=1000, page_token=token)
        )
        messages.extend(page.attachments)
        token = page.next_page_token
        if not token:
            break
    rows = [
        (
            one.id,
            one.name,
            mode_of(one),
            one.client,
            one.since_time,
            one.read_bytes,
            one.written_bytes,
            one.requests,
        )
        for one in map(Attachment.from_proto, messages)
    ]
    app.rows(COLUMNS, rows, lambda: {"attachments": [to_json(m) for m in messages]})


def mode_of(attachment: Attachment) -> str:
    """`read-only`, `read-write` or `shared`; `ending` if it has been cut."""
    if attachment.ending:
        return "ending"
    if attachment.read_only:
        return "read-only"
    return "shared" if attachment.shared else "read-write"
