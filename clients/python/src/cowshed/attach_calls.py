# SPDX-License-Identifier: Apache-2.0
"""The calls of AttachmentService as values, as `cowshed.calls` has the others."""

from __future__ import annotations

from google.protobuf.message import Message

from cowshed.calls import Call, R
from cowshed.types import Name, name_of
from cowshed.v1 import attachment_pb2


def _attachment(method: str, request: Message, reply: type[R]) -> Call[R]:
    return Call(f"/cowshed.v1.AttachmentService/{method}", request, reply)


def list_attachments(
    name: Name = "", *, prefix: str = "", page_size: int = 0, page_token: str = ""
) -> Call[attachment_pb2.ListAttachmentsResponse]:
    """AttachmentService.ListAttachments, one page."""
    request = attachment_pb2.ListAttachmentsRequest(
        name=name_of(name), prefix=prefix, page_size=page_size, page_token=page_token
    )
    return _attachment("ListAttachments", request, attachment_pb2.ListAttachmentsResponse)


def detach(name: Name = "", *, attachment: str = "") -> Call[attachment_pb2.DetachResponse]:
    """AttachmentService.Detach: all of `name`, or one."""
    request = attachment_pb2.DetachRequest(name=name_of(name), attachment=attachment)
    return _attachment("Detach", request, attachment_pb2.DetachResponse)


def get_export(
    name: Name, *, read_only: bool = False, shared: bool = False
) -> Call[attachment_pb2.GetExportResponse]:
    """AttachmentService.GetExport."""
    request = attachment_pb2.GetExportRequest(
        name=name_of(name), read_only=read_only, shared=shared
    )
    return _attachment("GetExport", request, attachment_pb2.GetExportResponse)
