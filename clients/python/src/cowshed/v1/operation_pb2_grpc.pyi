# SPDX-License-Identifier: Apache-2.0
import grpc

from cowshed.v1 import operation_pb2

class OperationServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    GetOperation: grpc.UnaryUnaryMultiCallable[
        operation_pb2.GetOperationRequest, operation_pb2.Operation
    ]
    ListOperations: grpc.UnaryUnaryMultiCallable[
        operation_pb2.ListOperationsRequest, operation_pb2.ListOperationsResponse
    ]
    WaitOperations: grpc.UnaryUnaryMultiCallable[
        operation_pb2.WaitOperationsRequest, operation_pb2.WaitOperationsResponse
    ]

class OperationServiceServicer:
    def GetOperation(
        self, request: operation_pb2.GetOperationRequest, context: grpc.ServicerContext
    ) -> operation_pb2.Operation: ...
    def ListOperations(
        self, request: operation_pb2.ListOperationsRequest, context: grpc.ServicerContext
    ) -> operation_pb2.ListOperationsResponse: ...
    def WaitOperations(
        self, request: operation_pb2.WaitOperationsRequest, context: grpc.ServicerContext
    ) -> operation_pb2.WaitOperationsResponse: ...

def add_OperationServiceServicer_to_server(
    servicer: OperationServiceServicer, server: grpc.Server
) -> None: ...
