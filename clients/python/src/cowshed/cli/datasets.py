# SPDX-License-Identifier: Apache-2.0
"""The life of a dataset: create, clone, renew, reset, rollback, promote, rename, resize, label."""

from __future__ import annotations

from datetime import timedelta

import click

from cowshed import calls
from cowshed.cli.base import (
    LABEL,
    NAME,
    SIZE,
    SPAN,
    App,
    Verb,
    etag_option,
    force_option,
    label_option,
    pass_app,
    ttl_option,
)
from cowshed.cli.output import human_bytes, human_span
from cowshed.v1 import dataset_pb2


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("size", type=SIZE)
@click.option("--block-size", type=SIZE, help="4k to 128k, a power of two.  [default: 16k]")
@click.option("--quota", type=SIZE, help="Most bytes the dataset may refer to.")
@ttl_option
@label_option
@pass_app
def create(
    app: App,
    name: str,
    size: int,
    block_size: int | None,
    quota: int | None,
    ttl: timedelta | None,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """Create an empty dataset NAME of SIZE bytes."""
    call = calls.create(
        name, size, block_size=block_size, quota=quota, ttl=ttl, labels=dict(labels)
    )
    reply = app.call(call)
    dataset = reply.dataset
    sentence = f"created {dataset.name}, {human_bytes(dataset.size_bytes)}"
    app.done(reply, sentence, dataset.name, dataset.uid, reply.txg)


@click.command(cls=Verb)
@click.argument("source", type=NAME)
@click.argument("name", type=NAME)
@click.option("--replace", is_flag=True, help="Destroy a dataset NAME in the same step.")
@force_option
@click.option("--quota", type=SIZE, help="Most bytes the clone may refer to.")
@ttl_option
@label_option
@pass_app
def clone(
    app: App,
    source: str,
    name: str,
    replace: bool,
    force: bool,
    quota: int | None,
    ttl: timedelta | None,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """Clone SOURCE, a snapshot (golden@v1, golden@latest) or a dataset, as NAME."""
    call = calls.clone(
        source, name, replace=replace, force=force, quota=quota, ttl=ttl, labels=dict(labels)
    )
    reply = app.call(call)
    dataset = reply.dataset
    sentence = f"cloned {dataset.origin or source} as {dataset.name}"
    app.done(reply, sentence, dataset.name, dataset.uid, reply.txg)


def _updated(app: App, reply: dataset_pb2.UpdateDatasetResponse, sentence: str) -> None:
    app.done(reply, sentence, reply.dataset.name, reply.dataset.etag, reply.txg)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("ttl", type=SPAN, required=False)
@click.option("--never", is_flag=True, help="Let it live until it is destroyed.")
@etag_option
@pass_app
def renew(app: App, name: str, ttl: timedelta | None, never: bool, etag: str) -> None:
    """Let the dataset NAME live for TTL (30m, 2h, 7d) from now."""
    if never == (ttl is not None):
        raise click.UsageError("give either TTL or --never")
    if ttl is None:
        reply = app.call(calls.update(name, expire_time=None, etag=etag))
        _updated(app, reply, f"{name} does not expire")
    else:
        reply = app.call(calls.update(name, ttl=ttl, etag=etag))
        _updated(app, reply, f"{name} expires in {human_span(ttl.total_seconds())}")


def _rolled_back(app: App, reply: dataset_pb2.RollbackDatasetResponse) -> None:
    sentence = f"{reply.dataset.name} is back at {reply.target or 'its origin'}"
    app.done(reply, sentence, reply.dataset.name, reply.target, reply.txg)


destroy_newer_option = click.option(
    "--destroy-newer", is_flag=True, help="Destroy the snapshots that are newer."
)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@destroy_newer_option
@force_option
@etag_option
@pass_app
def reset(app: App, name: str, destroy_newer: bool, force: bool, etag: str) -> None:
    """Take the clone NAME back to its origin, as if freshly cloned."""
    call = calls.rollback(
        name, origin=True, destroy_newer=destroy_newer, etag=etag, force=force
    )
    _rolled_back(app, app.call(call))


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@destroy_newer_option
@force_option
@click.option("--expect", default="", help="Only if this is the snapshot it goes back to.")
@etag_option
@pass_app
def rollback(
    app: App, name: str, destroy_newer: bool, force: bool, expect: str, etag: str
) -> None:
    """Take a dataset back to a snapshot.

    NAME is a dataset, which goes back to its newest snapshot, or a snapshot.
    """
    dataset, separator, _ = name.partition("@")
    call = calls.rollback(
        dataset,
        to=name if separator else "",
        expected_target=expect,
        destroy_newer=destroy_newer,
        etag=etag,
        force=force,
    )
    _rolled_back(app, app.call(call))


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@etag_option
@pass_app
def promote(app: App, name: str, etag: str) -> None:
    """Turn the clone NAME and its origin around, so that the parent can be destroyed."""
    reply = app.call(calls.promote(name, etag=etag))
    sentence = f"promoted {reply.dataset.name}; {reply.former_parent.name} is now its clone"
    app.done(reply, sentence, reply.dataset.name, reply.former_parent.name, reply.txg)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("new_name")
@etag_option
@pass_app
def rename(app: App, name: str, new_name: str, etag: str) -> None:
    """Rename a dataset with its snapshots, or a snapshot (ci/a@old to ci/a@new)."""
    if "@" in name:
        if etag:
            raise click.UsageError("--etag is for datasets")
        full_name = new_name if "@" in new_name else f"{name.partition('@')[0]}@{new_name}"
        snapshot_reply = app.call(calls.rename_snapshot(name, full_name))
        snapshot = snapshot_reply.snapshot
        sentence = f"renamed {name} to {snapshot.name}"
        app.done(snapshot_reply, sentence, snapshot.name, snapshot.uid, snapshot_reply.txg)
        return
    reply = app.call(calls.rename(name, new_name, etag=etag))
    sentence = f"renamed {name} to {reply.dataset.name}"
    app.done(reply, sentence, reply.dataset.name, reply.dataset.uid, reply.txg)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("size", type=SIZE, required=False)
@click.option("--quota", type=SIZE, help="Most bytes the dataset may refer to.")
@click.option("--no-quota", is_flag=True, help="Take the quota away.")
@force_option
@etag_option
@pass_app
def resize(
    app: App,
    name: str,
    size: int | None,
    quota: int | None,
    no_quota: bool,
    force: bool,
    etag: str,
) -> None:
    """Give the dataset NAME another SIZE or quota. A smaller size cuts off what lies beyond."""
    if size is None and quota is None and not no_quota:
        raise click.UsageError("give SIZE, --quota or --no-quota")
    if no_quota and quota is not None:
        raise click.UsageError("give either --quota or --no-quota")
    new_quota: int | None | calls.Keep = calls.KEEP
    if no_quota or quota is not None:
        new_quota = quota
    reply = app.call(calls.update(name, size=size, quota=new_quota, etag=etag, force=force))
    _updated(app, reply, f"{name} has {human_bytes(reply.dataset.size_bytes)}")


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@click.argument("labels", type=LABEL, nargs=-1)
@click.option("-r", "--remove", multiple=True, metavar="KEY", help="A label to remove.")
@etag_option
@pass_app
def label(
    app: App,
    name: str,
    labels: tuple[tuple[str, str], ...],
    remove: tuple[str, ...],
    etag: str,
) -> None:
    """Set LABELS (key=value) on the dataset NAME, or remove some."""
    if not labels and not remove:
        raise click.UsageError("give labels to set or --remove")
    call = calls.update(name, set_labels=dict(labels), remove_labels=remove, etag=etag)
    reply = app.call(call)
    shown = ", ".join(f"{k}={v}" for k, v in sorted(reply.dataset.labels.items()))
    _updated(app, reply, f"{name}: {shown or 'no labels'}")
