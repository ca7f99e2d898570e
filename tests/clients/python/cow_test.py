# SPDX-License-Identifier: Apache-2.0
"""The command `cow`: every verb, its output in a pipe and as JSON, its exit status."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import cowshed
import pytest
from click.testing import CliRunner
from cowshed.cli import cli
from cowshed.cli.base import App

from client_support import MIB, Cow
from server_process import Server
from terminal import on_terminal

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def test_help_names_every_verb(cow: Cow) -> None:
    text = cow("--help").text
    for verb in (
        "create list show tree snapshot clone renew reset rollback promote rename resize label"
        " destroy undestroy hold release import export read write discard diff ops pool space livelist top"
        " version"
    ).split():
        assert re.search(rf"^  {verb}\b", text, re.MULTILINE), verb
        help_of_verb = CliRunner().invoke(cli, [verb, "--help"], obj=App())
        assert help_of_verb.exit_code == 0 and "--json" in help_of_verb.output


def test_create_show_list(cow: Cow, base: str) -> None:
    made = cow("create", f"{base}/a", "10M", "--block-size", "4k", "-l", "k=v", "--ttl", "1h")
    assert made.status == 0
    [[name, uid, txg]] = made.lines
    assert name == f"{base}/a" and len(uid) > 8 and int(txg) > 0
    shown = dict(cow("show", f"{base}/a").lines)
    assert shown["uid"] == uid and shown["size_bytes"] == str(10 * MIB)
    assert shown["block_size_bytes"] == "4096" and shown["labels"] == "k=v"
    assert shown["state"] == "active" and shown["quota_bytes"] == "-"
    assert RFC3339.fullmatch(shown["create_time"]) and RFC3339.fullmatch(shown["expire_time"])
    [row] = cow("list", base).lines
    assert row[:2] == [f"{base}/a", str(10 * MIB)] and len(row) == 8
    assert cow("list", base, "-q").text == cow("-q", "list", base).text == f"{base}/a\n"
    assert cow("list", base, "-l", "k=w").text == ""
    assert cow("list", base, "--state", "active", "-q").text == f"{base}/a\n"


def test_json_is_one_document_of_field_names(cow: Cow, base: str) -> None:
    made = cow("create", base, "1M", "--json").json
    assert made["dataset"]["name"] == base and made["dataset"]["size_bytes"] == MIB
    assert made["dataset"]["used_bytes"] == 0 and made["dataset"]["quota_bytes"] is None
    assert made["dataset"]["state"] == "DATASET_STATE_ACTIVE" and made["txg"] > 0
    assert RFC3339.fullmatch(made["dataset"]["create_time"])
    assert cow("--json", "show", base).json["uid"] == made["dataset"]["uid"]
    assert [d["name"] for d in cow("list", base, "--json").json["datasets"]] == [base]
    assert cow("list", f"{base}/none", "--json").json == {"datasets": []}
    for verb in (["pool"], ["space"], ["space", base], ["livelist", base], ["ops"], ["version"]):
        assert isinstance(cow(*verb, "--json").json, dict), verb


def test_failure_is_a_document_too(cow: Cow, client: cowshed.Client, base: str) -> None:
    missing = cow("show", base, "--json")
    assert missing.status == 1
    error = missing.json["error"]
    assert error["code"] == "NOT_FOUND" and error["reason"] == "DATASET_NOT_FOUND"
    assert base in error["message"] and error["blockers"] == [] and error["total"] == 0
    client.create(base, MIB)
    for i in range(23):
        client.snapshot(f"{base}@s{i:02}")
    blocked = cow("destroy", base, "--json")
    assert blocked.status == 1
    error = blocked.json["error"]
    assert error["reason"] == "DATASET_HAS_SNAPSHOTS" and error["total"] == 23
    assert sorted(b["name"] for b in error["blockers"]) == [f"{base}@s{i:02}" for i in range(23)]
    assert error["blockers"][0]["kind"] == "BLOCKER_KIND_SNAPSHOT"
    plain = cow("destroy", base)
    assert plain.status == 1 and plain.text == ""
    assert plain.stderr.count(f"{base}@s") >= 23, "nothing is cut off in a pipe"


def test_exit_status_tells_what_kind_of_failure(cow: Cow, base: str) -> None:
    assert cow("show", base).status == 1
    assert cow("create", base).status == 2
    assert cow("create", base, "10X").status == 2
    assert cow("nonsense").status == 2
    assert cow("--wait-ready", "0.2", "list", address="unix:/nonexistent").status == 3
    unreachable = cow("--wait-ready", "0.2", "list", "--json", address="127.0.0.1:1")
    assert unreachable.status == 3 and unreachable.json["error"]["code"] == "UNAVAILABLE"
    assert cow("list", address="host:port").status == 2


def test_snapshot_clone_reset_rollback_promote(cow: Cow, base: str) -> None:
    a, c = f"{base}/a", f"{base}/c"
    cow("create", a, "1M")
    assert cow("write", a, stdin=b"one").status == 0
    [[name, txg]] = cow("snapshot", f"{a}@s").lines
    assert name == f"{a}@s" and int(txg) > 0
    assert cow("clone", f"{a}@latest", c, "--ttl", "2h", "--json").json["dataset"]["origin"] == name
    cow("write", c, stdin=b"two")
    assert cow("read", c, "--length", 3).stdout == b"two"
    assert cow("reset", c).lines[0][:2] == [c, name]
    assert cow("read", c, "--length", 3).stdout == b"one"
    assert cow("clone", name, c).status == 1
    assert cow("clone", name, c, "--replace").status == 0
    cow("write", a, stdin=b"now")
    cow("snapshot", f"{a}@t")
    refused = cow("rollback", name)
    assert refused.status == 1 and f"{a}@t" in refused.stderr
    assert cow("rollback", a, "--expect", name).status == 1
    assert cow("rollback", name, "--destroy-newer").lines[0][1] == name
    assert cow("read", a, "--length", 3).stdout == b"one"
    assert cow("promote", c).lines[0][:2] == [c, a]
    assert cow("list", "-s", base, "-q").text == f"{c}@s\n"


def test_renew_resize_label_rename(cow: Cow, base: str) -> None:
    cow("create", base, "1M", "-l", "a=1")
    assert cow("renew", base, "1h30m", "--json").json["dataset"]["expire_time"]
    assert cow("renew", base, "--never", "--json").json["dataset"]["expire_time"] is None
    assert cow("renew", base).status == 2
    resized = cow("resize", base, "3M", "--quota", "2M", "--json").json["dataset"]
    assert (resized["size_bytes"], resized["quota_bytes"]) == (3 * MIB, 2 * MIB)
    assert cow("resize", base, "--no-quota", "--json").json["dataset"]["quota_bytes"] is None
    assert cow("resize", base).status == 2
    labelled = cow("label", base, "b=2", "-r", "a", "--json").json["dataset"]
    assert labelled["labels"] == {"b": "2"}
    assert cow("label", base, "c=3", "--etag", "stale").status == 1
    cow("snapshot", f"{base}@old")
    assert cow("rename", f"{base}@old", "new").lines[0][0] == f"{base}@new"
    assert cow("rename", base, f"{base}/moved").lines[0][0] == f"{base}/moved"
    assert cow("list", "-s", base, "-q").text == f"{base}/moved@new\n"


def test_snapshots_of_a_prefix(cow: Cow, base: str) -> None:
    names = [f"{base}/d{i:03}" for i in range(3)]
    for name in names:
        cow("create", name, "1M")
    assert cow("snapshot", "--prefix", base, "s", "-q").text.split() == [f"{n}@s" for n in names]
    assert cow("snapshot", "--prefix", base, "x@s").status == 2
    again = cow("snapshot", *(f"{n}@s" for n in names))
    assert again.status == 1 and again.text == ""


def test_destroy_asks_before_it_takes_more_than_is_named(
    cow: Cow, client: cowshed.Client, base: str
) -> None:
    for name in (f"{base}/a", f"{base}/b"):
        client.create(name, MIB)
    client.snapshot(f"{base}/a@s")
    client.clone(f"{base}/a@s", f"{base}/c")
    assert cow("destroy", "--prefix", base).status == 2
    assert cow("destroy", "--cascade", f"{base}/a").status == 2
    assert cow("destroy").status == 2
    assert cow("destroy", f"{base}/a", f"{base}/a@s").status == 2
    dry = cow("destroy", "--prefix", base, "--cascade", "--dry-run")
    assert dry.status == 0
    assert set(dry.text.split()) == {f"{base}/a", f"{base}/b", f"{base}/c"}
    plan = cow("destroy", "--prefix", base, "--cascade", "-n", "--json").json["plan"]
    assert plan["dataset_count"] == 3 and plan["snapshot_count"] == 1 and plan["plan_etag"]
    assert len(list(client.list(base))) == 3, "a dry run changes nothing"
    done = cow("destroy", "--prefix", base, "--cascade", "--yes", "--wait", "--json").json
    assert done["operation"]["state"] == "OPERATION_STATE_SUCCEEDED"
    assert list(client.list(base)) == []


def test_destroy_snapshots_and_holds(cow: Cow, base: str) -> None:
    cow("create", base, "1M")
    for i in range(5):
        cow("snapshot", f"{base}@s{i}")
    assert cow("hold", f"{base}@s0", "backup", "--owner", "me", "--ttl", "1d").status == 0
    [held] = cow("holds", base).lines
    assert held[:3] == [f"{base}@s0", "backup", "me"] and RFC3339.fullmatch(held[4])
    refused = cow("destroy", f"{base}@s0")
    assert refused.status == 1 and "backup" in refused.stderr
    assert cow("destroy", f"{base}@s0", "--defer").status == 0
    assert cow("destroy", f"{base}@s1%s3").status == 2, "a range asks"
    assert cow("destroy", f"{base}@s1%s3", "--yes", "--wait").status == 0
    assert cow("release", f"{base}@s0", "backup", "--json").json["snapshot_destroyed"] is True
    assert cow("list", "-s", base, "-q").text == f"{base}@s4\n"
    assert cow("destroy", f"{base}@gone", "--allow-missing").status == 0


def test_destroy_keep_and_undestroy(cow: Cow, client: cowshed.Client, base: str) -> None:
    uid = client.create(base, MIB).uid
    client.write(base, 0, b"kept")
    [[operation, *_]] = cow("destroy", base, "--keep", "1h").lines
    assert list(client.list(base)) == []
    [row] = cow("ops", operation).lines
    assert row[2] == "waiting"
    assert cow("destroy", f"{base}@s", "--keep", "1h").status == 2
    [[name, count, txg]] = cow("undestroy", operation).lines
    assert name == operation and count == "1" and int(txg) > 0
    assert client.get(base).uid == uid and client.read(base, 0, 4) == b"kept"
    again = cow("undestroy", operation, "--json")
    assert again.status == 1 and again.json["error"]["reason"] == "RECLAIM_BEGUN"


def test_pool_reclaim_shows_and_changes(cow: Cow) -> None:
    shown = dict(cow("pool", "reclaim").lines)
    assert shown["paused"] == "false" and shown["rate_bytes_per_second"] == "0"
    try:
        changed = cow("pool", "reclaim", "--pause", "--rate", "10M", "--budget", "0.5", "--json").json
        assert changed["paused"] is True and changed["rate_bytes_per_second"] == 10 * MIB
        assert dict(cow("pool").lines)["reclaim.paused"] == "true"
        kept = cow("pool", "reclaim", "--resume", "--json").json
        assert kept["paused"] is False and kept["rate_bytes_per_second"] == 10 * MIB
    finally:
        cow("pool", "reclaim", "--resume", "--rate", "0", "--budget", "0")
    assert cow("pool", "reclaim", "--budget", "2000").status == 1


def test_tree_shows_lineage(cow: Cow, client: cowshed.Client, base: str) -> None:
    client.create(f"{base}/golden", MIB)
    client.snapshot(f"{base}/golden@v1")
    client.clone(f"{base}/golden@v1", f"{base}/alice")
    client.clone(f"{base}/golden", f"{base}/bob")
    rows = cow("tree", base).lines
    assert sorted(rows) == sorted(
        [
            [f"{base}/golden", "-"],
            [f"{base}/golden@v1", f"{base}/golden"],
            [f"{base}/alice", f"{base}/golden@v1"],
            # A clone of a head was shown as a root: its origin is hidden.
            [f"{base}/bob", f"{base}/golden"],
        ]
    )
    trees = {tree["name"]: tree for tree in cow("tree", base, "--json").json["trees"]}
    snapshot, bob = trees[f"{base}/golden"]["children"]
    assert bob["name"] == f"{base}/bob"
    assert [child["name"] for child in snapshot["children"]] == [f"{base}/alice"]


def test_pool_space_livelist_ops_top_check_version(cow: Cow, base: str) -> None:
    cow("create", base, "1M")
    cow("write", base, stdin=os.urandom(8192))
    assert dict(cow("pool").lines)["state"] == "active"
    for verb in (["space"], ["space", base]):
        rows = {row[0]: int(row[1]) for row in cow(*verb).lines}
        total = rows.pop("total")
        rows.pop("freed_by_destroy", None)
        assert sum(rows.values()) == total
    assert len(cow("livelist", base).lines) >= 1
    operation = cow("destroy", base, "-q").text.strip()
    [row] = cow("ops", operation, "--wait", "--within", "60s").lines
    assert row[0] == operation and row[2] == "succeeded" and row[3] == base
    assert operation in cow("ops", "-q").text.split()
    assert cow("ops", operation, "--json").json["operations"][0]["name"] == operation
    [sample] = cow("top", "--interval", "0.1s").lines
    assert len(sample) == 7 and all(value.isdigit() for value in sample)
    assert cow("top", "--interval", "0.1s", "--json").json["pool"]["uid"]
    assert cow("check").status == 0
    versions = dict(cow("version").lines)
    assert versions["client"] == cowshed.__version__ and versions["boot_id"]


def test_export_replaces_nothing_but_regular_files(cow: Cow, base: str, tmp_path: Path) -> None:
    """Bug: export renamed its file over whatever was there: a FIFO, a device, a link."""
    assert cow("create", base, "64KiB").status == 0
    fifo, target, link = tmp_path / "fifo", tmp_path / "target", tmp_path / "link"
    os.mkfifo(fifo)
    target.write_bytes(b"old")
    link.symlink_to(target)
    refused = cow("export", base, fifo)
    assert refused.status == 1 and "regular files" in refused.stderr
    assert fifo.is_fifo()
    assert cow("export", base, "-").status == 1
    assert cow("export", base, link).status == 0
    assert link.is_symlink() and target.stat().st_size == 65536


def test_import_and_export_are_bit_exact_and_sparse(cow: Cow, base: str, tmp_path: Path) -> None:
    image, copy = tmp_path / "image", tmp_path / "copy"
    with image.open("wb") as f:
        f.write(os.urandom(3 * MIB + 123))
        f.seek(40 * MIB)
        f.write(b"end of image" + bytes(5000))
    imported = cow("import", image, base, "--json")
    assert imported.status == 0, imported.stderr
    report = imported.json
    assert report["created"] and report["size_bytes"] == image.stat().st_size
    assert report["written_bytes"] + report["zeroed_bytes"] == image.stat().st_size
    assert 3 * MIB < report["written_bytes"] < 4 * MIB
    assert cow("export", base, copy).status == 0
    assert copy.read_bytes() == image.read_bytes()
    assert copy.stat().st_blocks * 512 < 8 * MIB, "holes stay holes"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert cow("read", base, "--offset", "40M", "--length", 12).stdout == b"end of image"


def test_import_changed_only_writes_what_differs(
    cow: Cow, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    data = bytearray(os.urandom(6 * MIB))
    image.write_bytes(data)
    cow("import", image, base, "--block-size", "4k")
    client.snapshot(f"{base}@before")
    data[10_000:10_010] = b"0123456789"
    data[2 * MIB : 3 * MIB] = bytes(MIB)
    image.write_bytes(data)
    report = cow("import", image, base, "--changed-only", "--json").json
    assert not report["created"]
    assert report["written_bytes"] == 4096 and report["zeroed_bytes"] == MIB
    assert report["unchanged_bytes"] == 5 * MIB - 4096
    assert client.read(base) == data
    client.snapshot(f"{base}@after")
    changed = sum(e.length_bytes for e in client.diff(f"{base}@before", f"{base}@after"))
    assert changed == MIB + 4096
    report = cow("import", image, base, "--changed-only", "--json").json
    assert report["unchanged_bytes"] == 6 * MIB
    assert cow("import", image, base).status == 0
    assert client.read(base) == data


def test_import_refuses_another_size_and_cleans_up(
    cow: Cow, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"x" * 5000)
    client.create(base, 6000)
    refused = cow("import", image, base)
    assert refused.status == 1 and "6000" in refused.stderr
    assert cow("import", image, base, "--resize", "--json").json["size_bytes"] == 5000
    assert cow("import", tmp_path / "none", f"{base}/b").status == 2
    assert cow("import", image, f"{base}/b", "--block-size", "5000").status == 1
    assert not client.exists(f"{base}/b")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, why in (("pipe", "a file or a block device"), ("empty", "an empty file")):
        refused = cow("import", tmp_path / name, f"{base}/b")
        assert refused.status == 1 and why in refused.stderr, refused.stderr
        assert refused.stderr.startswith("cow: "), "nothing of a progress bar in a pipe"
        assert str(tmp_path / name) in refused.stderr
    assert not client.exists(f"{base}/b")
    failed = cow("export", f"{base}/none", tmp_path / "out")
    assert failed.status == 1 and not (tmp_path / "out").exists()


def test_read_write_discard_diff(cow: Cow, base: str) -> None:
    cow("create", base, "1M", "--block-size", "4k")
    cow("snapshot", f"{base}@a")
    assert cow("write", base, "--offset", "8k", stdin=b"z" * 5000).lines[0][1] == "5000"
    cow("snapshot", f"{base}@b")
    assert cow("diff", f"{base}@a", f"{base}@b").lines == [["8192", "8192", "data"]]
    document = cow("diff", f"{base}@b", "--json").json
    assert document["extents"] == [
        {"offset_bytes": 8192, "length_bytes": 8192, "kind": "EXTENT_KIND_DATA"}
    ]
    assert cow("read", base, "--offset", "8k", "--length", 2, "--json").json["data"] == "eno="
    assert cow("discard", base, "--offset", "8k", "--length", "8k").status == 0
    assert cow("read", base).stdout == bytes(MIB)
    cow("snapshot", f"{base}@c")
    assert cow("diff", f"{base}@b", f"{base}@c").lines == [["8192", "8192", "hole"]]
    assert cow("write", base, "--offset", "1M", stdin=b"x").status == 1


def test_reader_that_has_had_enough_is_no_drama(server: Server, base: str, cow: Cow) -> None:
    cow("create", base, "64M")
    pipeline = f"{sys.executable} -m cowshed read {base} | head -c 5 | wc -c"
    status, output = on_terminal(["bash", "-c", pipeline], server.unix)
    assert status == 0 and output.split() == ["5"]


def test_completion_scripts_and_names(
    cow: Cow, client: cowshed.Client, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_COW_COMPLETE" in cow("completion", shell).text
    client.create(f"{base}/alpha", MIB)
    client.create(f"{base}/beta", MIB)
    monkeypatch.setenv("_COW_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"cow show {base}/al")
    monkeypatch.setenv("COMP_CWORD", "2")
    completed = cow()
    assert completed.text.split(",")[-1].strip() == f"{base}/alpha"


def test_people_get_tables_and_questions(
    server: Server, client: cowshed.Client, base: str
) -> None:
    client.create(f"{base}/golden", 10 * MIB, labels={"k": "[bold]v"})
    client.snapshot(f"{base}/golden@v1")
    client.clone(f"{base}/golden@v1", f"{base}/alice")
    status, text = on_terminal(["list", base], server.unix)
    assert status == 0 and "NAME" in text and "10.0 MiB" in text
    status, text = on_terminal(["tree", base], server.unix)
    assert status == 0 and "@v1" in text and "── " in text
    assert "[bold]v" in on_terminal(["show", f"{base}/golden"], server.unix)[1], "no markup"
    status, text = on_terminal(["top", "--count", "1", "--interval", "0.1s"], server.unix)
    assert status == 0 and "livelists" in text
    status, text = on_terminal(["destroy", "--prefix", base, "-r"], server.unix, answer="n\n")
    assert status == 1 and "Destroy 2 datasets and 1 snapshot" in text
    assert client.exists(f"{base}/golden")
    status, text = on_terminal(["destroy", "--prefix", base, "-r", "--wait"], server.unix, "y\n")
    assert status == 0 and f"destroyed {base}: " in text
    assert list(client.list(base)) == []


@pytest.mark.parametrize("no_color", [True, False])
def test_no_color(server: Server, client: cowshed.Client, base: str, no_color: bool) -> None:
    client.create(base, MIB)
    environment = {"NO_COLOR": "1"} if no_color else {}
    _, text = on_terminal(["list", base], server.unix, environment=environment)
    colours = re.findall(r"\x1b\[(?:3|4|9)\d", text)
    assert base in text and not colours
