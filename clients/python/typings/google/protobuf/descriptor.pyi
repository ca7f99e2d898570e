# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping, Sequence

class EnumValueDescriptor:
    name: str
    number: int

class EnumDescriptor:
    name: str
    full_name: str
    values: Sequence[EnumValueDescriptor]
    values_by_name: Mapping[str, EnumValueDescriptor]
    values_by_number: Mapping[int, EnumValueDescriptor]

class MessageOptions:
    map_entry: bool

class OneofDescriptor:
    name: str
    fields: Sequence[FieldDescriptor]

class FieldDescriptor:
    TYPE_BYTES: int
    TYPE_ENUM: int
    TYPE_MESSAGE: int
    LABEL_REPEATED: int
    name: str
    number: int
    type: int
    label: int
    has_presence: bool
    containing_oneof: OneofDescriptor | None
    message_type: Descriptor | None
    enum_type: EnumDescriptor | None

class Descriptor:
    name: str
    full_name: str
    fields: Sequence[FieldDescriptor]
    fields_by_name: Mapping[str, FieldDescriptor]
    def GetOptions(self) -> MessageOptions: ...

class MethodDescriptor:
    name: str
    full_name: str
    input_type: Descriptor
    output_type: Descriptor
    client_streaming: bool
    server_streaming: bool

class ServiceDescriptor:
    name: str
    full_name: str
    methods: Sequence[MethodDescriptor]
    methods_by_name: Mapping[str, MethodDescriptor]

class FileDescriptor:
    name: str
    package: str
    message_types_by_name: Mapping[str, Descriptor]
    enum_types_by_name: Mapping[str, EnumDescriptor]
    services_by_name: Mapping[str, ServiceDescriptor]
