# SPDX-License-Identifier: Apache-2.0
"""The command `cow`.

Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 the server is unreachable or too late.
"""

from __future__ import annotations

import os
import sys

import click

from cowshed import errors
from cowshed.channel import Tls
from cowshed.cli import attach, datasets, destroy, inspect, snapshots, transfer
from cowshed.cli import upkeep as upkeep  # adds commands to `cow pool`
from cowshed.cli.base import App, Verb, VerbGroup, Verbs, output_options
from cowshed.cli.output import Json, dump, plain
from cowshed.types import Blocker

REFUSED, USAGE, UNREACHABLE = 1, 2, 3
_BLOCKERS_SHOWN = 20


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-a", "--address", envvar="COWSHED_ADDRESS", help="host:port or unix:/path.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    envvar="COWSHED_TIMEOUT",
    show_default=True,
    help="Seconds after which a call is given up.",
)
@click.option(
    "--wait-ready",
    type=click.FloatRange(min=0),
    default=3.0,
    show_default=True,
    help="Seconds to wait for the server.",
)
@click.option("--tls-ca", envvar="COWSHED_TLS_CA", help="PEM file of the certificates to trust.")
@click.option("--tls-cert", envvar="COWSHED_TLS_CERT", help="PEM file of our certificate.")
@click.option("--tls-key", envvar="COWSHED_TLS_KEY", help="PEM file of our key.")
@click.pass_obj
def cli(
    app: App,
    address: str | None,
    timeout: float,
    wait_ready: float,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Create, snapshot, clone and destroy datasets.

    On a terminal results are tables; in a pipe they are tab-separated lines without a header, sizes
    in bytes and times in RFC 3339; with --json one JSON document.
    """
    app.address, app.timeout, app.wait_ready = address, timeout, wait_ready
    if tls_ca or tls_cert:
        app.tls = Tls(tls_ca, tls_cert, tls_key)


cli.params.extend(output_options())
for _module in (datasets, destroy, snapshots, attach, transfer, inspect):
    for _verb in vars(_module).values():
        if isinstance(_verb, (Verb, VerbGroup)) and _verb.name != "reclaim":
            cli.add_command(_verb)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(cow completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "cow", "_COW_COMPLETE").source())


def main(arguments: list[str] | None = None) -> int:
    """Runs `cow` and returns its exit status."""
    app = App()
    try:
        return run(app, arguments)
    finally:
        app.close()


def run(app: App, arguments: list[str] | None) -> int:
    """Runs a verb; turns what it raises into messages and an exit status."""
    try:
        cli.main(arguments, prog_name="cow", obj=app, standalone_mode=False)
        sys.stdout.flush()
        return 0
    except errors.CowshedError as error:
        return _report_error(app, error)
    except TimeoutError as error:
        return _report(app, "DEADLINE_EXCEEDED", str(error), UNREACHABLE)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return _report(app, "CANCELLED", "aborted", REFUSED)
    except click.UsageError as error:
        if app.json:
            return _report(app, "USAGE", error.format_message(), USAGE)
        error.show()
        return USAGE
    except click.ClickException as error:
        return _report(app, "FAILED", error.format_message(), REFUSED)
    except BrokenPipeError:
        # Whoever read our output has had enough. Python would complain again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except OSError as error:
        return _report(app, "FAILED", str(error), REFUSED)
    except ValueError as error:
        return _report(app, "USAGE", str(error), USAGE)


def _report_error(app: App, error: errors.CowshedError) -> int:
    status = REFUSED
    if isinstance(error, errors.DeadlineExceededError):
        status = UNREACHABLE
    elif isinstance(error, errors.UnavailableError) and error.reason != "POOL_SUSPENDED":
        status = UNREACHABLE
    return _report(app, error.code, error.message, status, error)


def _report(
    app: App, code: str, message: str, status: int, error: errors.CowshedError | None = None
) -> int:
    blockers = _blockers(error)
    total = error.blockers.total if error is not None else 0
    if app.json:
        click.echo(dump({"error": _error_json(code, message, error, blockers, total)}))
    click.echo(f"cow: {message}", err=True)
    shown = blockers[:_BLOCKERS_SHOWN] if sys.stderr.isatty() else blockers
    for blocker in shown:
        click.echo(f"  {_blocker_text(blocker)}", err=True)
    if total > len(shown):
        click.echo(f"  and {total - len(shown)} more", err=True)
    return status


def _blockers(error: errors.CowshedError | None) -> list[Blocker]:
    if error is None:
        return []
    try:
        return list(error.blockers)
    except errors.CowshedError:
        return list(error.blockers.first)  # what came with the error is better than nothing


def _error_json(
    code: str,
    message: str,
    error: errors.CowshedError | None,
    blockers: list[Blocker],
    total: int,
) -> Json:
    return {
        "code": code,
        "reason": error.reason if error is not None else "",
        "message": message,
        "metadata": error.metadata if error is not None else {},
        "blockers": [
            {
                "kind": f"BLOCKER_KIND_{blocker.kind.name}",
                "name": blocker.name,
                "blocked_name": blocker.blocked_name,
                "tag": blocker.tag,
                "attachment": blocker.attachment,
                "client": blocker.client,
                "since_time": plain(blocker.since_time) if blocker.since_time else None,
            }
            for blocker in blockers
        ],
        "total": total,
    }


def _blocker_text(blocker: Blocker) -> str:
    if blocker.client:
        return f"attachment {blocker.attachment} of {blocker.name} by {blocker.client}"
    kind = blocker.kind.name.lower().replace("_", " ")
    what = f"{kind} {blocker.tag} on {blocker.name}" if blocker.tag else f"{kind} {blocker.name}"
    return f"{what} (of {blocker.blocked_name})" if blocker.blocked_name else what
