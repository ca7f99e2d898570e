# SPDX-License-Identifier: Apache-2.0
"""What `cow` prints: tables for people, tab-separated lines for pipes, JSON for programs."""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table

Json = Any
Value = str | int | bool | datetime | timedelta | None


def to_json(message: Message) -> Json:
    """A message as JSON: keys are field names, numbers are numbers, nothing is left out.

    Absent messages and absent optional fields are null, times RFC 3339, durations seconds, enum
    values their names, bytes base64.
    """
    if isinstance(message, Timestamp):
        return message.ToJsonString()
    if isinstance(message, Duration):
        return message.ToTimedelta().total_seconds()
    return {field.name: _field_to_json(message, field) for field in message.DESCRIPTOR.fields}


def _field_to_json(message: Message, field: FieldDescriptor) -> Json:
    value = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return {key: _scalar_to_json(entry.fields_by_name["value"], value[key]) for key in value}
    if field.label == FieldDescriptor.LABEL_REPEATED:
        return [_scalar_to_json(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _scalar_to_json(field, value)


def _scalar_to_json(field: FieldDescriptor, value: Any) -> Json:
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode("ascii")
    return value


def dump(document: Json) -> str:
    """One JSON document."""
    return json.dumps(document, indent=2, ensure_ascii=False)


class Kind(enum.Enum):
    """What a column holds, and so how it is shown to people."""

    TEXT = "text"
    COUNT = "count"
    BYTES = "bytes"
    TIME = "time"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    kind: Kind = Kind.TEXT


def human_bytes(count: float) -> str:
    """1536 as `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            break
        count /= 1024
    else:
        unit = "PiB"
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def human_time(when: datetime) -> str:
    """A time in the local time zone, or how far ahead it is."""
    ahead = when - datetime.now(timezone.utc)
    if ahead > timedelta(0):
        return f"in {human_span(ahead.total_seconds())}"
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def human_span(seconds: float) -> str:
    """7,260 seconds as `2 h 1 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours, days = int(seconds / 60), int(seconds / 3600), int(seconds / 86400)
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def human(value: Value, kind: Kind) -> str:
    """A value for people."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return human_time(value)
    if isinstance(value, timedelta):
        return human_span(value.total_seconds())
    if kind is Kind.BYTES and isinstance(value, int):
        return human_bytes(value)
    if kind is Kind.COUNT and isinstance(value, int):
        return f"{value:,}"
    return str(value)


def plain(value: Value) -> str:
    """A value for programs: whole numbers, RFC 3339 times, `-` for nothing."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}"
    return str(value)


def labels_text(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as `a=1,b=2`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels))


def table(columns: Sequence[Column], rows: Iterable[Sequence[Value]]) -> Table:
    """Rows as a table for people."""
    result = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        left = column.kind in (Kind.TEXT, Kind.TIME)
        result.add_column(column.title, justify="left" if left else "right", overflow="fold")
    for row in rows:
        result.add_row(*(human(v, c.kind) for v, c in zip(row, columns, strict=True)))
    return result


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: no markup, no emoji, no guessing at numbers."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
