# SPDX-License-Identifier: Apache-2.0
"""What all commands of `cow` share: the connection, the options, the ways to print a result."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

import click
from google.protobuf.message import Message
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from cowshed import calls
from cowshed.channel import Tls
from cowshed.cli.output import Column, Json, Value, console, dump, human, plain, table, to_json
from cowshed.client import Client, connect
from cowshed.errors import CowshedError

R = TypeVar("R", bound=Message)


@dataclass
class App:
    """One run of `cow`."""

    address: str | None = None
    timeout: float = 30.0
    wait_ready: float = 3.0
    tls: Tls | None = None
    json: bool = False
    quiet: bool = False
    _client: Client | None = None

    @property
    def client(self) -> Client:
        """The connection, made when first needed."""
        if self._client is None:
            self._client = connect(self.address, self.timeout, self.wait_ready, self.tls)
        return self._client

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._client is not None:
            self._client.close()

    def call(self, call: calls.Call[R], timeout: float | None = None) -> R:
        """Sends a call."""
        return self.client.call(call, timeout)

    @property
    def on_tty(self) -> bool:
        """Whether a person reads stdout."""
        return sys.stdout.isatty()

    @property
    def chatty(self) -> bool:
        """Whether to show progress: a person watches and wants words."""
        return sys.stderr.isatty() and not self.json and not self.quiet

    def document(self, document: Message | Json) -> None:
        """Prints the one document of --json."""
        click.echo(dump(to_json(document) if isinstance(document, Message) else document))

    def rows(
        self,
        columns: Sequence[Column],
        rows: Iterable[Sequence[Value]],
        document: Callable[[], Message | Json],
    ) -> None:
        """Prints rows; the first column is the name that -q asks for."""
        if self.json:
            self.document(document())
        elif self.quiet:
            for row in rows:
                click.echo(plain(row[0]))
        elif self.on_tty:
            console().print(table(columns, rows))
        else:
            for row in rows:
                click.echo("\t".join(map(plain, row)))

    def pairs(self, pairs: Sequence[tuple[Column, Value]], document: Message | Json) -> None:
        """Prints one object, a line for each of its properties."""
        if self.json:
            self.document(document)
        elif self.quiet:
            click.echo(plain(pairs[0][1]))
        elif self.on_tty:
            width = max(len(column.title) for column, _ in pairs)
            for column, value in pairs:
                click.echo(f"{column.title:<{width}}  {human(value, column.kind)}")
        else:
            for column, value in pairs:
                click.echo(f"{column.title}\t{plain(value)}")

    def done(self, reply: Message | Json, sentence: str, *row: Value) -> None:
        """Prints what a command did: a sentence for people, a line for programs."""
        if self.json:
            self.document(reply)
        elif self.quiet:
            click.echo(plain(row[0]))
        elif self.on_tty:
            click.echo(sentence)
        else:
            click.echo("\t".join(map(plain, row)))

    def progress(self) -> Progress:
        """A progress bar on stderr, for people only."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            # Disabled, it would still end with a line break.
            console=console(stderr=True) if self.chatty else Console(quiet=True),
            disable=not self.chatty,
            transient=True,
        )


pass_app = click.make_pass_decorator(App)


def _flag(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def remember(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        app = context.find_object(App)
        if value and app is not None:
            setattr(app, name, True)

    return remember


def output_options() -> list[click.Option]:
    """--json and -q, which stand before or behind the verb."""
    return [
        click.Option(
            ["--json", "json_"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_flag("json"),
            help="Print one JSON document.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_flag("quiet"),
            help="Print names only.",
        ),
    ]


class Verb(click.Command):
    """A command of `cow`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(output_options())


class VerbGroup(click.Group):
    """A command of `cow` that has commands of its own, and does something without one."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, invoke_without_command=True, **kwargs)
        self.params.extend(output_options())


class Verbs(click.Group):
    """The commands of `cow`."""

    command_class = Verb


class Size(click.ParamType):
    """A number of bytes: 4096, 16k, 1.5G; units are powers of 1024."""

    name = "size"
    _PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number."""
        if isinstance(value, int):
            return value
        match = self._PATTERN.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no size; expected e.g. 4096, 16k or 10G", param, ctx)
        size = Decimal(match[1]) * 1024 ** " kmgtp".index(match[2].lower() or " ")
        if size >= 1 << 63:
            self.fail(f"{value!r} is more than any dataset can have", param, ctx)
        return int(size)


class Span(click.ParamType):
    """A span of time: 90s, 30m, 2h, 7d, 1w, or several, as in 1h30m."""

    name = "time"
    _UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """The span."""
        if isinstance(value, timedelta):
            return value
        text = str(value).strip().lower()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return self._span(value, float(text))
        if not re.fullmatch(r"(\d+(\.\d+)?[smhdw])+", text):
            self.fail(f"{value!r} is no span of time; expected e.g. 90s, 2h or 7d", param, ctx)
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw])", text)
        return self._span(value, sum(float(n) * self._UNITS[unit] for n, unit in parts))

    def _span(self, value: Any, seconds: float) -> timedelta:
        try:
            return timedelta(seconds=seconds)
        except OverflowError:
            self.fail(f"{value!r} is too long")


class Label(click.ParamType):
    """A label: key=value."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Key and value."""
        if isinstance(value, tuple):
            return value[0], value[1]
        key, separator, text = str(value).partition("=")
        if not separator or not key:
            self.fail(f"{value!r} is no label; expected key=value", param, ctx)
        return key, text


class DatasetName(click.ParamType):
    """A name; completed by asking the server."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Names that begin like this, the first hundred."""
        app = ctx.find_object(App) or App()
        prefix = incomplete.rpartition("/")[0]
        try:
            with connect(app.address, timeout=2, wait_ready=1, tls=app.tls) as client:
                reply = client.call(calls.list_datasets(prefix, page_size=1000))
        except (CowshedError, ValueError):
            return []
        names = [d.name for d in reply.datasets if d.name.startswith(incomplete)]
        return [click.shell_completion.CompletionItem(name) for name in names[:100]]


SIZE = Size()
SPAN = Span()
LABEL = Label()
NAME = DatasetName()

label_option = click.option(
    "-l", "--label", "labels", type=LABEL, multiple=True, help="A label; may be repeated."
)
ttl_option = click.option("--ttl", type=SPAN, help="Let the server destroy it after this time.")
force_option = click.option("--force", is_flag=True, help="Cut the attachments in the way.")
etag_option = click.option("--etag", default="", help="Only if the dataset has this etag.")
