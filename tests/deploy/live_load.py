# SPDX-License-Identifier: Apache-2.0
"""The ordinary load that a server is put under while Prometheus scrapes it."""

from __future__ import annotations

import errno
import threading
import time

import grpc
from google.protobuf.duration_pb2 import Duration
from live_server import Counts, CountingClient, Device, Server, wait_for

from cowshed.v1 import data_pb2 as data
from cowshed.v1 import dataset_pb2 as dataset
from cowshed.v1 import operation_pb2 as operation
from cowshed.v1 import pool_pb2 as pool
from cowshed.v1 import snapshot_pb2 as snapshot

MIB = 1 << 20
WORKERS = 3
LOAD_SECONDS = 25
SECOND = Duration(seconds=1)


def create(client: CountingClient, name: str, size: int) -> None:
    client.call("CreateDataset", dataset.CreateDatasetRequest(name=name, size_bytes=size))


class Worker:
    """One client: clones, writes, reads, rolls back and destroys until the time is up."""

    def __init__(self, server: Server, counts: Counts, number: int) -> None:
        self.counts = counts
        self.server = server
        self.client = CountingClient(server, counts)
        self.base = f"load/w{number}"
        self.operations: list[str] = []
        self.failure: BaseException | None = None
        self.device: Device | None = None

    def run(self, until: float) -> None:
        try:
            self.prepare()
            turn = 0
            while turn < 4 or time.monotonic() < until:
                self.turn(turn)
                turn += 1
            self.finish()
        except BaseException as error:  # handed to the test's thread
            self.failure = error
        finally:
            if self.device:
                self.device.close()
            self.client.close()

    def prepare(self) -> None:
        name = f"{self.base}/golden"
        create(self.client, name, 64 * MIB)
        self.write_stream(name, 8)
        self.snapshot(f"{name}@base")

    def turn(self, turn: int) -> None:
        clone = f"{self.base}/clone{turn}"
        request = dataset.CloneDatasetRequest(
            source=f"{self.base}/golden@base", name=clone, request_id=f"{clone}-id")
        first = self.client.call("CloneDataset", request)
        replayed = self.client.call("CloneDataset", request)
        assert first.dataset.uid == replayed.dataset.uid
        self.counts.add("replays")

        if turn % 4 == 0:
            self.use_device(clone)
        for block in range(4):
            self.write(clone, (turn * 7 + block * 13) % 60 * MIB, bytes([turn % 251 + 1]) * 65536)
        self.client.call("Flush", data.FlushRequest(dataset=clone))
        self.read(clone, turn % 60 * MIB, 65536)
        self.client.call("GetDataset", dataset.GetDatasetRequest(name=f"{clone}-missing"),
                         grpc.StatusCode.NOT_FOUND)

        if turn % 2:
            name = f"{clone}@s"
            self.snapshot(name)
            self.client.call("HoldSnapshot", snapshot.HoldSnapshotRequest(snapshot=name, tag="t"))
            self.write(clone, 0, b"\x07" * 65536)
            self.client.call("DestroyDatasets", dataset.DestroyDatasetsRequest(names=[clone]),
                             grpc.StatusCode.FAILED_PRECONDITION)
            reply = self.client.call("RollbackDataset", dataset.RollbackDatasetRequest(name=clone))
            self.counts.add("destroyed", "rollback")
            self.operations.append(reply.operation.name)
            self.client.call("ReleaseHold", snapshot.ReleaseHoldRequest(snapshot=name, tag="t"))
            self.destroy_snapshots(name)
        self.attach_and_cut(f"{self.base}/golden" + ("?read-only" if turn % 2 else "?shared"))
        if turn % 3 == 0:
            self.read_stream(f"{self.base}/golden@base")
            self.write_stream(clone, 2)
        if turn >= 2:  # some clones live a while, and some can be brought back for a second
            window = SECOND if turn % 3 == 1 else None
            self.destroy(f"{self.base}/clone{turn - 2}", "clone", window)
        self.last = turn

    def use_device(self, name: str) -> None:
        """Reads, writes and flushes through a device, and asks for what is not there."""
        device = Device(self.server, name)
        try:
            for block in range(64):
                assert device.ask(Device.WRITE, block * 65536, 65536, bytes([block + 1]) * 65536) == 0
                assert device.ask(Device.READ, block * 65536, 65536) == 0
                self.counts.add("written", by=65536)
                self.counts.add("read", by=65536)
            assert device.ask(Device.FLUSH) == 0
            # Little enough for the intent log.
            assert device.ask(Device.WRITE, 0, 4096, bytes([1]) * 4096) == 0
            assert device.ask(Device.FLUSH) == 0
            self.counts.add("written", by=4096)
            assert device.ask(Device.READ, device.size_bytes, 1) == errno.EINVAL
            self.counts.add("nbd", "read", by=65)
            self.counts.add("nbd", "write", by=65)
            self.counts.add("nbd", "flush", by=2)
            self.counts.add("nbd", "refused")
            self.counts.add("nbd", "written", by=64 * 65536 + 4096)
        finally:
            device.close()

    def attach_and_cut(self, export: str) -> None:
        """Attaches an export until the next turn, and one of its own that a destroy cuts."""
        if self.device:
            self.device.close()
        self.device = Device(self.server, export)
        name = f"{self.base}/attached"
        create(self.client, name, MIB)
        device = Device(self.server, name)
        request = dataset.DestroyDatasetsRequest(names=[name])
        self.client.call("DestroyDatasets", request, grpc.StatusCode.FAILED_PRECONDITION)
        request.force = True
        self.client.call("DestroyDatasets", request)
        self.counts.add("destroyed", "dataset")
        assert device.closed()
        self.counts.add("cut")
        device.close()

    def finish(self) -> None:
        """Leaves the golden dataset, its snapshot and the last clone."""
        self.destroy(f"{self.base}/clone{self.last - 1}", "clone")
        name = f"{self.base}/short-lived"
        create(self.client, name, MIB)
        self.write(name, 0, b"\x09" * MIB)
        self.client.call("Flush", data.FlushRequest(dataset=name))
        self.destroy(name, "dataset")
        left = [name for name in self.operations if name]  # none where nothing was to be freed
        while left:
            request = operation.WaitOperationsRequest(names=left[:500])
            request.timeout.FromSeconds(50)
            assert self.client.call("WaitOperations", request).done, "reclaim takes too long"
            left = left[500:]

    def write(self, name: str, offset: int, content: bytes) -> None:
        self.client.call("WriteRange", data.WriteRangeRequest(
            dataset=name, offset_bytes=offset, data=content))
        self.counts.add("written", by=len(content))

    def read(self, name: str, offset: int, length: int) -> None:
        reply = self.client.call("ReadRange", data.ReadRangeRequest(
            name=name, offset_bytes=offset, length_bytes=length))
        self.counts.add("read", by=len(reply.data))

    def write_stream(self, name: str, chunks: int) -> None:
        def messages():
            yield data.WriteRequest(header=data.WriteHeader(dataset=name))
            for number in range(chunks):
                self.counts.add("written", by=MIB)
                yield data.WriteRequest(chunk=data.WriteChunk(
                    offset_bytes=number * MIB, data=bytes([number + 1]) * MIB))
            yield data.WriteRequest(chunk=data.WriteChunk(flush=True))

        acks = list(self.client.stream("Write", messages()))
        assert acks[-1].accepted_bytes == chunks * MIB
        self.counts.add("sent", "Write", by=chunks + 2)

    def read_stream(self, name: str) -> None:
        total = 0
        for chunk in self.client.stream("Read", data.ReadRequest(name=name)):
            total += len(chunk.data) + chunk.zero_bytes
            self.counts.add("read", by=len(chunk.data))
        assert total == 64 * MIB
        self.counts.add("sent", "Read")

    def snapshot(self, name: str) -> None:
        self.client.call("CreateSnapshots", snapshot.CreateSnapshotsRequest(names=[name]))

    def destroy_snapshots(self, name: str) -> None:
        request = dataset.DestroySnapshotsRequest(names=[name])
        reply = self.client.call("DestroySnapshots", request)
        self.counts.add("destroyed", "snapshot")
        self.operations.append(reply.operation.name)

    def destroy(self, name: str, kind: str, window: Duration | None = None) -> None:
        request = dataset.DestroyDatasetsRequest(names=[name], reclaim_after=window)
        reply = self.client.call("DestroyDatasets", request)
        self.counts.add("destroyed", kind)
        self.operations.append(reply.operation.name)


class Keeper(Worker):
    """Who runs the pool: a scrub that takes a few seconds, then a backup."""

    def __init__(self, server: Server, counts: Counts) -> None:
        super().__init__(server, counts, WORKERS)
        self.backup = str(server.pool.parent / "backup")

    def run(self, until: float) -> None:
        try:
            wait_for("something to scrub", self.has_data)
            reply = self.client.call("StartScrub", pool.StartScrubRequest(
                rate_bytes_per_second=4 * MIB))
            self.wait(reply.operation.name)
            reply = self.client.call("Backup", pool.BackupRequest(directory=self.backup))
            self.wait(reply.operation.name)
        except BaseException as error:  # handed to the test's thread
            self.failure = error
        finally:
            self.client.close()

    def has_data(self) -> bool:
        return self.server.scrape()["cowshed_pool_allocated_bytes"] > 16 * MIB

    def wait(self, name: str) -> None:
        request = operation.WaitOperationsRequest(names=[name])
        request.timeout.FromSeconds(50)
        reply = self.client.call("WaitOperations", request)
        assert reply.operations[0].state == operation.OPERATION_STATE_SUCCEEDED, reply


def run_load(server: Server, counts: Counts) -> None:
    until = time.monotonic() + LOAD_SECONDS
    workers = [Worker(server, counts, number) for number in range(WORKERS)]
    workers.append(Keeper(server, counts))
    threads = [threading.Thread(target=worker.run, args=(until,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        if worker.failure:
            raise worker.failure
