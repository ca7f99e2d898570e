# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable

from google.protobuf.internal.containers import RepeatedScalarFieldContainer
from google.protobuf.message import Message

class FieldMask(Message):
    paths: RepeatedScalarFieldContainer[str]
    def __init__(self, *, paths: Iterable[str] = ...) -> None: ...
