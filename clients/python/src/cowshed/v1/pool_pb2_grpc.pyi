# SPDX-License-Identifier: Apache-2.0
import grpc

from cowshed.v1 import pool_pb2

class PoolServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    GetServerInfo: grpc.UnaryUnaryMultiCallable[
        pool_pb2.GetServerInfoRequest, pool_pb2.GetServerInfoResponse
    ]
    GetPool: grpc.UnaryUnaryMultiCallable[
        pool_pb2.GetPoolRequest, pool_pb2.Pool
    ]
    UpdateReclaim: grpc.UnaryUnaryMultiCallable[
        pool_pb2.UpdateReclaimRequest, pool_pb2.UpdateReclaimResponse
    ]
    GetSpace: grpc.UnaryUnaryMultiCallable[
        pool_pb2.GetSpaceRequest, pool_pb2.GetSpaceResponse
    ]
    GetLivelist: grpc.UnaryUnaryMultiCallable[
        pool_pb2.GetLivelistRequest, pool_pb2.GetLivelistResponse
    ]
    SyncPool: grpc.UnaryUnaryMultiCallable[
        pool_pb2.SyncPoolRequest, pool_pb2.SyncPoolResponse
    ]
    Check: grpc.UnaryUnaryMultiCallable[
        pool_pb2.CheckRequest, pool_pb2.CheckResponse
    ]
    StartScrub: grpc.UnaryUnaryMultiCallable[
        pool_pb2.StartScrubRequest, pool_pb2.StartScrubResponse
    ]
    CancelScrub: grpc.UnaryUnaryMultiCallable[
        pool_pb2.CancelScrubRequest, pool_pb2.CancelScrubResponse
    ]
    Backup: grpc.UnaryUnaryMultiCallable[
        pool_pb2.BackupRequest, pool_pb2.BackupResponse
    ]

class PoolServiceServicer:
    def GetServerInfo(
        self, request: pool_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> pool_pb2.GetServerInfoResponse: ...
    def GetPool(
        self, request: pool_pb2.GetPoolRequest, context: grpc.ServicerContext
    ) -> pool_pb2.Pool: ...
    def UpdateReclaim(
        self, request: pool_pb2.UpdateReclaimRequest, context: grpc.ServicerContext
    ) -> pool_pb2.UpdateReclaimResponse: ...
    def GetSpace(
        self, request: pool_pb2.GetSpaceRequest, context: grpc.ServicerContext
    ) -> pool_pb2.GetSpaceResponse: ...
    def GetLivelist(
        self, request: pool_pb2.GetLivelistRequest, context: grpc.ServicerContext
    ) -> pool_pb2.GetLivelistResponse: ...
    def SyncPool(
        self, request: pool_pb2.SyncPoolRequest, context: grpc.ServicerContext
    ) -> pool_pb2.SyncPoolResponse: ...
    def Check(
        self, request: pool_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> pool_pb2.CheckResponse: ...
    def StartScrub(
        self, request: pool_pb2.StartScrubRequest, context: grpc.ServicerContext
    ) -> pool_pb2.StartScrubResponse: ...
    def CancelScrub(
        self, request: pool_pb2.CancelScrubRequest, context: grpc.ServicerContext
    ) -> pool_pb2.CancelScrubResponse: ...
    def Backup(
        self, request: pool_pb2.BackupRequest, context: grpc.ServicerContext
    ) -> pool_pb2.BackupResponse: ...

def add_PoolServiceServicer_to_server(
    servicer: PoolServiceServicer, server: grpc.Server
) -> None: ...
