# SPDX-License-Identifier: Apache-2.0
"""Looking after the pool: pool scrub, pool backup."""

from __future__ import annotations

import click

from cowshed import calls
from cowshed.cli.base import SIZE, App, pass_app
from cowshed.cli.destroy import wait_for
from cowshed.cli.inspect import pool
from cowshed.cli.output import human_bytes
from cowshed.v1 import operation_pb2


@pool.command()
@click.option("--rate", type=SIZE, help="Bytes per second to read at most; 0: no limit.")
@click.option("--wait", is_flag=True, help="Wait for its end. Exit 1: it found damage.")
@click.option("--pause", is_flag=True, help="Pause the one under way; `cow pool scrub` goes on.")
@click.option("--cancel", is_flag=True, help="End the one under way.")
@pass_app
def scrub(app: App, rate: int | None, wait: bool, pause: bool, cancel: bool) -> None:
    """Read every block and node of the pool and verify it, in the background.

    Goes on with the scrub under way or paused. Columns in a pipe: operation, bytes read, errors.
    Damaged places follow with --wait: name, first block, blocks.
    """
    if (pause, cancel, wait or rate is not None).count(True) > 1:
        raise click.UsageError("--pause and --cancel go alone")
    if pause or cancel:
        stopped = app.call(calls.cancel_scrub(pause=pause))
        what = "paused" if pause else "cancelled"
        app.done(stopped, _sentence(stopped.operation, what), *_columns(stopped.operation))
        return
    reply = app.call(calls.start_scrub(rate))
    if wait:
        reply.operation.CopyFrom(wait_for(app, reply.operation))
    what = "done" if wait else "begun"
    app.done(reply, _sentence(reply.operation, what), *_columns(reply.operation))
    if not (wait and reply.operation.errors):
        return
    if not (app.json or app.quiet):
        for place in reply.operation.damaged:
            name = place.name or "(destroyed since)"
            click.echo(f"{name}\t{place.first_block}\t{place.block_count}")
    raise click.exceptions.Exit(1)


@pool.command()
@click.argument("directory", type=click.Path())
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is whole.")
@pass_app
def backup(app: App, directory: str, wait: bool) -> None:
    """Copy the pool, as it is now, to DIRECTORY on the server's host while it goes on.

    DIRECTORY is absolute, and empty or absent. `cowshed serve --pool DIRECTORY` serves the copy.
    Columns in a pipe: operation, directory, bytes copied.
    """
    reply = app.call(calls.backup(directory))
    if wait:
        reply.operation.CopyFrom(wait_for(app, reply.operation))
    operation = reply.operation
    what = f"{human_bytes(operation.done_bytes)} copied to {directory}"
    sentence = what if wait else f"copying to {directory} through {operation.name}"
    app.done(reply, sentence, operation.name, directory, operation.done_bytes)


def _columns(operation: operation_pb2.Operation) -> tuple[str, int, int]:
    return operation.name, operation.done_bytes, operation.errors


def _sentence(operation: operation_pb2.Operation, what: str) -> str:
    read = f"{human_bytes(operation.done_bytes)} of {human_bytes(operation.total_bytes)} read"
    return f"scrub {what}: {read}, {operation.errors:,} errors ({operation.name})"
