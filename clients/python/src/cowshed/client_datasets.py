# SPDX-License-Identifier: Apache-2.0
"""The blocking client: datasets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from cowshed import calls, types
from cowshed.calls import KEEP, Keep, Labels, Span
from cowshed.client_base import ClientBase, all_pages
from cowshed.operation import Operation
from cowshed.types import Dataset, Name
from cowshed.v1 import dataset_pb2


class DatasetMethods(ClientBase):
    """Makes, finds, changes and destroys datasets."""

    def create(
        self,
        name: Name,
        size: int,
        *,
        block_size: int | None = None,
        labels: Labels | None = None,
        quota: int | None = None,
        expire_time: datetime | None = None,
        ttl: Span | None = None,
    ) -> Dataset:
        """Creates an empty dataset of `size` bytes. Raises AlreadyExistsError."""
        call = calls.create(
            name,
            size,
            block_size=block_size,
            labels=labels,
            quota=quota,
            expire_time=expire_time,
            ttl=ttl,
        )
        return Dataset.from_proto(self.call(call).dataset)

    def get(self, name: Name) -> Dataset:
        """Returns a dataset. Raises NotFoundError."""
        return Dataset.from_proto(self.call(calls.get(name)))

    def list(
        self,
        prefix: str = "",
        *,
        origin: Name = "",
        state: types.DatasetState = types.DatasetState.UNSPECIFIED,
        labels: Labels | None = None,
        page_size: int = 0,
    ) -> Iterator[Dataset]:
        """Yields datasets by name: of a subtree, of an origin, in a state, with labels."""

        def page(token: str) -> dataset_pb2.ListDatasetsResponse:
            call = calls.list_datasets(
                prefix,
                origin=origin,
                state=state.value,
                labels=labels,
                page_size=page_size,
                page_token=token,
            )
            return self.call(call)

        return (Dataset.from_proto(m) for reply in all_pages(page) for m in reply.datasets)

    def update(
        self,
        name: Name,
        *,
        size: int | None = None,
        quota: int | None | Keep = KEEP,
        expire_time: datetime | None | Keep = KEEP,
        ttl: Span | None = None,
        set_labels: Labels | None = None,
        remove_labels: Iterable[str] = (),
        etag: str = "",
        force: bool = False,
    ) -> Dataset:
        """Changes a dataset in one step: what is not given stays, None takes away.

        Raises NotFoundError, and EtagMismatchError if `etag` is given and not the dataset's.
        """
        call = calls.update(
            name,
            size=size,
            quota=quota,
            expire_time=expire_time,
            ttl=ttl,
            set_labels=set_labels,
            remove_labels=remove_labels,
            etag=etag,
            force=force,
        )
        return Dataset.from_proto(self.call(call).dataset)

    def resize(self, name: Name, size: int, *, etag: str = "", force: bool = False) -> Dataset:
        """Changes the size of a dataset; a smaller one cuts off what lies beyond.

        Raises BlockedError if it is attached and shrinks, unless `force` cuts the attachments.
        """
        return self.update(name, size=size, etag=etag, force=force)

    def renew(self, name: Name, ttl: Span | None) -> Dataset:
        """Lets a dataset live that long from now; None: for ever."""
        if ttl is None:
            return self.update(name, expire_time=None)
        return self.update(name, ttl=ttl)

    def clone(
        self,
        source: Name,
        name: Name,
        *,
        replace: bool = False,
        replace_etag: str = "",
        force: bool = False,
        labels: Labels | None = None,
        quota: int | None = None,
        expire_time: datetime | None = None,
        ttl: Span | None = None,
    ) -> Dataset:
        """Clones a snapshot (`golden@v1`, `golden@latest`) or a head (`golden`).

        Args:
            replace: destroy a dataset of that name in the same step, if there is one.
            force: cut the attachments of what is replaced.

        Raises NotFoundError, AlreadyExistsError.
        """
        call = calls.clone(
            source,
            name,
            replace=replace,
            replace_etag=replace_etag,
            force=force,
            labels=labels,
            quota=quota,
            expire_time=expire_time,
            ttl=ttl,
        )
        return Dataset.from_proto(self.call(call).dataset)

    @contextmanager
    def scratch(
        self, source: Name, *, prefix: str = "scratch", ttl: Span | None = None
    ) -> Iterator[Dataset]:
        """A clone for a while: `with c.scratch("golden@latest") as ds:` destroys it on exit.

        Args:
            prefix: the clone is named below it, with a name of its own.
            ttl: lets the server destroy it if this process does not live to.
        """
        dataset = self.clone(source, f"{prefix}/{uuid.uuid4().hex}", ttl=ttl)
        try:
            yield dataset
        finally:
            self.destroy(dataset, recursive=True, allow_missing=True, force=True)

    def destroy(
        self,
        *names: Name,
        recursive: bool = False,
        cascade: bool = False,
        allow_missing: bool = False,
        plan_etag: str = "",
        etags: Mapping[str, str] | None = None,
        keep: Span = 0.0,
        force: bool = False,
    ) -> Operation:
        """Destroys datasets, all or none. Their names are free at once.

        Args:
            recursive: their snapshots too.
            cascade: also the clones of these, wherever they are named.
            allow_missing: names that do not exist are fine.
            plan_etag: of `plan_destroy`: only if that plan still holds.
            etags: expected etags by name.
            keep: for how long `undestroy` can bring them back, at most 30 days.
            force: cut their attachments; else what is attached is refused.

        Returns:
            the operation that gives their space back; `.wait(60)` waits for it.

        Raises BlockedError (`.blockers` says by what), NotFoundError, PlanChangedError.
        """
        call = calls.destroy(
            names,
            recursive=recursive,
            cascade=cascade,
            allow_missing=allow_missing,
            plan_etag=plan_etag,
            etags=etags,
            keep=keep,
            force=force,
        )
        reply = self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    def destroy_prefix(
        self,
        prefix: str,
        *,
        recursive: bool = False,
        cascade: bool = False,
        allow_missing: bool = False,
        plan_etag: str = "",
        keep: Span = 0.0,
        force: bool = False,
    ) -> Operation:
        """Destroys a whole subtree: `prefix` and everything below it. See `destroy`."""
        call = calls.destroy(
            prefix=prefix,
            recursive=recursive,
            cascade=cascade,
            allow_missing=allow_missing,
            plan_etag=plan_etag,
            keep=keep,
            force=force,
        )
        reply = self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    def plan_destroy(
        self,
        *names: Name,
        prefix: str = "",
        recursive: bool = False,
        cascade: bool = False,
        allow_missing: bool = False,
        force: bool = False,
    ) -> dataset_pb2.DestroyPlan:
        """What `destroy` or `destroy_prefix` would do, and what stands in its way."""
        call = calls.destroy(
            names,
            prefix=prefix,
            recursive=recursive,
            cascade=cascade,
            allow_missing=allow_missing,
            validate_only=True,
            force=force,
        )
        return self.call(call).plan

    def undestroy(self, operation: str) -> tuple[Dataset, ...]:
        """Brings back what a `destroy` with `keep` took away, all of it; its name is `operation`.

        Returns:
            the datasets (of very many the first 100).

        Raises PreconditionError once reclaim has begun or the origin of one has gone,
        AlreadyExistsError where a name is taken.
        """
        reply = self.call(calls.undestroy(operation))
        return tuple(map(Dataset.from_proto, reply.datasets))

    def rollback(
        self,
        name: Name,
        to: Name = "",
        *,
        expected_target: Name = "",
        destroy_newer: bool = False,
        etag: str = "",
        force: bool = False,
    ) -> Dataset:
        """Takes a dataset back to its newest snapshot, or to `to`.

        Raises BlockedError if there are newer snapshots (`destroy_newer` destroys them) or it is
        attached (`force` cuts the attachments), and AbortedError if the target is not
        `expected_target`.
        """
        call = calls.rollback(
            name,
            to=to,
            expected_target=expected_target,
            destroy_newer=destroy_newer,
            etag=etag,
            force=force,
        )
        return Dataset.from_proto(self.call(call).dataset)

    def reset(
        self, name: Name, *, destroy_newer: bool = False, etag: str = "", force: bool = False
    ) -> Dataset:
        """Takes a clone back to its origin, as if freshly cloned."""
        call = calls.rollback(
            name, origin=True, destroy_newer=destroy_newer, etag=etag, force=force
        )
        return Dataset.from_proto(self.call(call).dataset)

    def promote(self, name: Name, *, etag: str = "") -> Dataset:
        """Turns a clone and its origin around, so that the former parent can be destroyed."""
        return Dataset.from_proto(self.call(calls.promote(name, etag=etag)).dataset)

    def rename(self, name: Name, new_name: str, *, etag: str = "") -> Dataset:
        """Renames a dataset together with its snapshots."""
        return Dataset.from_proto(self.call(calls.rename(name, new_name, etag=etag)).dataset)
