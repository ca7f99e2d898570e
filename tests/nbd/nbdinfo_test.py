# SPDX-License-Identifier: Apache-2.0
"""nbdinfo: what it says about the exports of a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nbd_support import BLOCK_BYTES, MIB, NbdServer, cowshed, needs, run

pytestmark = needs("nbdinfo")

HOLE = 3  # NBD_STATE_HOLE | NBD_STATE_ZERO
CHANGED = 1


def info(uri: str, *arguments: str) -> dict[str, Any]:
    """The one export of `nbdinfo --json`."""
    (export,) = json.loads(run("nbdinfo", "--json", *arguments, uri))["exports"]
    assert isinstance(export, dict)
    return export


def mapped(uri: str, context: str = "base:allocation") -> list[tuple[int, int, int]]:
    """`nbdinfo --map`: offset, length and type of each extent."""
    found = json.loads(run("nbdinfo", f"--map={context}", "--json", uri))
    return [(one["offset"], one["length"], one["type"]) for one in found]


def test_list_names_datasets_and_snapshots(own_server: NbdServer) -> None:
    with cowshed.connect(own_server.unix) as client:
        client.create("golden", MIB)
        client.snapshot("golden@v1")
        client.clone("golden@v1", "dev/alice")
        listed = json.loads(run("nbdinfo", "--list", "--json", own_server.uri("")))
    names = [export["export-name"] for export in listed["exports"]]
    assert sorted(names) == ["dev/alice", "golden", "golden@v1"]
    assert "export=\"dev/alice\":" in run("nbdinfo", "--list", own_server.uri(""))


def test_list_of_an_empty_pool_is_empty(own_server: NbdServer) -> None:
    assert json.loads(run("nbdinfo", "--list", "--json", own_server.uri("")))["exports"] == []


@pytest.mark.parametrize("size", [1, 4095, MIB, 3 * MIB + 13, 1 << 50])
def test_size_is_the_datasets(
    server: NbdServer, client: cowshed.Client, base: str, size: int
) -> None:
    client.create(base, size)
    assert run("nbdinfo", "--size", server.uri(base)) == f"{size}\n"


@pytest.mark.parametrize("block_size", [4 << 10, 16 << 10, 128 << 10])
def test_dataset_is_all_that_a_disk_can_be(
    server: NbdServer, client: cowshed.Client, base: str, block_size: int
) -> None:
    client.create(base, MIB, block_size=block_size)
    told = info(server.uri(base))
    assert told["export-name"] == base
    assert told["export-size"] == MIB
    assert told["block_size_minimum"] == 1
    assert told["block_size_preferred"] == block_size
    assert told["block_size_maximum"] == 32 * MIB
    assert told["is_read_only"] is False
    assert told["is_rotational"] is False
    for can in ("cache", "df", "flush", "fua", "trim", "zero", "fast_zero"):
        assert told[f"can_{can}"] is True, can
    assert "base:allocation" in told["contexts"]


def test_snapshot_and_what_is_asked_for_read_only_refuse_to_be_written(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, MIB)
    client.snapshot(f"{base}@s")
    for export in (f"{base}@s", f"{base}@latest", f"{base}?read-only"):
        uri = server.uri(export)
        assert info(uri)["is_read_only"] is True
        run("nbdinfo", "--is", "read-only", uri)
        run("nbdinfo", "--can", "write", uri, status=2)


@pytest.mark.parametrize(
    "question, answer",
    [
        ("--can connect", 0),
        ("--can read", 0),
        ("--can write", 0),
        ("--can flush", 0),
        ("--can fua", 0),
        ("--can trim", 0),
        ("--can zero", 0),
        ("--can cache", 0),
        ("--can df", 0),
        ("--can structured-reply", 0),
        ("--can multi-conn", 0),  # connections of one process on a unix socket share the lease
        ("--is read-only", 2),
        ("--is rotational", 2),
        ("--is tls", 2),
    ],
)
def test_questions_are_answered(
    server: NbdServer, client: cowshed.Client, base: str, question: str, answer: int
) -> None:
    client.create(base, MIB)
    run("nbdinfo", *question.split(), server.uri(base), status=answer)


@pytest.mark.parametrize(
    "name",
    ["missing", "there@missing", "there/below", "", "a//b", pytest.param("x" * 300, id="long")],
)
def test_unknown_export_is_refused(
    server: NbdServer, client: cowshed.Client, base: str, name: str
) -> None:
    client.create(f"{base}/there", MIB)
    export = f"{base}/{name}" if name else ""
    assert "nbdinfo: " in run("nbdinfo", server.uri(export), status=1)
    run("nbdinfo", "--can", "connect", server.uri(export), status=1)


def test_map_shows_what_was_written(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    size = 2 * MIB + 5000
    client.create(base, size)
    assert mapped(server.uri(base)) == [(0, size, HOLE)]
    client.write(base, 2 * BLOCK_BYTES, b"x")
    client.write(base, 8 * BLOCK_BYTES, b"y" * (2 * BLOCK_BYTES))
    client.write(base, size - 1, b"z")
    end = 2 * MIB  # the last block is short
    expected = [
        (0, 2 * BLOCK_BYTES, HOLE),
        (2 * BLOCK_BYTES, BLOCK_BYTES, 0),
        (3 * BLOCK_BYTES, 5 * BLOCK_BYTES, HOLE),
        (8 * BLOCK_BYTES, 2 * BLOCK_BYTES, 0),
        (10 * BLOCK_BYTES, end - 10 * BLOCK_BYTES, HOLE),
        (end, size - end, 0),
    ]
    assert mapped(server.uri(base)) == expected
    client.discard(base, 8 * BLOCK_BYTES, BLOCK_BYTES)
    client.flush(base)
    expected[2:4] = [
        (3 * BLOCK_BYTES, 6 * BLOCK_BYTES, HOLE),
        (9 * BLOCK_BYTES, BLOCK_BYTES, 0),
    ]
    assert mapped(server.uri(base)) == expected


def test_map_totals_add_up(server: NbdServer, client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"x" * (MIB // 4))
    totals = json.loads(run("nbdinfo", "--map", "--totals", "--json", server.uri(base)))
    assert {one["type"]: one["size"] for one in totals} == {0: MIB // 4, HOLE: MIB - MIB // 4}


def test_map_of_changes_since_a_snapshot_is_the_diff(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, 64 * BLOCK_BYTES)
    client.write(base, 0, b"a" * (32 * BLOCK_BYTES))
    client.snapshot(f"{base}@s1")
    client.write(base, 4 * BLOCK_BYTES, b"b" * (3 * BLOCK_BYTES))
    client.discard(base, 20 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    client.snapshot(f"{base}@s2")
    client.write(base, 40 * BLOCK_BYTES, b"c")
    client.flush(base)

    def changed(export: str, since: str) -> list[tuple[int, int]]:
        found = mapped(server.uri(export), f"cowshed:changed-since:{since}")
        assert sum(length for _, length, _ in found) == 64 * BLOCK_BYTES
        blocks = [(at // BLOCK_BYTES, n // BLOCK_BYTES, kind) for at, n, kind in found]
        return [(at, n) for at, n, kind in blocks if kind & CHANGED]

    for s1 in ("@s1", f"{base}@s1"):
        assert changed(f"{base}@s2", s1) == [(4, 3), (20, 2)]
        assert changed(base, s1) == [(4, 3), (20, 2), (40, 1)]
    assert changed(base, "@s2") == [(40, 1)]
    assert changed(base, "@latest") == [(40, 1)]
    client.clone(f"{base}@s1", f"{base}/clone")
    client.write(f"{base}/clone", 50 * BLOCK_BYTES, b"d")
    assert changed(f"{base}/clone", f"{base}@s1") == [(50, 1)]
    told = [
        (one.offset_bytes // BLOCK_BYTES, one.length_bytes // BLOCK_BYTES)
        for one in client.diff(f"{base}@s1", f"{base}@s2")
    ]
    assert changed(f"{base}@s2", "@s1") == told


def test_changes_since_what_is_no_older_snapshot_are_not_offered(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, MIB)
    client.snapshot(f"{base}@s1")
    client.snapshot(f"{base}@s2")
    for export, since in (
        (base, "@missing"),
        (base, "s1"),
        (base, ""),
        (f"{base}@s1", "@s1"),
        (f"{base}@s1", "@s2"),
        (base, "no/such@s1"),
    ):
        context = f"cowshed:changed-since:{since}"
        said = run("nbdinfo", f"--map={context}", server.uri(export), status=1)
        assert "not supported" in said or "does not support" in said, said
