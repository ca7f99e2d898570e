# SPDX-License-Identifier: Apache-2.0
"""The parts of the client that need no server."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import cowshed
import pytest
from cowshed import calls, channel, errors
from cowshed.cli.base import Label, Size, Span
from cowshed.cli.inspect import destroy_forecast
from cowshed.cli.output import human_bytes, human_span, to_json
from cowshed.file import UnflushedRanges, merge
from cowshed.images import differing_runs, file_extents, runs
from cowshed.transport import Transport
from cowshed.v1 import data_pb2, dataset_pb2, error_pb2, operation_pb2, pool_pb2
from google.protobuf import any_pb2

SERVICES = [
    service
    for module in (data_pb2, dataset_pb2, operation_pb2, pool_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10.0.0.1:99", "10.0.0.1:99"),
        ("storage", "storage:7420"),
        ("/run/cowshed.sock", "unix:/run/cowshed.sock"),
        ("unix:/run/cowshed.sock", "unix:/run/cowshed.sock"),
        ("[::1]:99", "[::1]:99"),
        ("[::1]", "[::1]:7420"),
        ("::1", "[::1]:7420"),
        (None, "127.0.0.1:7420"),
    ],
)
def test_addresses(given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COWSHED_ADDRESS", raising=False)
    assert channel.resolve_address(given) == expected


def test_destroy_forecast_says_when_there_is_no_livelist() -> None:
    livelist = pool_pb2.GetLivelistResponse(
        exists=True, garbage_ratio=0.25, total_entries=1200, total_bytes=3 << 20, destroy_seconds=0.5
    )
    assert destroy_forecast(livelist) == (
        "25% of the logged blocks are freed; destroying it reads 1,200 entries and gives back "
        "3.0 MiB in about 0.5 s"
    )
    assert "walk its tree" in destroy_forecast(pool_pb2.GetLivelistResponse())


def test_wrong_address_is_told() -> None:
    with pytest.raises(ValueError, match="host:port"):
        channel.resolve_address("host:port")


def test_proxy_is_off_for_local_addresses_only() -> None:
    off = ("grpc.enable_http_proxy", 0)
    for address in ("unix:/a", "127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1"):
        assert off in channel.channel_options(address, None)
    assert off not in channel.channel_options("example.org:1", None)


def test_every_method_has_a_call_and_every_call_a_method() -> None:
    makers = {
        "create": calls.create("a", 1),
        "get": calls.get("a"),
        "list_datasets": calls.list_datasets(),
        "update": calls.update("a"),
        "clone": calls.clone("a@s", "b"),
        "destroy": calls.destroy(["a"]),
        "undestroy": calls.undestroy("operations/1"),
        "start_scrub": calls.start_scrub(),
        "cancel_scrub": calls.cancel_scrub(),
        "backup": calls.backup("/b"),
        "rollback": calls.rollback("a"),
        "promote": calls.promote("a"),
        "rename": calls.rename("a", "b"),
        "list_blockers": calls.list_blockers("t"),
        "create_snapshots": calls.create_snapshots(["a@s"]),
        "get_snapshot": calls.get_snapshot("a@s"),
        "list_snapshots": calls.list_snapshots("a"),
        "destroy_snapshots": calls.destroy_snapshots(["a@s"]),
        "rename_snapshot": calls.rename_snapshot("a@s", "a@t"),
        "hold": calls.hold("a@s", "t"),
        "release": calls.release("a@s", "t"),
        "list_holds": calls.list_holds(),
        "read_range": calls.read_range("a", 0, 1),
        "write_range": calls.write_range("a", 0, data=b""),
        "flush": calls.flush("a"),
        "read": calls.read("a"),
        "write_header": calls.write_header("a"),
        "diff": calls.diff("a@s", "a@t"),
        "get_operation": calls.get_operation("operations/1"),
        "list_operations": calls.list_operations(),
        "wait_operations": calls.wait_operations(["operations/1"]),
        "server_info": calls.server_info(),
        "pool": calls.pool(),
        "update_reclaim": calls.update_reclaim(paused=False),
        "space": calls.space(),
        "livelist": calls.livelist("a"),
        "sync": calls.sync(),
        "check": calls.check(),
    }
    sent = {
        call.method: (call.request.DESCRIPTOR.full_name, call.reply.DESCRIPTOR.full_name)
        for call in makers.values()
    }
    known = {
        f"/{service.full_name}/{method.name}": (
            method.input_type.full_name,
            method.output_type.full_name,
        )
        for service in SERVICES
        for method in service.methods
    }
    assert sent == known


def test_changing_calls_carry_a_request_id_of_their_own() -> None:
    def request_id(call: calls.Call[dataset_pb2.PromoteDatasetResponse]) -> str:
        assert isinstance(call.request, dataset_pb2.PromoteDatasetRequest)
        return call.request.request_id

    ids = {request_id(calls.promote("a")) for _ in range(3)}
    assert len(ids) == 3 and "" not in ids


def test_update_names_in_the_mask_what_it_changes() -> None:
    def mask(call: calls.Call[dataset_pb2.UpdateDatasetResponse]) -> list[str]:
        assert isinstance(call.request, dataset_pb2.UpdateDatasetRequest)
        return list(call.request.update_mask.paths)

    assert mask(calls.update("a")) == []
    assert mask(calls.update("a", size=1, quota=None)) == ["size_bytes", "quota_bytes"]
    assert mask(calls.update("a", expire_time=None)) == ["expire_time"]
    assert mask(calls.update("a", quota=calls.KEEP, ttl=1)) == []


def _status(code: int, reason: str) -> error_pb2.Status:
    info = error_pb2.ErrorInfo(reason=reason, domain="cowshed", metadata={"name": "a"})
    detail = any_pb2.Any(
        type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString()
    )
    return error_pb2.Status(code=code, message="no", details=[detail])


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (5, "DATASET_NOT_FOUND", cowshed.NotFoundError),
        (9, "SNAPSHOT_HAS_CLONES", cowshed.BlockedError),
        (9, "NOT_A_CLONE", cowshed.PreconditionError),
        (10, "ETAG_MISMATCH", cowshed.EtagMismatchError),
        (10, "SERVER_RESTARTED", cowshed.ServerRestartedError),
        (8, "POOL_FULL", cowshed.PoolFullError),
        (8, "QUOTA_EXCEEDED", cowshed.QuotaExceededError),
        (15, "CHECKSUM_MISMATCH", cowshed.DataLossError),
        (4, "", cowshed.DeadlineExceededError),
        (99, "", cowshed.CowshedError),
    ],
)
def test_errors_are_typed(code: int, reason: str, kind: type[Exception]) -> None:
    error = errors.from_status(_status(code, reason))
    assert type(error) is kind
    assert error.reason == reason and error.metadata == {"name": "a"}
    assert (reason or error.code) in str(error)


def test_every_reason_named_in_the_client_exists() -> None:
    known = set(error_pb2.ErrorReason.keys())
    assert set(errors._BY_REASON) <= known


def test_only_what_is_safe_is_retried() -> None:
    def delay(code: str, reason: str, advice: float | None = None) -> float | None:
        error = cowshed.CowshedError("no", code=code, reason=reason, retry_delay=advice)
        return channel.retry_delay(error, 0)

    assert delay("UNAVAILABLE", "") is not None
    assert delay("UNAVAILABLE", "SERVER_STOPPING") is not None
    assert delay("UNAVAILABLE", "POOL_SUSPENDED") is None
    assert delay("DEADLINE_EXCEEDED", "") is None
    assert delay("RESOURCE_EXHAUSTED", "POOL_FULL") is None
    assert delay("RESOURCE_EXHAUSTED", "SERVER_BUSY", 7.0) == 7.0


def test_unflushed_ranges_merge() -> None:
    ranges = UnflushedRanges()
    assert not ranges
    for start in range(0, 100, 10):
        ranges.add(start, start + 10)
    ranges.add(500, 600)
    ranges.add(50, 120)
    ranges.add(7, 7)
    assert ranges.lost("a").ranges == ((0, 120), (500, 600))
    assert not ranges, "given up"
    for i in range(5000):
        ranges.add(i * 20, i * 20 + 1)
    for i in range(5000):
        ranges.add(i * 20 + 1, i * 20 + 20)
    assert ranges.lost("a").ranges == ((0, 100_000),)


def test_merge_keeps_gaps() -> None:
    assert merge([(5, 6), (0, 2), (2, 3), (1, 2)]) == [(0, 3), (5, 6)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("16k", 16384),
        ("1.5G", 3 << 29),
        ("2TiB", 2 << 40),
        ("1MB", 1 << 20),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert Size().convert(text, None, None) == count


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "1x", "1.2.3", "1 2", "8192P", "99999999T", "9" * 5000, "9" * 400 + ".5"]
)
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(text, None, None)


def test_spans_and_labels() -> None:
    assert Span().convert("90", None, None) == timedelta(seconds=90)
    assert Span().convert("1h30m", None, None) == timedelta(minutes=90)
    assert Span().convert("1w", None, None) == timedelta(days=7)
    assert Label().convert("a=b=c", None, None) == ("a", "b=c")
    for text in ("", "h", "1y", "1h 30", "9999999999999w", "9" * 400):
        with pytest.raises(click.BadParameter):
            Span().convert(text, None, None)
    with pytest.raises(click.BadParameter):
        Label().convert("=x", None, None)


def test_numbers_for_people() -> None:
    assert human_bytes(0) == "0 B" and human_bytes(1536) == "1.5 KiB"
    assert human_bytes(10 << 30) == "10.0 GiB" and human_bytes(1 << 60) == "1024 PiB"
    assert human_span(59) == "59 s" and human_span(7260) == "2 h 1 min"


class CannedTransport(Transport):
    """Answers each call with the next of the replies it was given."""

    def __init__(self, *states: int) -> None:
        super().__init__("unix:/nonexistent", 1.0)
        self._states = list(states)
        self.waits: list[float] = []

    def unary(self, call: calls.Call[Any], timeout: float | None = None) -> Any:
        assert isinstance(call.request, operation_pb2.WaitOperationsRequest)
        self.waits.append(call.wait_seconds)
        operation = operation_pb2.Operation(name="operations/1")
        operation.state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if operation.state >= operation_pb2.OPERATION_STATE_FAILED:
            operation.error.CopyFrom(_status(15, "CHECKSUM_MISMATCH"))
        return operation_pb2.WaitOperationsResponse(operations=[operation])


def operation(*states: int) -> tuple[cowshed.Operation, CannedTransport]:
    """An operation that goes through the states, and stays in the last one."""
    transport = CannedTransport(*states)
    info = cowshed.OperationInfo(
        "operations/1", cowshed.OperationKind.TRIM, cowshed.OperationState.PENDING
    )
    return cowshed.Operation(transport, info), transport


def test_wait_asks_until_the_operation_is_done() -> None:
    waited, transport = operation(1, 2, 2, 3)
    seen: list[str] = []
    done = waited.wait(show=lambda info: seen.append(info.state.name))
    assert done.state is cowshed.OperationState.SUCCEEDED and waited.done
    assert seen == ["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
    assert all(0 < wait <= 60 for wait in transport.waits)


def test_wait_raises_when_time_is_up() -> None:
    waited, transport = operation(2)
    with pytest.raises(TimeoutError) as caught:
        waited.wait(0)
    assert not isinstance(caught.value, cowshed.CowshedError)
    assert transport.waits == [0.0] and not waited.done


@pytest.mark.parametrize("state", [4, 5])
def test_wait_raises_the_failure_of_the_operation(state: int) -> None:
    waited, _ = operation(2, state)
    with pytest.raises(cowshed.DataLossError) as caught:
        waited.wait(60)
    assert caught.value.reason == "CHECKSUM_MISMATCH"


def test_json_leaves_nothing_out() -> None:
    document = to_json(
        dataset_pb2.CreateDatasetResponse(
            dataset=dataset_pb2.Dataset(name="a", size_bytes=1 << 60, labels={"k": "v"}, state=1)
        )
    )
    assert document["txg"] == 0
    dataset = document["dataset"]
    assert dataset["size_bytes"] == 1 << 60 and dataset["used_bytes"] == 0
    assert dataset["labels"] == {"k": "v"} and dataset["state"] == "DATASET_STATE_ACTIVE"
    assert dataset["quota_bytes"] is None and dataset["create_time"] is None
    assert list(dataset) == [f.name for f in dataset_pb2.Dataset.DESCRIPTOR.fields]
    assert to_json(data_pb2.ReadRangeResponse(data=b"\xff"))["data"] == "/w=="


def test_runs_cover_the_data_and_part_zeros_from_others() -> None:
    block = 4096
    data = bytes(block) + b"x" * 100 + bytes(block) + bytes(3 * block) + b"y"
    pieces = list(runs(data, block))
    assert b"".join(piece for _, piece in pieces) == data
    assert [offset for offset, _ in pieces] == [0, block, 2 * block, 5 * block]
    assert list(runs(b"", block)) in ([], [(0, b"")])
    assert [same for same, _, _ in differing_runs(data, data, block)] == [True]
    changed = data[:block] + b"z" + data[block + 1 :]
    assert list(differing_runs(changed, data, block)) == [
        (True, 0, block),
        (False, block, 2 * block),
        (True, 2 * block, len(data)),
    ]


def test_extents_of_a_sparse_file() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "sparse"
        with path.open("wb") as f:
            os.truncate(f.fileno(), 10 << 20)
            os.pwrite(f.fileno(), b"x" * 4096, 4 << 20)
        fd = os.open(path, os.O_RDONLY)
        extents = list(file_extents(fd, 0, 10 << 20))
        part = list(file_extents(fd, (4 << 20) + 10, (4 << 20) + 20))
        os.close(fd)
    assert part == [((4 << 20) + 10, 10, True)]
    assert sum(length for _, length, _ in extents) == 10 << 20
    assert [offset for offset, _, _ in extents][0] == 0
    assert any(data and offset <= 4 << 20 < offset + length for offset, length, data in extents)
