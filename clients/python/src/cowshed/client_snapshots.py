# SPDX-License-Identifier: Apache-2.0
"""The blocking client: snapshots and holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from cowshed import calls, errors
from cowshed.calls import Labels, Span
from cowshed.client_base import all_pages
from cowshed.client_datasets import DatasetMethods
from cowshed.operation import Operation
from cowshed.types import Hold, Name, Snapshot, SnapshotSet, name_of


class SnapshotMethods(DatasetMethods):
    """Takes, finds and destroys snapshots, and holds them."""

    def snapshot(self, name: Name, *, labels: Labels | None = None) -> Snapshot:
        """Takes one snapshot, e.g. `ci/a@s`. Raises NotFoundError, AlreadyExistsError."""
        reply = self.call(calls.create_snapshots([name], labels=labels))
        return Snapshot.from_proto(reply.snapshots[0])

    def snapshots(self, names: Iterable[Name], *, labels: Labels | None = None) -> SnapshotSet:
        """Takes snapshots of several datasets at one point in time, all or none."""
        return SnapshotSet.from_proto(self.call(calls.create_snapshots(names, labels=labels)))

    def snapshot_prefix(
        self, prefix: str, snapshot: str, *, labels: Labels | None = None
    ) -> SnapshotSet:
        """Takes a snapshot of that short name of every dataset of a subtree, all or none."""
        call = calls.create_snapshots(prefix=prefix, snapshot=snapshot, labels=labels)
        return SnapshotSet.from_proto(self.call(call))

    def get_snapshot(self, name: Name) -> Snapshot:
        """Returns a snapshot; `@latest` finds the newest. Raises NotFoundError."""
        return Snapshot.from_proto(self.call(calls.get_snapshot(name)))

    def list_snapshots(
        self,
        dataset: Name = "",
        *,
        prefix: str = "",
        labels: Labels | None = None,
        page_size: int = 0,
    ) -> Iterator[Snapshot]:
        """Yields the snapshots of a dataset, oldest first; or of a subtree; or all."""
        pages = all_pages(
            lambda token: self.call(
                calls.list_snapshots(
                    dataset, prefix=prefix, labels=labels, page_size=page_size, page_token=token
                )
            )
        )
        return (Snapshot.from_proto(m) for reply in pages for m in reply.snapshots)

    def destroy_snapshots(
        self,
        *names: Name,
        defer: bool = False,
        allow_missing: bool = False,
        plan_etag: str = "",
        force: bool = False,
    ) -> Operation:
        """Destroys snapshots, all or none.

        Args:
            defer: those with clones or holds go with the last of them.
            force: cut their attachments; else what is attached is refused.

        Raises BlockedError, NotFoundError.
        """
        call = calls.destroy_snapshots(
            names,
            defer=defer,
            allow_missing=allow_missing,
            plan_etag=plan_etag,
            force=force,
        )
        reply = self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    def destroy_snapshot_range(
        self,
        dataset: Name,
        first: str = "",
        last: str = "",
        *,
        defer: bool = False,
        force: bool = False,
    ) -> Operation:
        """Destroys the snapshots of a dataset from `first` to `last` (short names, inclusive)."""
        call = calls.destroy_snapshots(
            dataset=dataset, first=first, last=last, defer=defer, force=force
        )
        reply = self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    def rename_snapshot(self, name: Name, new_name: str) -> Snapshot:
        """Renames a snapshot within its dataset; both names are full ones."""
        return Snapshot.from_proto(self.call(calls.rename_snapshot(name, new_name)).snapshot)

    def hold(
        self,
        snapshot: Name,
        tag: str,
        *,
        owner: str = "",
        expire_time: datetime | None = None,
        ttl: Span | None = None,
    ) -> Hold:
        """Keeps a snapshot from being destroyed. Raises AlreadyExistsError for a used tag."""
        call = calls.hold(snapshot, tag, owner=owner, expire_time=expire_time, ttl=ttl)
        return Hold.from_proto(self.call(call).hold)

    def release(self, snapshot: Name, tag: str) -> Hold:
        """Releases a hold. Raises NotFoundError."""
        return Hold.from_proto(self.call(calls.release(snapshot, tag)).hold)

    def list_holds(self, snapshot: Name = "", *, prefix: str = "") -> Iterator[Hold]:
        """Yields the holds on a snapshot; or in a subtree; or all."""
        pages = all_pages(
            lambda token: self.call(calls.list_holds(snapshot, prefix=prefix, page_token=token))
        )
        return (Hold.from_proto(m) for reply in pages for m in reply.holds)

    def exists(self, name: Name) -> bool:
        """Whether there is a dataset, or with an `@` a snapshot, of this name."""
        try:
            if "@" in name_of(name):
                self.get_snapshot(name)
            else:
                self.get(name)
        except errors.NotFoundError:
            return False
        return True
