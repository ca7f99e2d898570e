# SPDX-License-Identifier: Apache-2.0
"""Datasets, snapshots, clones and holds through the blocking client."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import cowshed
import pytest

from client_support import MIB


def test_created_dataset_is_as_asked_for(client: cowshed.Client, base: str) -> None:
    before = datetime.now(timezone.utc)
    made = client.create(
        f"{base}/a", 10 * MIB + 1, block_size=4096, labels={"team": "x"}, quota=5 * MIB, ttl=3600
    )
    assert made == client.get(f"{base}/a")
    assert made.size_bytes == 10 * MIB + 1
    assert made.block_size_bytes == 4096
    assert made.labels == {"team": "x"}
    assert made.quota_bytes == 5 * MIB
    assert made.uid and made.etag and made.create_txg > 0
    assert not made.is_clone and made.origin == ""
    assert made.state is cowshed.DatasetState.ACTIVE
    assert made.create_time is not None and made.expire_time is not None
    assert timedelta(minutes=59) < made.expire_time - before < timedelta(minutes=61)


def test_defaults_are_none(client: cowshed.Client, base: str) -> None:
    made = client.create(base, MIB)
    assert made.block_size_bytes == 16384
    assert made.quota_bytes is None and made.expire_time is None and made.labels == {}


def test_naive_time_is_refused_before_it_is_sent(client: cowshed.Client, base: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        client.create(base, MIB, expire_time=datetime(2099, 1, 1))
    assert not client.exists(base)


def test_update_changes_what_is_given_and_keeps_the_rest(
    client: cowshed.Client, base: str
) -> None:
    client.create(base, MIB, quota=MIB, labels={"a": "1", "b": "2"}, ttl=3600)
    changed = client.update(base, size=2 * MIB, set_labels={"c": "3"}, remove_labels=["a"])
    assert changed.size_bytes == 2 * MIB
    assert changed.labels == {"b": "2", "c": "3"}
    assert changed.quota_bytes == MIB and changed.expire_time is not None
    cleared = client.update(base, quota=None, expire_time=None)
    assert cleared.quota_bytes is None and cleared.expire_time is None
    assert cleared.labels == {"b": "2", "c": "3"} and cleared.size_bytes == 2 * MIB
    assert client.renew(base, timedelta(hours=1)).expire_time is not None
    assert client.renew(base, None).expire_time is None


def test_etag_guards_against_a_successor_of_the_same_name(
    client: cowshed.Client, base: str
) -> None:
    first = client.create(base, MIB)
    client.destroy(base)
    second = client.create(base, MIB)
    assert second.uid != first.uid
    with pytest.raises(cowshed.EtagMismatchError) as caught:
        client.update(base, size=2 * MIB, etag=first.etag)
    assert caught.value.reason == "ETAG_MISMATCH"
    with pytest.raises(cowshed.EtagMismatchError):
        client.destroy(base, etags={base: first.etag})
    client.destroy(base, etags={base: second.etag})


def test_listing_pages_through_a_subtree_only(client: cowshed.Client, base: str) -> None:
    names = [f"{base}/d{i:02}" for i in range(7)]
    for name in names:
        client.create(name, MIB, labels={"odd": str(int(name[-1]) % 2)})
    client.create(f"{base}x", MIB)
    assert [d.name for d in client.list(base, page_size=3)] == names
    odd = [d.name for d in client.list(base, labels={"odd": "1"}, page_size=2)]
    assert odd == names[1::2]
    assert list(client.list(f"{base}/none")) == []


def test_script_of_the_readme(client: cowshed.Client, base: str) -> None:
    golden, alice = f"{base}/golden", f"{base}/dev/alice"
    client.create(golden, MIB)
    client.write(golden, 0, b"golden bytes")
    client.snapshot(f"{golden}@v1")
    client.clone(f"{golden}@v1", alice)
    f = client.open(alice, "r+b")
    f.seek(4096)
    f.write(b"mine alone")
    f.flush()
    assert client.read(alice, 0, 12) == b"golden bytes"
    assert client.read(alice, 4096, 10) == b"mine alone"
    assert client.read(golden, 4096, 10) == bytes(10)
    done = client.destroy(alice).wait(60)
    assert done.state is cowshed.OperationState.SUCCEEDED
    assert not client.exists(alice)


def test_latest_is_resolved_and_named(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.snapshot(f"{base}@one")
    client.snapshot(f"{base}@two")
    assert client.get_snapshot(f"{base}@latest").name == f"{base}@two"
    clone = client.clone(f"{base}@latest", f"{base}/c")
    assert clone.origin == f"{base}@two"
    assert clone.origin_uid == client.get_snapshot(f"{base}@two").uid
    assert [d.name for d in client.list(origin=f"{base}@two")] == [f"{base}/c"]


def test_clone_of_a_head_has_a_hidden_origin(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"now")
    clone = client.clone(base, f"{base}/c", labels={"k": "v"}, ttl=60)
    assert clone.is_clone and clone.labels == {"k": "v"} and clone.expire_time is not None
    assert client.read(clone, 0, 3) == b"now"
    assert list(client.list_snapshots(base)) == []
    assert clone.origin == "" and clone.parent == base


def test_what_was_kept_comes_back(client: cowshed.Client, base: str) -> None:
    made = client.create(f"{base}/a", MIB, labels={"k": "v"})
    client.write(made, 0, b"kept")
    client.snapshot(f"{base}/a@s")
    operation = client.destroy(f"{base}/a", recursive=True, keep=timedelta(hours=1))
    assert operation.info.state is cowshed.OperationState.WAITING and not operation.info.done
    assert operation.info.wait_until is not None
    assert client.pool().reclaim.waiting_count >= 1
    [back] = client.undestroy(operation.name)
    assert back.uid == made.uid and back.labels == {"k": "v"} and back.snapshot_count == 1
    assert client.read(f"{base}/a@s", 0, 4) == b"kept"
    assert client.operation(operation.name).info.state is cowshed.OperationState.UNDONE
    with pytest.raises(cowshed.PreconditionError) as caught:
        client.undestroy(operation.name)
    assert caught.value.reason == "RECLAIM_BEGUN"
    prefix = client.destroy_prefix(base, recursive=True, keep=60)
    client.create(f"{base}/a", MIB)
    with pytest.raises(cowshed.AlreadyExistsError):
        client.undestroy(prefix.name)


def test_reclaim_can_be_told_how_to_run(client: cowshed.Client) -> None:
    try:
        changed = client.update_reclaim(rate_bytes_per_second=MIB, txg_budget=0.001)
        assert changed.rate_bytes_per_second == MIB and changed.txg_budget.nanos == 1_000_000
        assert not client.update_reclaim(paused=False).paused
        assert client.pool().reclaim.rate_bytes_per_second == MIB
    finally:
        client.update_reclaim(rate_bytes_per_second=0, txg_budget=0)


def test_clone_can_replace_in_one_step(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.snapshot(f"{base}@s")
    first = client.clone(f"{base}@s", f"{base}/c")
    with pytest.raises(cowshed.AlreadyExistsError) as caught:
        client.clone(f"{base}@s", f"{base}/c")
    assert caught.value.reason == "DATASET_EXISTS"
    second = client.clone(f"{base}@s", f"{base}/c", replace=True, replace_etag=first.etag)
    assert second.uid != first.uid and client.get(f"{base}/c").uid == second.uid


def test_scratch_is_gone_afterwards_even_with_snapshots(
    client: cowshed.Client, base: str
) -> None:
    client.create(base, MIB)
    client.snapshot(f"{base}@s")
    with pytest.raises(KeyError):
        with client.scratch(f"{base}@latest", prefix=f"{base}/tmp", ttl=60) as ds:
            assert ds.name.startswith(f"{base}/tmp/") and client.exists(ds)
            client.snapshot(f"{ds.name}@inside")
            raise KeyError("the body fails")
    assert list(client.list(f"{base}/tmp")) == []


def test_snapshots_of_one_call_share_a_txg(client: cowshed.Client, base: str) -> None:
    for name in ("a", "b", "b/c"):
        client.create(f"{base}/{name}", MIB)
    taken = client.snapshots([f"{base}/a@s", f"{base}/b@s"], labels={"why": "test"})
    assert taken.count == 2
    assert {s.create_txg for s in taken.first} == {taken.txg}
    assert {s.create_time for s in taken.first} == {taken.create_time}
    assert taken.first[0].labels == {"why": "test"}
    tree = client.snapshot_prefix(f"{base}/b", "t")
    assert [s.name for s in tree.first] == [f"{base}/b/c@t", f"{base}/b@t"] or [
        s.name for s in tree.first
    ] == [f"{base}/b@t", f"{base}/b/c@t"]
    with pytest.raises(cowshed.AlreadyExistsError):
        client.snapshots([f"{base}/b/c@new", f"{base}/a@s"])
    assert not client.exists(f"{base}/b/c@new"), "all or none"
    assert client.snapshots([]).count == 0


def test_snapshots_are_listed_oldest_first(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    names = [f"{base}@{name}" for name in ("zebra", "ant", "mole")]
    for name in names:
        client.snapshot(name)
    listed = list(client.list_snapshots(base, page_size=2))
    assert [s.name for s in listed] == names
    assert [s.create_txg for s in listed] == sorted(s.create_txg for s in listed)
    assert listed[0].dataset == base and listed[0].short_name == "zebra"
    assert client.rename_snapshot(names[1], f"{base}@bee").name == f"{base}@bee"
    assert not client.exists(names[1])


def test_blockers_are_typed_and_paged(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.snapshots([f"{base}@s00"])
    names = [f"{base}@s{i:02}" for i in range(25)]
    for name in names[1:]:
        client.snapshot(name)
    with pytest.raises(cowshed.BlockedError) as caught:
        client.destroy(base)
    error = caught.value
    assert error.code == "FAILED_PRECONDITION" and error.reason == "DATASET_HAS_SNAPSHOTS"
    assert error.blockers.total == len(error.blockers) == 25
    assert len(error.blockers.first) <= 20
    assert sorted(b.name for b in error.blockers) == names
    assert {b.kind for b in error.blockers} == {cowshed.BlockerKind.SNAPSHOT}
    assert {b.blocked_name for b in error.blockers.first} == {base}
    client.destroy(base, recursive=True).wait(60)


def test_destroy_is_all_or_none(client: cowshed.Client, base: str) -> None:
    client.create(f"{base}/a", MIB)
    with pytest.raises(cowshed.NotFoundError) as caught:
        client.destroy(f"{base}/a", f"{base}/missing")
    assert caught.value.reason == "DATASET_NOT_FOUND"
    assert client.exists(f"{base}/a")
    client.destroy(f"{base}/a", f"{base}/missing", allow_missing=True).wait(60)
    nothing = client.destroy(f"{base}/a", allow_missing=True)
    assert nothing.done and nothing.wait(0).state is cowshed.OperationState.SUCCEEDED


def test_cascade_follows_clones_and_the_plan_says_so(client: cowshed.Client, base: str) -> None:
    client.create(f"{base}/a", MIB)
    client.write(f"{base}/a", 0, b"x" * 65536)
    client.snapshot(f"{base}/a@s")
    client.clone(f"{base}/a@s", f"{base}x/c")
    with pytest.raises(cowshed.BlockedError) as caught:
        client.destroy(f"{base}/a", recursive=True)
    assert caught.value.reason == "SNAPSHOT_HAS_CLONES"
    assert [b.name for b in caught.value.blockers] == [f"{base}x/c"]
    plan = client.plan_destroy(f"{base}/a", cascade=True)
    assert (plan.dataset_count, plan.snapshot_count) == (2, 1) and plan.freed_bytes >= 65536
    assert set(plan.names) == {f"{base}/a", f"{base}x/c"}
    client.snapshot(f"{base}x/c@late")
    with pytest.raises(cowshed.PlanChangedError):
        client.destroy(f"{base}/a", cascade=True, plan_etag=plan.plan_etag)
    plan = client.plan_destroy(f"{base}/a", cascade=True)
    client.destroy(f"{base}/a", cascade=True, plan_etag=plan.plan_etag).wait(60)
    assert not client.exists(f"{base}x/c")


def test_prefix_destroy_stops_at_the_slash(client: cowshed.Client, base: str) -> None:
    for name in (f"{base}/a", f"{base}/a/x", f"{base}/ab"):
        client.create(name, MIB)
    client.destroy_prefix(f"{base}/a").wait(60)
    assert [d.name for d in client.list(base)] == [f"{base}/ab"]
    with pytest.raises(cowshed.NotFoundError):
        client.destroy_prefix(f"{base}/a")
    assert client.destroy_prefix(f"{base}/a", allow_missing=True).done


def test_holds_keep_snapshots_and_defer_waits_for_them(
    client: cowshed.Client, base: str
) -> None:
    client.create(base, MIB)
    client.snapshot(f"{base}@s")
    hold = client.hold(f"{base}@latest", "backup", owner="me", ttl=3600)
    assert hold.snapshot == f"{base}@s" and hold.owner == "me" and hold.expire_time is not None
    with pytest.raises(cowshed.AlreadyExistsError) as duplicate:
        client.hold(f"{base}@s", "backup")
    assert duplicate.value.reason == "HOLD_EXISTS"
    with pytest.raises(cowshed.BlockedError) as caught:
        client.destroy_snapshots(f"{base}@s")
    assert caught.value.reason == "SNAPSHOT_HAS_HOLDS"
    assert [b.tag for b in caught.value.blockers] == ["backup"]
    assert [h.tag for h in client.list_holds(f"{base}@s")] == ["backup"]
    assert [h.tag for h in client.list_holds(prefix=base)] == ["backup"]
    client.destroy_snapshots(f"{base}@s", defer=True)
    client.release(f"{base}@s", "backup")
    assert not client.exists(f"{base}@s")


def test_snapshot_ranges(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    for i in range(5):
        client.snapshot(f"{base}@s{i}")
    client.destroy_snapshot_range(base, "s1", "s3").wait(60)
    assert [s.short_name for s in client.list_snapshots(base)] == ["s0", "s4"]
    client.destroy_snapshots(f"{base}@s0", f"{base}@gone", allow_missing=True).wait(60)
    assert [s.short_name for s in client.list_snapshots(base)] == ["s4"]


def test_rollback_and_reset_bring_bytes_back(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"one")
    client.snapshot(f"{base}@one")
    client.write(base, 0, b"two")
    client.snapshot(f"{base}@two")
    client.write(base, 0, b"now")
    with pytest.raises(cowshed.AbortedError) as changed:
        client.rollback(base, expected_target=f"{base}@one")
    assert changed.value.reason == "ROLLBACK_TARGET_CHANGED"
    client.rollback(base, expected_target=f"{base}@two")
    assert client.read(base, 0, 3) == b"two"
    with pytest.raises(cowshed.BlockedError) as caught:
        client.rollback(base, f"{base}@one")
    assert caught.value.reason == "NEWER_SNAPSHOTS_EXIST"
    assert [b.name for b in caught.value.blockers] == [f"{base}@two"]
    client.rollback(base, f"{base}@one", destroy_newer=True)
    assert client.read(base, 0, 3) == b"one"
    clone = client.clone(f"{base}@one", f"{base}/c")
    client.write(clone, 0, b"own")
    client.reset(clone)
    assert client.read(clone, 0, 3) == b"one"
    with pytest.raises(cowshed.PreconditionError) as no_clone:
        client.reset(base, destroy_newer=True)
    assert no_clone.value.reason == "NOT_A_CLONE"


def test_promote_frees_the_parent(client: cowshed.Client, base: str) -> None:
    client.create(f"{base}/old", MIB)
    client.snapshot(f"{base}/old@s")
    client.clone(f"{base}/old@s", f"{base}/new")
    promoted = client.promote(f"{base}/new")
    assert not promoted.is_clone and promoted.snapshot_count == 1
    assert client.get(f"{base}/old").origin == f"{base}/new@s"
    client.destroy(f"{base}/old").wait(60)
    assert client.exists(f"{base}/new@s")


def test_rename_takes_snapshots_along(client: cowshed.Client, base: str) -> None:
    made = client.create(f"{base}/a", MIB)
    client.snapshot(f"{base}/a@s")
    renamed = client.rename(f"{base}/a", f"{base}/b")
    assert renamed.uid == made.uid and renamed.name == f"{base}/b"
    assert client.exists(f"{base}/b@s") and not client.exists(f"{base}/a")


def test_bad_names_are_told_apart(client: cowshed.Client, base: str) -> None:
    for name in ("", "/a", "a//b", f"{base}/ü", "a" * 256, f"{base}@a@b"):
        with pytest.raises(cowshed.InvalidArgumentError) as caught:
            client.create(name, MIB)
        assert caught.value.reason == "INVALID_NAME"
    with pytest.raises(cowshed.InvalidArgumentError) as caught:
        client.create(base, 0)
    assert caught.value.reason == "INVALID_SIZE"
    with pytest.raises(cowshed.InvalidArgumentError) as caught:
        client.create(base, MIB, block_size=5000)
    assert caught.value.reason == "INVALID_BLOCK_SIZE"


def test_operations_can_be_found_again(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, bytes(range(256)) * 64)
    operation = client.destroy(base)
    assert operation.name
    info = client.operation(operation.name).wait(60)
    assert info.kind is cowshed.OperationKind.DESTROY_DATASETS
    assert info.target == base and info.finish_time is not None
    assert operation.name in [o.name for o in client.operations()]
    assert operation.refresh().done
    with pytest.raises(cowshed.NotFoundError) as caught:
        client.operation("operations/999999999")
    assert caught.value.reason == "OPERATION_NOT_FOUND"


def test_pool_and_server_describe_themselves(client: cowshed.Client, base: str) -> None:
    info = client.server_info()
    assert info.version and info.boot_id and info.pool_uid and info.api_revision >= 1
    assert info.limits.max_name_bytes == 255 and info.limits.max_chunk_bytes == MIB
    before = client.pool()
    client.create(base, MIB)
    client.sync()
    after = client.pool()
    assert after.uid == info.pool_uid and after.dataset_count >= before.dataset_count + 1
    for name in ("", base):
        space = client.space(name)
        assert space.name == name and sum(p.bytes for p in space.parts) == space.total_bytes
    assert client.check(timeout=120).ok


def test_livelist_counts_what_was_written(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB, block_size=4096)
    client.write(base, 0, b"x" * 8192)
    sublists = list(client.livelist(base))
    assert sum(s.blocks for s in sublists) >= 1
    with pytest.raises(cowshed.NotFoundError):
        list(client.livelist(f"{base}/none"))
