# SPDX-License-Identifier: Apache-2.0
"""destroy: of datasets, of subtrees, of snapshots."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta

import click

from cowshed import calls
from cowshed.cli.base import NAME, SPAN, App, Verb, force_option, pass_app
from cowshed.cli.output import human_bytes
from cowshed.operation import Operation
from cowshed.types import OperationInfo
from cowshed.v1 import dataset_pb2, operation_pb2

Reply = dataset_pb2.DestroyDatasetsResponse | dataset_pb2.DestroySnapshotsResponse


@dataclass(frozen=True)
class Target:
    """What a destroy is to destroy; sends the call that fits."""

    names: tuple[str, ...]
    prefix: str
    recursive: bool
    cascade: bool
    defer: bool
    allow_missing: bool
    keep: timedelta
    force: bool

    @property
    def snapshots(self) -> bool:
        """Whether it is about snapshots."""
        return any("@" in name for name in self.names)

    @property
    def needs_consent(self) -> bool:
        """Whether it may take more than is named."""
        return bool(self.prefix) or self.cascade or any("%" in name for name in self.names)

    def check(self) -> None:
        """Refuses what makes no sense."""
        if bool(self.names) == bool(self.prefix):
            raise click.UsageError("give either names or --prefix")
        if self.snapshots and not all("@" in name for name in self.names):
            raise click.UsageError("destroy datasets and snapshots in two calls")
        if self.snapshots and (self.recursive or self.cascade):
            raise click.UsageError("--recursive and --cascade are for datasets")
        if self.keep and self.snapshots:
            raise click.UsageError("--keep is for datasets")
        if self.defer and not self.snapshots:
            raise click.UsageError("--defer is for snapshots")
        if any("%" in name for name in self.names) and len(self.names) > 1:
            raise click.UsageError("destroy one range at a time")

    def send(self, app: App, *, validate_only: bool = False, plan_etag: str = "") -> Reply:
        """Destroys, or only says what it would."""
        if not self.snapshots:
            return app.call(
                calls.destroy(
                    self.names,
                    prefix=self.prefix,
                    recursive=self.recursive,
                    cascade=self.cascade,
                    allow_missing=self.allow_missing,
                    validate_only=validate_only,
                    plan_etag=plan_etag,
                    keep=self.keep,
                    force=self.force,
                )
            )
        names, dataset, first, last = self.names, "", "", ""
        if "%" in names[0]:
            dataset, _, span = names[0].partition("@")
            first, _, last = span.partition("%")
            names = ()
        return app.call(
            calls.destroy_snapshots(
                names,
                dataset=dataset,
                first=first,
                last=last,
                defer=self.defer,
                allow_missing=self.allow_missing,
                validate_only=validate_only,
                plan_etag=plan_etag,
                force=self.force,
            )
        )


@click.command(cls=Verb)
@click.argument("names", type=NAME, nargs=-1)
@click.option("--prefix", default="", help="A subtree: this dataset and all below it.")
@click.option("-r", "--recursive", is_flag=True, help="Destroy their snapshots, too.")
@click.option("--cascade", is_flag=True, help="Destroy the clones of these, too.")
@click.option("--defer", is_flag=True, help="Snapshots in use go with their last clone and hold.")
@click.option("--allow-missing", is_flag=True, help="Names that do not exist are fine.")
@click.option(
    "--keep", type=SPAN, default="0s", help="For this long `cow undestroy` brings them back."
)
@force_option
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be destroyed.")
@click.option("--wait", is_flag=True, help="Wait until the space is given back.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_app
def destroy(
    app: App,
    names: tuple[str, ...],
    prefix: str,
    recursive: bool,
    cascade: bool,
    defer: bool,
    allow_missing: bool,
    keep: timedelta,
    force: bool,
    dry_run: bool,
    wait: bool,
    yes: bool,
) -> None:
    """Destroy datasets, snapshots (ci/a@s) or a range of snapshots (ci/a@first%last).

    Names are free at once, the space comes back in the background. All are destroyed or none.
    What clients have attached is refused, unless --force cuts them.
    --prefix, --cascade and ranges ask first on a terminal, and need --yes elsewhere.
    """
    target = Target(names, prefix, recursive, cascade, defer, allow_missing, keep, force)
    target.check()
    if dry_run:
        reply = target.send(app, validate_only=True)
        _show_plan(app, reply)
        return
    plan_etag = ""
    if target.needs_consent and not yes:
        plan_etag = _ask(app, target)
    reply = target.send(app, plan_etag=plan_etag)
    if wait and reply.HasField("operation"):
        reply.operation.CopyFrom(wait_for(app, reply.operation))
    operation = reply.operation
    app.done(reply, _sentence(target, operation), operation.name, reply.txg)


@click.command(cls=Verb)
@click.argument("operation")
@pass_app
def undestroy(app: App, operation: str) -> None:
    """Bring back everything that the OPERATION of a `destroy --keep` took away.

    Columns in a pipe: operation, datasets, txg.
    """
    reply = app.call(calls.undestroy(operation))
    first = reply.datasets[0].name if reply.datasets else operation
    more = f" and {reply.count - 1:,} more" if reply.count > 1 else ""
    app.done(reply, f"brought back {first}{more}", operation, reply.count, reply.txg)


def _ask(app: App, target: Target) -> str:
    """Shows the plan and asks. Returns the etag of the plan that was agreed to."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("this may destroy more than is named: say --yes, or try --dry-run")
    plan = target.send(app, validate_only=True).plan
    if plan.HasField("blockers"):
        return plan.plan_etag  # it will be refused, with the reason
    for name in plan.names:
        click.echo(f"  {name}", err=True)
    named = plan.snapshot_count + plan.deferred_count if target.snapshots else plan.dataset_count
    more = named - len(plan.names)
    if more > 0:
        click.echo(f"  and {more} more", err=True)
    question = f"Destroy {_counts(plan)}, {human_bytes(plan.freed_bytes)}?"
    click.confirm(question, abort=True, err=True)
    return plan.plan_etag


def _sentence(target: Target, operation: operation_pb2.Operation) -> str:
    what = target.prefix or ", ".join(target.names[:3])
    more = f" and {len(target.names) - 3} more" if len(target.names) > 3 else ""
    if not operation.name:
        return f"destroyed {what}{more}"
    if operation.state == operation_pb2.OPERATION_STATE_WAITING:
        return f"destroyed {what}{more}; cow undestroy {operation.name} brings it back"
    if operation.finish_time.seconds:
        return f"destroyed {what}{more}: {human_bytes(operation.done_bytes)} came back"
    return f"destroyed {what}{more}; the space comes back through {operation.name}"


def _counts(plan: dataset_pb2.DestroyPlan) -> str:
    parts = []
    for count, noun in ((plan.dataset_count, "dataset"), (plan.snapshot_count, "snapshot")):
        if count:
            parts.append(f"{count:,} {noun}" + ("s" if count != 1 else ""))
    return " and ".join(parts) or "nothing"


def _show_plan(app: App, reply: Reply) -> None:
    plan = reply.plan
    if app.json:
        app.document(reply)
        return
    for name in plan.names:
        click.echo(name)
    if app.quiet or not app.on_tty:
        return
    took = f"in about {plan.predicted_seconds:.3g} s"
    click.echo(f"would destroy {_counts(plan)}, {human_bytes(plan.freed_bytes)} {took}")
    for blocker in plan.blockers.blockers:
        click.echo(f"in the way: {blocker.name} {blocker.tag or blocker.client}".rstrip())
    more = plan.blockers.total - len(plan.blockers.blockers)
    if more > 0:
        click.echo(f"and {more:,} more in the way")


def wait_for(
    app: App, message: operation_pb2.Operation, timeout: float | None = None
) -> operation_pb2.Operation:
    """Waits for an operation, showing its progress; raises its failure or TimeoutError."""
    operation = Operation(app.client.transport, OperationInfo.from_proto(message))
    with app.progress() as progress:
        task = progress.add_task(message.target, total=message.total_bytes or None)

        def show(info: OperationInfo) -> None:
            progress.update(task, completed=info.done_bytes, total=info.total_bytes or None)

        operation.wait(timeout, show=show if app.chatty else None)
    return app.call(calls.get_operation(operation.name))
