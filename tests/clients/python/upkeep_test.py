# SPDX-License-Identifier: Apache-2.0
"""Scrub and backup through both clients and `cow pool`."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

import cowshed
import pytest
from cowshed import aio, calls
from cowshed.operation import Operation
from cowshed.types import OperationKind, OperationState

from client_support import MIB, Cow
from server_process import Server, server_binary
from terminal import on_terminal


def test_scrub(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, bytes(range(256)) * 4096)
    client.sync()
    info = client.scrub().wait(60)
    assert info.kind is OperationKind.SCRUB and info.state is OperationState.SUCCEEDED
    assert info.done_bytes >= MIB and info.errors == 0 and info.damaged == ()
    with pytest.raises(cowshed.PreconditionError) as refused:
        client.cancel_scrub()
    assert refused.value.reason == "NO_SCRUB"


def test_scrub_pauses(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"x" * MIB)
    client.sync()
    operation = client.scrub(rate_bytes_per_second=10000)
    assert client.cancel_scrub(pause=True).state is OperationState.PENDING
    assert client.scrub(rate_bytes_per_second=0).name == operation.name
    assert operation.wait(60).state is OperationState.SUCCEEDED


def test_backup_and_restore(client: cowshed.Client, base: str, tmp_path: Path) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"kept")
    client.snapshot(f"{base}@s")
    target = tmp_path / "copy"
    info = client.backup(str(target)).wait(60)
    assert info.kind is OperationKind.BACKUP and info.target == str(target)
    assert sorted(entry.name for entry in target.iterdir()) == ["blocks", "meta"]
    with pytest.raises(cowshed.PreconditionError) as refused:
        client.backup(str(target))
    assert refused.value.reason == "BACKUP_TARGET"


def test_asyncio(server: Server, base: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with await aio.connect(server.unix) as c:
            await c.create(base, MIB)
            assert (await (await c.scrub()).wait(60)).state is OperationState.SUCCEEDED
            with pytest.raises(cowshed.PreconditionError):
                await c.cancel_scrub()
            copied = await (await c.backup(str(tmp_path / "copy"))).wait(60)
            assert copied.state is OperationState.SUCCEEDED

    asyncio.run(body())


def test_cow_scrub(cow: Cow, base: str) -> None:
    cow("create", base, "1M")
    begun = cow("pool", "scrub", "--rate", "100M", "--wait")
    assert begun.status == 0 and begun.lines[0][0].startswith("operations/")
    assert begun.lines[0][2] == "0"
    assert cow("pool", "scrub", "--cancel").status == 1
    assert cow("pool", "scrub", "--cancel", "--pause").status == 2
    document = cow("pool", "scrub", "--rate", "1k", "--json").json
    assert document["operation"]["kind"] == "OPERATION_KIND_SCRUB"
    cow("pool", "scrub", "--pause")
    assert cow("pool", "scrub", "--rate", "0", "--wait").status == 0


def test_cow_backup(server: Server, cow: Cow, base: str, tmp_path: Path) -> None:
    cow("create", base, "1M")
    done = cow("pool", "backup", tmp_path / "copy")
    assert done.status == 0 and done.lines[0][1] == str(tmp_path / "copy")
    assert cow("pool", "backup", tmp_path / "copy").status == 1
    assert cow("pool", "backup", "relative").status == 1
    status, text = on_terminal(["pool", "backup", str(tmp_path / "two")], server.unix)
    assert status == 0 and "copied to" in text


def test_program_backs_up(server: Server, cow: Cow, base: str, tmp_path: Path) -> None:
    """`cowshed backup` of a served pool, and of one that is not."""
    cow("create", base, "1M")
    program = [str(server_binary()), "backup"]
    served = [*program, "--address", server.unix, str(tmp_path / "served")]
    assert subprocess.run(served, check=False).returncode == 0
    copy = ["--pool", str(tmp_path / "served")]
    assert subprocess.run([*program, *copy, str(tmp_path / "again")], check=False).returncode == 0
    assert subprocess.run([*program, *copy, str(tmp_path / "again")], check=False).returncode == 1
    check = [str(server_binary()), "check", "--pool", str(tmp_path / "again")]
    assert subprocess.run(check, check=False).returncode == 0


def operation_info(client: cowshed.Client, name: str) -> cowshed.OperationInfo:
    """How an operation stands."""
    return cowshed.OperationInfo.from_proto(client.call(calls.get_operation(name)))


def test_a_killed_backup_leaves_the_pool_as_it_was(own_server: Server, tmp_path: Path) -> None:
    own_server.kill()
    own_server.start(failpoints="backup.before_rename=kill")
    with cowshed.connect(own_server.unix, timeout=5) as client:
        client.create("a", MIB)
        client.write("a", 0, b"kept")
        client.sync()
        with contextlib.suppress(cowshed.CowshedError):  # it may die before it answers
            client.backup(str(tmp_path / "copy"))
    own_server.wait(60)
    assert (tmp_path / "copy.partial").exists() and not (tmp_path / "copy").exists()
    own_server.start()
    with cowshed.connect(own_server.unix) as client:
        name = client.call(calls.list_operations()).operations[0].name
        with contextlib.suppress(cowshed.CowshedError):
            Operation(client.transport, operation_info(client, name)).wait(60)
        operation = operation_info(client, name)
        assert operation.state is OperationState.FAILED
        assert operation.error is not None and "program ended" in operation.error.message
        assert client.read("a", 0, 4) == b"kept"
        assert client.check().ok
        with pytest.raises(cowshed.PreconditionError):
            client.backup(str(tmp_path / "copy"))
        assert client.backup(str(tmp_path / "next")).wait(60).state is OperationState.SUCCEEDED
