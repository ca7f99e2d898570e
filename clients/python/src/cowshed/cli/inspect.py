# SPDX-License-Identifier: Apache-2.0
"""Looking: list, show, tree, ops, pool, space, livelist, top, check, version."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from google.protobuf.duration_pb2 import Duration

import cowshed
from cowshed import calls
from cowshed.cli import tree as lineage
from cowshed.cli.base import LABEL, NAME, SIZE, SPAN, App, Verb, VerbGroup, pass_app
from cowshed.cli.destroy import wait_for
from cowshed.cli.output import (
    Column,
    Kind,
    Value,
    console,
    human_bytes,
    labels_text,
    table,
    to_json,
)
from cowshed.types import Dataset, DatasetState, OperationInfo, Snapshot, to_datetime
from cowshed.v1 import dataset_pb2, operation_pb2, pool_pb2, snapshot_pb2

DATASET_COLUMNS = (
    Column("NAME"),
    Column("SIZE", Kind.BYTES),
    Column("USED", Kind.BYTES),
    Column("REFER", Kind.BYTES),
    Column("SNAPS", Kind.COUNT),
    Column("CLONES", Kind.COUNT),
    Column("ORIGIN"),
    Column("EXPIRES", Kind.TIME),
)
SNAPSHOT_COLUMNS = (
    Column("NAME"),
    Column("REFER", Kind.BYTES),
    Column("WRITTEN", Kind.BYTES),
    Column("UNIQUE", Kind.BYTES),
    Column("CLONES", Kind.COUNT),
    Column("HOLDS", Kind.COUNT),
    Column("CREATED", Kind.TIME),
)


@click.command("list", cls=Verb)
@click.argument("prefix", type=NAME, default="")
@click.option("-s", "--snapshots", is_flag=True, help="List snapshots.")
@click.option("--origin", default="", help="Only clones of this snapshot.")
@click.option(
    "--state",
    type=click.Choice([s.name.lower() for s in DatasetState if s.value], case_sensitive=False),
    help="Only datasets in this state.",
)
@click.option("-l", "--label", "labels", type=LABEL, multiple=True, help="Only with this label.")
@pass_app
def list_(
    app: App,
    prefix: str,
    snapshots: bool,
    origin: str,
    state: str | None,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """List datasets: all, or PREFIX and what is below it.

    Columns in a pipe: name, size, used, referenced, snapshots, clones, origin, expiry; of
    snapshots: name, referenced, written, unique, clones, holds, creation.
    """
    if snapshots:
        if origin or state:
            raise click.UsageError("--origin and --state are for datasets")
        _list_snapshots(app, prefix, dict(labels))
        return
    number = DatasetState[state.upper()].value if state else 0
    messages: list[dataset_pb2.Dataset] = []
    token = ""
    while True:
        page = app.call(
            calls.list_datasets(
                prefix,
                origin=origin,
                state=number,
                labels=dict(labels),
                page_size=1000,
                page_token=token,
            )
        )
        messages.extend(page.datasets)
        token = page.next_page_token
        if not token:
            break
    rows = (_dataset_row(Dataset.from_proto(m)) for m in messages)
    app.rows(DATASET_COLUMNS, rows, lambda: {"datasets": [to_json(m) for m in messages]})


def _dataset_row(d: Dataset) -> Sequence[Value]:
    origin = d.origin or ("(a head)" if d.is_clone else "")
    counts = (d.snapshot_count, d.clone_count)
    return (d.name, d.size_bytes, d.used_bytes, d.referenced_bytes, *counts, origin, d.expire_time)


def _list_snapshots(app: App, name: str, labels: dict[str, str]) -> None:
    messages: list[snapshot_pb2.Snapshot] = []
    token = ""
    while True:
        page = app.call(
            calls.list_snapshots(prefix=name, labels=labels, page_size=1000, page_token=token)
        )
        messages.extend(page.snapshots)
        token = page.next_page_token
        if not token:
            break
    rows = (_snapshot_row(Snapshot.from_proto(m)) for m in messages)
    app.rows(SNAPSHOT_COLUMNS, rows, lambda: {"snapshots": [to_json(m) for m in messages]})


def _snapshot_row(s: Snapshot) -> Sequence[Value]:
    sizes = (s.referenced_bytes, s.written_bytes, s.unique_bytes)
    return (s.name, *sizes, s.clone_count, s.hold_count, s.create_time)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@pass_app
def show(app: App, name: str) -> None:
    """Show everything about a dataset or snapshot."""
    if "@" in name:
        snapshot = app.call(calls.get_snapshot(name))
        app.pairs(_pairs(snapshot), snapshot)
    else:
        dataset = app.call(calls.get(name))
        app.pairs(_pairs(dataset), dataset)


def _pairs(
    message: dataset_pb2.Dataset | snapshot_pb2.Snapshot | pool_pb2.Pool | pool_pb2.Reclaim,
) -> list[tuple[Column, Value]]:
    """The fields of a message by name."""
    pairs: list[tuple[Column, Value]] = []
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name.endswith("_time"):
            pairs.append((Column(field.name, Kind.TIME), to_datetime(message, field.name)))
        elif field.name == "labels":
            pairs.append((Column("labels"), labels_text(value.items())))
        elif isinstance(value, pool_pb2.Reclaim):
            pairs.extend((Column(f"reclaim.{c.title}", c.kind), v) for c, v in _pairs(value))
        elif isinstance(value, Duration):
            pairs.append((Column(field.name), value.ToTimedelta()))
        elif field.label == field.LABEL_REPEATED:
            pairs.append((Column(field.name), ",".join(value)))
        elif field.enum_type is not None:
            state = field.enum_type.values_by_number[value].name
            pairs.append((Column(field.name), state.rpartition("_")[2].lower()))
        elif field.has_presence and not message.HasField(field.name):
            pairs.append((Column(field.name), None))
        else:
            pairs.append((Column(field.name, _kind(field.name)), value))
    return pairs


def _kind(name: str) -> Kind:
    if name.endswith("_bytes") or name.endswith("_bytes_total"):
        return Kind.BYTES
    return Kind.COUNT if name.endswith("_count") else Kind.TEXT


@click.command(cls=Verb)
@click.argument("prefix", type=NAME, default="")
@pass_app
def tree(app: App, prefix: str) -> None:
    """Draw which snapshot is whose and which clone came from which.

    Columns in a pipe: name, parent.
    """
    roots = lineage.lineage(app.client, prefix)
    if app.json:
        app.document({"trees": lineage.nested(roots)})
    elif app.on_tty and not app.quiet:
        for picture in lineage.draw(roots):
            console().print(picture)
    else:
        columns = (Column("NAME"), Column("PARENT"))
        rows = [(name, parent) for name, parent, _ in lineage.walk(roots)]
        app.rows(columns, rows, dict)


OPERATION_COLUMNS = (
    Column("OPERATION"),
    Column("KIND"),
    Column("STATE"),
    Column("TARGET"),
    Column("DONE", Kind.BYTES),
    Column("TOTAL", Kind.BYTES),
    Column("ETA"),
    Column("STARTED", Kind.TIME),
)


@click.command(cls=Verb)
@click.argument("names", nargs=-1)
@click.option("-u", "--unfinished", is_flag=True, help="Only those that are not done.")
@click.option("--wait", is_flag=True, help="Wait until NAMES, or all unfinished ones, are done.")
@click.option("--within", type=SPAN, help="The longest wait.  [default: as long as it takes]")
@pass_app
def ops(
    app: App, names: tuple[str, ...], unfinished: bool, wait: bool, within: timedelta | None
) -> None:
    """List operations, newest first; or show NAMES.

    Columns in a pipe: name, kind, state, target, done and total bytes, seconds left, start.
    """
    messages = _operations(app, names, unfinished or (wait and not names))
    if wait:
        deadline = None if within is None else time.monotonic() + within.total_seconds()
        for at, message in enumerate(messages):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            messages[at] = wait_for(app, message, left)
    rows = (_operation_row(OperationInfo.from_proto(m)) for m in messages)
    app.rows(OPERATION_COLUMNS, rows, lambda: {"operations": [to_json(m) for m in messages]})


def _operations(
    app: App, names: Sequence[str], unfinished: bool
) -> list[operation_pb2.Operation]:
    if names:
        return [app.call(calls.get_operation(name)) for name in names]
    messages: list[operation_pb2.Operation] = []
    token = ""
    while True:
        page = app.call(
            calls.list_operations(unfinished=unfinished, page_size=1000, page_token=token)
        )
        messages.extend(page.operations)
        token = page.next_page_token
        if not token:
            return messages


def _operation_row(o: OperationInfo) -> Sequence[Value]:
    what = (o.kind.name.lower(), o.state.name.lower(), o.target)
    return (o.name, *what, o.done_bytes, o.total_bytes, o.eta, o.start_time)


@click.group(cls=VerbGroup)
@click.pass_context
def pool(context: click.Context) -> None:
    """Show the state of the pool; its commands say how it is looked after."""
    if context.invoked_subcommand is None:
        app = context.find_object(App)
        assert app is not None
        reply = app.call(calls.pool())
        app.pairs(_pairs(reply), reply)


@pool.command()
@click.option("--pause/--resume", "paused", default=None, help="Stop it, or let it go on.")
@click.option("--rate", type=SIZE, help="Bytes per second to give back at most; 0: no limit.")
@click.option(
    "--budget", type=float, help="Milliseconds it may add to a transaction group; 0: the default."
)
@pass_app
def reclaim(app: App, paused: bool | None, rate: int | None, budget: float | None) -> None:
    """Show how reclaim runs, or change it; a restart of the server keeps what was set."""
    if (paused, rate, budget) == (None, None, None):
        message = app.call(calls.pool()).reclaim
    else:
        span = None if budget is None else budget / 1000
        call = calls.update_reclaim(paused=paused, rate_bytes_per_second=rate, txg_budget=span)
        message = app.call(call).reclaim
    app.pairs(_pairs(message), message)


@click.command(cls=Verb)
@click.argument("name", type=NAME, default="")
@pass_app
def space(app: App, name: str) -> None:
    """Explain where the space went: of the pool, or of the dataset or snapshot NAME.

    The parts add up to the total. Columns in a pipe: part, bytes, object.
    """
    reply = app.call(calls.space(name))
    rows: list[Sequence[Value]] = [
        (pool_pb2.SpaceKind.Name(part.kind)[len("SPACE_KIND_") :].lower(), part.bytes, part.name)
        for part in reply.parts
    ]
    rows.append(("total", reply.total_bytes, reply.name))
    if name:
        rows.append(("freed_by_destroy", reply.freed_by_destroy_bytes, reply.name))
    columns = (Column("PART"), Column("BYTES", Kind.BYTES), Column("OBJECT"))
    app.rows(columns, rows, lambda: reply)


@click.command(cls=Verb)
@click.argument("name", type=NAME)
@pass_app
def livelist(app: App, name: str) -> None:
    """Show the sublists of the livelist of the dataset NAME, oldest first.

    On a terminal the last lines say what destroying the dataset would cost. Columns in a pipe:
    first txg, entries, blocks, bytes, logs, blocks logged.
    """
    whole = app.call(calls.livelist(name, page_size=1000))
    token = whole.next_page_token
    while token:
        page = app.call(calls.livelist(name, page_size=1000, page_token=token))
        whole.sublists.extend(page.sublists)
        token = page.next_page_token
    whole.next_page_token = ""
    columns = (
        Column("FROM TXG"),
        Column("ENTRIES", Kind.COUNT),
        Column("BLOCKS", Kind.COUNT),
        Column("BYTES", Kind.BYTES),
        Column("LOGS", Kind.COUNT),
        Column("LOGGED", Kind.COUNT),
    )
    rows = [
        (s.start_txg, s.entries, s.blocks, s.bytes, s.logs, s.allocated_blocks)
        for s in whole.sublists
    ]
    app.rows(columns, rows, lambda: whole)
    if app.on_tty and not (app.json or app.quiet):
        click.echo(destroy_forecast(whole))


def destroy_forecast(livelist: pool_pb2.GetLivelistResponse) -> str:
    """What destroying the dataset would cost, in a sentence."""
    if not livelist.exists:
        return "no livelist: dropped, or being rebuilt; destroying it now would walk its tree"
    return (
        f"{livelist.garbage_ratio:.0%} of the logged blocks are freed; destroying it reads "
        f"{livelist.total_entries:,} entries and gives back {human_bytes(livelist.total_bytes)} in "
        f"about {livelist.destroy_seconds:.3g} s"
    )


@click.command(cls=Verb)
@click.option("--interval", type=SPAN, default="1s", show_default=True, help="Between two looks.")
@click.option("--count", type=int, default=0, help="Looks.  [default: on a terminal no limit]")
@pass_app
def top(app: App, interval: timedelta, count: int) -> None:
    """Watch the pool: what is written, read and given back per second, and what is under way.

    In a pipe one look. Columns: txg, read, written and freed bytes per second, allocated and
    freeing bytes, reclaim jobs.
    """
    seconds = max(0.1, interval.total_seconds())
    watch = app.on_tty and not app.json and not app.quiet
    before, at = app.call(calls.pool()), time.monotonic()
    left = count or (0 if watch else 1)
    live = Live(console=console(), screen=watch and not count, auto_refresh=False)
    if watch:
        live.start()
    try:
        while True:
            time.sleep(seconds)
            now, then = app.call(calls.pool()), time.monotonic()
            rates = _rates(before, now, then - at)
            if watch:
                live.update(_screen(app, now, rates), refresh=True)
            else:
                _top_line(app, now, rates)
            before, at = now, then
            left -= 1
            if left == 0:
                return
    except KeyboardInterrupt:
        return
    finally:
        if watch:
            live.stop()


def _rates(before: pool_pb2.Pool, now: pool_pb2.Pool, seconds: float) -> tuple[int, int, int]:
    def rate(old: int, new: int) -> int:
        return int(max(0, new - old) / seconds)  # a restart sets counters back to 0

    return (
        rate(before.read_bytes_total, now.read_bytes_total),
        rate(before.written_bytes_total, now.written_bytes_total),
        rate(before.freed_bytes_total, now.freed_bytes_total),
    )


def _top_line(app: App, now: pool_pb2.Pool, rates: tuple[int, int, int]) -> None:
    columns = (
        Column("TXG"),
        Column("READ/S", Kind.BYTES),
        Column("WRITTEN/S", Kind.BYTES),
        Column("FREED/S", Kind.BYTES),
        Column("ALLOCATED", Kind.BYTES),
        Column("FREEING", Kind.BYTES),
        Column("JOBS", Kind.COUNT),
    )
    sizes = (now.allocated_bytes, now.freeing_bytes, now.reclaim_pending_count)
    document = {
        "pool": to_json(now),
        "read_bytes_per_second": rates[0],
        "written_bytes_per_second": rates[1],
        "freed_bytes_per_second": rates[2],
    }
    app.rows(columns, [(now.txg, *rates, *sizes)], lambda: document)


def _screen(app: App, now: pool_pb2.Pool, rates: tuple[int, int, int]) -> Group:
    used = now.allocated_bytes / now.capacity_bytes if now.capacity_bytes else 0.0
    filled = round(40 * used)
    lines = [
        f"[{'#' * filled}{'.' * (40 - filled)}] {used:.1%} of {human_bytes(now.capacity_bytes)},"
        f" {human_bytes(now.available_bytes)} available",
        f"read {human_bytes(rates[0])}/s  written {human_bytes(rates[1])}/s"
        f"  freed {human_bytes(rates[2])}/s  dirty {human_bytes(now.dirty_bytes)}  txg {now.txg}",
        f"{now.dataset_count:,} datasets ({now.clone_count:,} clones),"
        f" {now.snapshot_count:,} snapshots, {now.hold_count:,} holds",
        f"livelists: {now.livelist_entries:,} entries in {now.livelist_sublists:,} sublists;"
        f" reclaim: {now.reclaim_pending_count:,} jobs, {human_bytes(now.freeing_bytes)}",
    ]
    if now.alarms:
        lines.append("ALARMS: " + ", ".join(now.alarms))
    page = app.call(calls.list_operations(unfinished=True, page_size=10))
    rows = [_operation_row(OperationInfo.from_proto(m)) for m in page.operations]
    return Group(Text("\n".join(lines) + "\n"), table(OPERATION_COLUMNS, rows))


@click.command(cls=Verb)
@click.option("--limit", type=SPAN, default="1h", show_default=True, help="The longest wait.")
@pass_app
def check(app: App, limit: timedelta) -> None:
    """Check trees, lists, sums and space while the pool works. Exit 1: findings."""
    reply = app.call(calls.check(), limit.total_seconds())
    if app.json:
        app.document(reply)
    else:
        for finding in reply.findings:
            click.echo("\t".join((finding.invariant, finding.name or "-", finding.message)))
        if app.on_tty and not app.quiet:
            blocks = f"{reply.block_count:,} blocks of {reply.dataset_count:,} datasets"
            click.echo(f"{blocks} checked: {reply.total_findings:,} findings")
    if not reply.ok:
        raise click.exceptions.Exit(1)


@click.command(cls=Verb)
@pass_app
def version(app: App) -> None:
    """Show the versions of this client and of the server."""
    reply = app.call(calls.server_info())
    document = {"client_version": cowshed.__version__, "server": to_json(reply)}
    pairs: list[tuple[Column, Value]] = [
        (Column("client"), cowshed.__version__),
        (Column("server"), reply.version),
        (Column("api_revision"), reply.api_revision),
        (Column("pool_uid"), reply.pool_uid),
        (Column("format_version"), reply.format_version),
        (Column("features"), ",".join(reply.features)),
        (Column("boot_id"), reply.boot_id),
        (Column("start_time", Kind.TIME), to_datetime(reply, "start_time")),
    ]
    app.pairs(pairs, document)
