# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import grpc

from cowshed.v1 import data_pb2

class DataServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    ReadRange: grpc.UnaryUnaryMultiCallable[
        data_pb2.ReadRangeRequest, data_pb2.ReadRangeResponse
    ]
    WriteRange: grpc.UnaryUnaryMultiCallable[
        data_pb2.WriteRangeRequest, data_pb2.WriteRangeResponse
    ]
    Read: grpc.UnaryStreamMultiCallable[
        data_pb2.ReadRequest, data_pb2.ReadChunk
    ]
    Write: grpc.StreamStreamMultiCallable[
        data_pb2.WriteRequest, data_pb2.WriteAck
    ]
    Flush: grpc.UnaryUnaryMultiCallable[
        data_pb2.FlushRequest, data_pb2.FlushResponse
    ]
    Diff: grpc.UnaryStreamMultiCallable[
        data_pb2.DiffRequest, data_pb2.DiffChunk
    ]

class DataServiceServicer:
    def ReadRange(
        self, request: data_pb2.ReadRangeRequest, context: grpc.ServicerContext
    ) -> data_pb2.ReadRangeResponse: ...
    def WriteRange(
        self, request: data_pb2.WriteRangeRequest, context: grpc.ServicerContext
    ) -> data_pb2.WriteRangeResponse: ...
    def Read(
        self, request: data_pb2.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[data_pb2.ReadChunk]: ...
    def Write(
        self, request_iterator: Iterator[data_pb2.WriteRequest], context: grpc.ServicerContext
    ) -> Iterator[data_pb2.WriteAck]: ...
    def Flush(
        self, request: data_pb2.FlushRequest, context: grpc.ServicerContext
    ) -> data_pb2.FlushResponse: ...
    def Diff(
        self, request: data_pb2.DiffRequest, context: grpc.ServicerContext
    ) -> Iterator[data_pb2.DiffChunk]: ...

def add_DataServiceServicer_to_server(
    servicer: DataServiceServicer, server: grpc.Server
) -> None: ...
