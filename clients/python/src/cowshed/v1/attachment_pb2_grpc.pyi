# SPDX-License-Identifier: Apache-2.0
import grpc

from cowshed.v1 import attachment_pb2

class AttachmentServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    ListAttachments: grpc.UnaryUnaryMultiCallable[
        attachment_pb2.ListAttachmentsRequest, attachment_pb2.ListAttachmentsResponse
    ]
    Detach: grpc.UnaryUnaryMultiCallable[
        attachment_pb2.DetachRequest, attachment_pb2.DetachResponse
    ]
    GetExport: grpc.UnaryUnaryMultiCallable[
        attachment_pb2.GetExportRequest, attachment_pb2.GetExportResponse
    ]

class AttachmentServiceServicer:
    def ListAttachments(
        self, request: attachment_pb2.ListAttachmentsRequest, context: grpc.ServicerContext
    ) -> attachment_pb2.ListAttachmentsResponse: ...
    def Detach(
        self, request: attachment_pb2.DetachRequest, context: grpc.ServicerContext
    ) -> attachment_pb2.DetachResponse: ...
    def GetExport(
        self, request: attachment_pb2.GetExportRequest, context: grpc.ServicerContext
    ) -> attachment_pb2.GetExportResponse: ...

def add_AttachmentServiceServicer_to_server(
    servicer: AttachmentServiceServicer, server: grpc.Server
) -> None: ...
