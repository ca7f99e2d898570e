# SPDX-License-Identifier: Apache-2.0
"""Snapshots and holds: snapshot, hold, release, holds."""

from __future__ import annotations

import getpass
import socket
from datetime import timedelta

import click

from cowshed import calls
from cowshed.cli.base import NAME, App, Verb, label_option, pass_app, ttl_option
from cowshed.cli.output import Column, Kind, to_json
from cowshed.types import Hold
from cowshed.v1 import snapshot_pb2


@click.command(cls=Verb)
@click.argument("names", type=NAME, nargs=-1, required=True)
@click.option("--prefix", default="", help="Of every dataset of this subtree; NAMES is one word.")
@label_option
@pass_app
def snapshot(
    app: App, names: tuple[str, ...], prefix: str, labels: tuple[tuple[str, str], ...]
) -> None:
    """Take snapshots NAMES (ci/a@s) at one point in time, all or none."""
    if prefix:
        if len(names) != 1 or "@" in names[0]:
            raise click.UsageError("with --prefix give one word, the part behind the @")
        call = calls.create_snapshots(prefix=prefix, snapshot=names[0], labels=dict(labels))
    else:
        call = calls.create_snapshots(names, labels=dict(labels))
    reply = app.call(call)
    if app.json:
        app.document(reply)
    elif app.on_tty and not app.quiet:
        noun = "snapshot" if reply.count == 1 else "snapshots"
        click.echo(f"took {reply.count:,} {noun} in txg {reply.txg}")
    elif prefix:
        for one in _taken(app, prefix, reply):
            _line(app, one, reply.txg)
    else:
        for name in names:
            _line(app, name, reply.txg)


def _line(app: App, name: str, txg: int) -> None:
    click.echo(name if app.quiet else f"{name}\t{txg}")


def _taken(app: App, prefix: str, reply: snapshot_pb2.CreateSnapshotsResponse) -> list[str]:
    """The names of all snapshots a prefix call took; the reply names the first 100 only."""
    if reply.count <= len(reply.snapshots):
        return [one.name for one in reply.snapshots]
    taken = app.client.list_snapshots(prefix=prefix, page_size=1000)
    return [one.name for one in taken if one.create_txg == reply.txg]


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("tag")
@click.option("--owner", help="Who holds it.  [default: user@host]")
@ttl_option
@pass_app
def hold(app: App, name: str, tag: str, owner: str | None, ttl: timedelta | None) -> None:
    """Keep the snapshot NAME from being destroyed, under a TAG."""
    who = owner if owner is not None else f"{getpass.getuser()}@{socket.gethostname()}"
    reply = app.call(calls.hold(name, tag, owner=who, ttl=ttl))
    sentence = f"held {reply.hold.snapshot} ({reply.hold.tag})"
    app.done(reply, sentence, reply.hold.snapshot, reply.hold.tag, reply.txg)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("tag")
@pass_app
def release(app: App, name: str, tag: str) -> None:
    """Release the hold TAG on the snapshot NAME."""
    reply = app.call(calls.release(name, tag))
    gone = "; it was deferred and is gone" if reply.snapshot_destroyed else ""
    sentence = f"released {reply.hold.snapshot} ({reply.hold.tag}){gone}"
    app.done(reply, sentence, reply.hold.snapshot, reply.hold.tag, reply.txg)


HOLD_COLUMNS = (
    Column("SNAPSHOT"),
    Column("TAG"),
    Column("OWNER"),
    Column("CREATED", Kind.TIME),
    Column("EXPIRES", Kind.TIME),
)


@click.command(cls=Verb)
@click.argument("name", type=NAME, default="")
@pass_app
def holds(app: App, name: str) -> None:
    """List holds: on the snapshot NAME, on those of a subtree NAME, or all."""
    snapshot_name, prefix = (name, "") if "@" in name else ("", name)
    messages: list[snapshot_pb2.Hold] = []
    token = ""
    while True:
        page = app.call(
            calls.list_holds(snapshot_name, prefix=prefix, page_size=1000, page_token=token)
        )
        messages.extend(page.holds)
        token = page.next_page_token
        if not token:
            break
    values = map(Hold.from_proto, messages)
    rows = [(h.snapshot, h.tag, h.owner, h.create_time, h.expire_time) for h in values]
    app.rows(HOLD_COLUMNS, rows, lambda: {"holds": [to_json(m) for m in messages]})
