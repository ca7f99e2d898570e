# SPDX-License-Identifier: Apache-2.0
"""Bytes: import, export, read, write, discard, diff."""

from __future__ import annotations

import base64
import os
import sys

import click

from cowshed.channel import CHUNK_BYTES
from cowshed.cli.base import NAME, SIZE, App, Verb, pass_app
from cowshed.cli.output import Column, Kind, human_bytes
from cowshed.images import export_image, import_image
from cowshed.streams import WriteStream

existing_file = click.Path(exists=True, dir_okay=False)
offset_option = click.option(
    "--offset", type=SIZE, default=0, show_default=True, help="First byte."
)


@click.command("import", cls=Verb)
@click.argument("file", type=existing_file)
@click.argument("name", type=NAME)
@click.option("--block-size", type=SIZE, help="Of a dataset that has to be created.")
@click.option("--changed-only", is_flag=True, help="Write only the blocks that differ.")
@click.option("--resize", is_flag=True, help="Give an existing dataset the size of FILE.")
@pass_app
def import_(
    app: App, file: str, name: str, block_size: int | None, changed_only: bool, resize: bool
) -> None:
    """Make the dataset NAME hold what FILE holds; create it if it is missing."""
    with app.progress() as progress:
        task = progress.add_task(name, total=os.stat(file).st_size or None)
        result = import_image(
            app.client,
            file,
            name,
            block_size=block_size,
            changed_only=changed_only,
            resize=resize,
            progress=lambda count: progress.advance(task, count),
        )
    document = {
        "name": result.dataset.name,
        "uid": result.dataset.uid,
        "created": result.created,
        "size_bytes": result.dataset.size_bytes,
        "written_bytes": result.written_bytes,
        "zeroed_bytes": result.zeroed_bytes,
        "unchanged_bytes": result.unchanged_bytes,
        "txg": result.txg,
    }
    sentence = (
        f"imported {human_bytes(result.dataset.size_bytes)} into {name}:"
        f" {human_bytes(result.written_bytes)} written,"
        f" {human_bytes(result.zeroed_bytes)} zeros,"
        f" {human_bytes(result.unchanged_bytes)} unchanged"
    )
    app.done(document, sentence, name, result.written_bytes, result.unchanged_bytes, result.txg)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("file", type=click.Path(dir_okay=False))
@pass_app
def export(app: App, name: str, file: str) -> None:
    """Write the dataset or snapshot NAME into FILE: sparse, bit for bit, complete or not at all."""
    with app.progress() as progress:
        task = progress.add_task(name, total=None)
        result = export_image(
            app.client, name, file, progress=lambda count: progress.advance(task, count)
        )
    document = {
        "name": result.name,
        "uid": result.uid,
        "size_bytes": result.size_bytes,
        "data_bytes": result.data_bytes,
        "hole_bytes": result.hole_bytes,
    }
    sentence = (
        f"exported {result.name}: {human_bytes(result.size_bytes)},"
        f" {human_bytes(result.data_bytes)} of them data"
    )
    app.done(document, sentence, result.name, result.size_bytes, result.data_bytes)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@offset_option
@click.option("--length", type=SIZE, help="Number of bytes.  [default: to the end]")
@pass_app
def read(app: App, name: str, offset: int, length: int | None) -> None:
    """Write the bytes of the dataset or snapshot NAME to stdout, as they are."""
    if app.json:
        data = app.client.read(name, offset, length)
        app.document(
            {
                "name": name,
                "offset_bytes": offset,
                "length_bytes": len(data),
                "data": base64.b64encode(data).decode("ascii"),
            }
        )
        return
    zeros = bytes(CHUNK_BYTES)
    for chunk in app.client.read_chunks(name, offset, length):
        if chunk.data is not None:
            sys.stdout.buffer.write(chunk.data)
            continue
        for start in range(0, chunk.length_bytes, CHUNK_BYTES):
            sys.stdout.buffer.write(zeros[: min(CHUNK_BYTES, chunk.length_bytes - start)])
    sys.stdout.buffer.flush()


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@offset_option
@pass_app
def write(app: App, name: str, offset: int) -> None:
    """Write stdin into the dataset NAME, durably."""
    with app.client.write_stream(name) as stream:
        count = _copy_stdin(stream, offset)
        txg = stream.flush()
    document = {"name": name, "offset_bytes": offset, "length_bytes": count, "txg": txg}
    app.done(document, f"wrote {human_bytes(count)} to {name}", name, count, txg)


def _copy_stdin(stream: WriteStream, offset: int) -> int:
    count = 0
    while data := sys.stdin.buffer.read(CHUNK_BYTES):
        stream.write(offset + count, data)
        count += len(data)
    return count


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@offset_option
@click.option("--length", type=SIZE, required=True, help="Number of bytes.")
@pass_app
def discard(app: App, name: str, offset: int, length: int) -> None:
    """Give up a range of the dataset NAME: it reads as zeros, its blocks are freed."""
    txg = app.client.discard(name, offset, length)
    document = {"name": name, "offset_bytes": offset, "length_bytes": length, "txg": txg}
    app.done(document, f"discarded {human_bytes(length)} of {name}", name, length, txg)


@click.command(cls=Verb)
@click.argument("older", type=NAME)
@click.argument("newer", type=NAME, required=False)
@click.option("--start", type=SIZE, default=0, help="List only from this offset on.")
@pass_app
def diff(app: App, older: str, newer: str | None, start: int) -> None:
    """List what differs between two snapshots, or with one, all that it holds."""
    if newer is None:
        older, newer = "", older
    extents = app.client.diff(older, newer, start)
    columns = (
        Column("OFFSET", Kind.COUNT),
        Column("LENGTH", Kind.BYTES),
        Column("CONTENT"),
    )
    rows = [(e.offset_bytes, e.length_bytes, "data" if e.data else "hole") for e in extents]
    app.rows(
        columns,
        rows,
        lambda: {
            "from_snapshot": older,
            "to_snapshot": newer,
            "extents": [
                {
                    "offset_bytes": offset,
                    "length_bytes": length,
                    "kind": f"EXTENT_KIND_{content.upper()}",
                }
                for offset, length, content in rows
            ],
        },
    )
