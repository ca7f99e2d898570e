# SPDX-License-Identifier: Apache-2.0
"""Reads from a FileDescriptorSet with source information which elements lack a comment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2

# Field numbers that make up a location's path, see google/protobuf/descriptor.proto.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6  # in FileDescriptorProto
_FIELD, _NESTED_MESSAGE, _NESTED_ENUM, _ONEOF = 2, 3, 4, 8  # in DescriptorProto
_VALUE = 2  # in EnumDescriptorProto
_METHOD = 2  # in ServiceDescriptorProto

_Element = tuple[str, tuple[int, ...]]


def _enum(enum: Any, name: str, path: tuple[int, ...]) -> Iterator[_Element]:
    yield f"{name}.{enum.name}", path
    for index, value in enumerate(enum.value):
        yield f"{name}.{enum.name}.{value.name}", (*path, _VALUE, index)


def _message(message: Any, name: str, path: tuple[int, ...]) -> Iterator[_Element]:
    if message.options.map_entry:
        return
    name = f"{name}.{message.name}"
    yield name, path
    for index, field in enumerate(message.field):
        yield f"{name}.{field.name}", (*path, _FIELD, index)
    for index, nested in enumerate(message.nested_type):
        yield from _message(nested, name, (*path, _NESTED_MESSAGE, index))
    for index, enum in enumerate(message.enum_type):
        yield from _enum(enum, name, (*path, _NESTED_ENUM, index))


def _elements(file: Any) -> Iterator[_Element]:
    for index, message in enumerate(file.message_type):
        yield from _message(message, file.package, (_MESSAGE, index))
    for index, enum in enumerate(file.enum_type):
        yield from _enum(enum, file.package, (_ENUM, index))
    for index, service in enumerate(file.service):
        name = f"{file.package}.{service.name}"
        yield name, (_SERVICE, index)
        for position, method in enumerate(service.method):
            yield f"{name}.{method.name}", (_SERVICE, index, _METHOD, position)


def uncommented(descriptor_set: descriptor_pb2.FileDescriptorSet, package: str) -> list[str]:
    """Names of the package's messages, fields, enums, values, services, methods without comment."""
    findings = []
    for file in descriptor_set.file:
        if file.package != package:
            continue
        commented = {
            tuple(location.path)
            for location in file.source_code_info.location
            if location.leading_comments.strip() or location.trailing_comments.strip()
        }
        findings += [f"{file.name}: {name} has no comment"
                     for name, path in _elements(file) if path not in commented]
    return findings
