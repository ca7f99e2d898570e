# SPDX-License-Identifier: Apache-2.0
"""Every lifecycle call, at random: what to send, and what the oracle must look like afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cowshed
from cowshed import calls
from kill_model import Action, Model, ModelDataset, ModelSnapshot

BLOCK_BYTES = 4096
SMALL_BYTES = 8 * BLOCK_BYTES
SIZES = (SMALL_BYTES, SMALL_BYTES // 2, SMALL_BYTES + 1000)
DATASETS_MAX = 8
SNAPSHOTS_MAX = 4
GROUPS = 3
KEPT_MAX = 2
KEEP_SECONDS = 3600.0  # undone before that
SHORT_KEEP_SECONDS = 0.2  # ends by itself


@dataclass
class Pending:
    """A call under way, and the model once it has happened. `learn` takes what its reply tells."""

    what: str
    numbers: tuple[int, ...]
    action: Action
    after: Model
    learn: Callable[[Any], None] = lambda reply: None


def patched(content: bytes, offset: int, data: bytes) -> bytes:
    """The content after a write."""
    return content[:offset] + data + content[offset + len(data) :]


class Verbs:
    """Makes calls below `base`. Each verb changes the model it is given, a copy of the oracle's, or
    returns None where it finds nothing to do."""

    def __init__(self, client: cowshed.Client, base: str, chance: random.Random) -> None:
        self._client = client
        self._base = base
        self._chance = chance
        self._names = 0
        self._verbs: list[tuple[Callable[[Model], Pending | None], int]] = [
            (self._create, 3),
            (self._write, 4),
            (self._write_unary, 4),
            (self._empty, 2),
            (self._resize, 1),
            (self._label, 1),
            (self._snapshot, 4),
            (self._snapshot_group, 1),
            (self._clone, 5),
            (self._replace, 2),
            (self._rollback, 2),
            (self._reset, 1),
            (self._promote, 2),
            (self._rename, 1),
            (self._rename_snapshot, 1),
            (self._hold, 2),
            (self._release, 2),
            (self._destroy, 2),
            (self._destroy_group, 1),
            (self._destroy_kept, 2),
            (self._destroy_briefly_kept, 1),
            (self._undestroy, 2),
            (self._destroy_snapshot, 2),
            (self._destroy_deferred, 1),
        ]

    def any(self, after: Model) -> Pending | None:
        """One of them."""
        weights = [weight for _, weight in self._verbs]
        ((verb, _),) = self._chance.choices(self._verbs, weights)
        return verb(after)

    # Picks ------------------------------------------------------------------------------------

    def new_number(self) -> int:
        """A number that no other object of this worker has."""
        self._names += 1
        return self._names

    def _new_name(self, number: int) -> str:
        return f"{self._base}/d/g{self._chance.randrange(GROUPS)}/{number}"

    def _pick(self, model: Model) -> tuple[str, ModelDataset] | None:
        return self._chance.choice(list(model.datasets.items())) if model.datasets else None

    def _pick_snapshot(self, model: Model) -> tuple[str, ModelDataset, ModelSnapshot] | None:
        found = list(model.owned())
        return self._chance.choice(found) if found else None

    def _call(
        self, what: str, who: tuple[ModelDataset, ...], call: calls.Call[calls.R], after: Model
    ) -> Pending:
        # The call carries its request_id: sent again, it is the same request.
        numbers = tuple(dataset.number for dataset in who)
        return Pending(what, numbers, lambda: self._client.call(call), after)

    # Datasets ---------------------------------------------------------------------------------

    def _create(self, after: Model) -> Pending | None:
        if len(after.datasets) >= DATASETS_MAX:
            return None
        number = self.new_number()
        name = self._new_name(number)
        dataset = after.datasets[name] = ModelDataset(number, bytes(SMALL_BYTES))
        call = calls.create(name, SMALL_BYTES, block_size=BLOCK_BYTES)
        return self._call(f"create {name}", (dataset,), call, after)

    def _clone(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or len(after.datasets) >= DATASETS_MAX:
            return None
        source, parent, snapshot = picked
        number = self.new_number()
        name = self._new_name(number)
        snapshot.clones += 1
        clone = after.datasets[name] = ModelDataset(number, snapshot.content, origin=snapshot)
        return self._call(f"clone {source} {name}", (parent, clone), calls.clone(source, name), after)

    def _replace(self, after: Model) -> Pending | None:
        picked, target = self._pick_snapshot(after), self._pick(after)
        if picked is None or target is None or target[1].snapshots:
            return None
        source, parent, snapshot = picked
        name, old = target
        snapshot.clones += 1
        after.drop(name)
        clone = ModelDataset(self.new_number(), snapshot.content, origin=snapshot)
        after.datasets[name] = clone
        call = calls.clone(source, name, replace=True)
        return self._call(f"replace {name} by {source}", (parent, old, clone), call, after)

    def _promote(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or picked[1].origin is None:
            return None
        parent = after.parent_of(picked[1])
        if parent is None:
            return None
        after.promote(picked[0])
        what = f"promote {picked[0]}"
        return self._call(what, (picked[1], parent), calls.promote(picked[0]), after)

    def _rename(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        name = self._new_name(self.new_number())
        after.datasets[name] = after.datasets.pop(picked[0])
        what = f"rename {picked[0]} {name}"
        return self._call(what, (picked[1],), calls.rename(picked[0], name), after)

    def _label(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        picked[1].label = str(self.new_number())
        call = calls.update(picked[0], set_labels={"l": picked[1].label})
        return self._call(f"label {picked[0]} {picked[1].label}", (picked[1],), call, after)

    def _resize(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        name, dataset = picked
        size = self._chance.choice(SIZES)
        dataset.content = dataset.content[:size].ljust(size, b"\0")
        call = calls.update(name, size=size)
        return self._call(f"resize {name} {size}", (dataset,), call, after)

    # Bytes, durable when acknowledged; idempotent, so sent again as they are ------------------

    def _write(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        name, dataset = picked
        offset, data = self._piece(dataset)
        dataset.content = patched(dataset.content, offset, data)
        what = f"write {name} {offset}+{len(data)}"
        return Pending(
            what, (dataset.number,), lambda: self._client.write(name, offset, data), after
        )

    def _write_unary(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        name, dataset = picked
        offset, data = self._piece(dataset)
        dataset.content = patched(dataset.content, offset, data)

        def send() -> None:
            boot_id = self._client.call(calls.write_range(name, offset, data=data)).boot_id
            self._client.call(calls.flush(name, boot_id=boot_id))

        return Pending(f"write {name} {offset}+{len(data)}", (dataset.number,), send, after)

    def _empty(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        name, dataset = picked
        offset, data = self._piece(dataset)
        dataset.content = patched(dataset.content, offset, bytes(len(data)))
        empty = self._chance.choice([self._client.zero, self._client.discard])
        what = f"{empty.__name__} {name} {offset}+{len(data)}"
        return Pending(what, (dataset.number,), lambda: empty(name, offset, len(data)), after)

    def _piece(self, dataset: ModelDataset) -> tuple[int, bytes]:
        length = self._chance.randint(1, len(dataset.content))
        offset = self._chance.randrange(len(dataset.content) - length + 1)
        return offset, self._chance.randbytes(length)

    # Snapshots and holds ----------------------------------------------------------------------

    def _snapshot(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or len(picked[1].snapshots) >= SNAPSHOTS_MAX:
            return None
        snapshot = ModelSnapshot(f"s{self.new_number()}", picked[1].content)
        picked[1].snapshots.append(snapshot)
        name = f"{picked[0]}@{snapshot.name}"
        return self._call(f"snapshot {name}", (picked[1],), calls.create_snapshots([name]), after)

    def _snapshot_group(self, after: Model) -> Pending | None:
        prefix, group = self._group(after)
        if not group or any(len(d.snapshots) >= SNAPSHOTS_MAX for d in group.values()):
            return None
        name = f"s{self.new_number()}"
        for dataset in group.values():
            dataset.snapshots.append(ModelSnapshot(name, dataset.content))
        call = calls.create_snapshots(prefix=prefix, snapshot=name)
        return self._call(f"snapshot all of {prefix} @{name}", tuple(group.values()), call, after)

    def _group(self, after: Model) -> tuple[str, dict[str, ModelDataset]]:
        prefix = f"{self._base}/d/g{self._chance.randrange(GROUPS)}"
        return prefix, {n: d for n, d in after.datasets.items() if n.startswith(prefix + "/")}

    def _rename_snapshot(self, after: Model) -> Pending | None:
        if (picked := self._pick_snapshot(after)) is None:
            return None
        name, dataset, snapshot = picked
        snapshot.name = f"s{self.new_number()}"
        new_name = f"{name.partition('@')[0]}@{snapshot.name}"
        call = calls.rename_snapshot(name, new_name)
        return self._call(f"rename {name} {snapshot.name}", (dataset,), call, after)

    def _hold(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or picked[2].tags or picked[2].deferred:
            return None
        picked[2].tags.add("tag")
        return self._call(f"hold {picked[0]}", (picked[1],), calls.hold(picked[0], "tag"), after)

    def _release(self, after: Model) -> Pending | None:
        held = [(name, dataset, s) for name, dataset, s in after.owned() if s.tags]
        if not held:
            return None
        name, dataset, snapshot = self._chance.choice(held)
        snapshot.tags.clear()
        after.reap()
        return self._call(f"release {name}", (dataset,), calls.release(name, "tag"), after)

    def _destroy_snapshot(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or picked[2].needed:
            return None
        picked[1].snapshots.remove(picked[2])
        call = calls.destroy_snapshots([picked[0]])
        return self._call(f"destroy {picked[0]}", (picked[1],), call, after)

    def _destroy_deferred(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or picked[2].deferred:
            return None
        picked[2].deferred = True
        after.reap()
        call = calls.destroy_snapshots([picked[0]], defer=True)
        return self._call(f"defer {picked[0]}", (picked[1],), call, after)

    # Back in time -----------------------------------------------------------------------------

    def _rollback(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or not picked[1].snapshots:
            return None
        name, dataset = picked
        index = self._chance.randrange(len(dataset.snapshots))
        newer = dataset.snapshots[index + 1 :]
        if any(snapshot.needed for snapshot in newer):
            return None
        snapshot = dataset.snapshots[index]
        dataset.snapshots = dataset.snapshots[: index + 1]
        dataset.content = snapshot.content
        target = f"{name}@{snapshot.name}"
        call = calls.rollback(name, to=target, destroy_newer=bool(newer))
        return self._call(f"rollback {target}", (dataset,), call, after)

    def _reset(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or picked[1].origin is None or picked[1].is_needed:
            return None
        name, dataset = picked
        dataset.content = picked[1].origin.content
        dataset.snapshots = []
        call = calls.rollback(name, origin=True, destroy_newer=True)
        return self._call(f"reset {name}", (dataset,), call, after)

    # Destroy and undestroy --------------------------------------------------------------------

    def _destroy(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        # With all clones of clones, and none of them may be held or wait to be undone.
        doomed = {picked[0]: picked[1]}
        found = [picked[1]]
        while found:
            dataset = found.pop()
            clones = after.clones_of(dataset)
            needed = sum(snapshot.clones for snapshot in dataset.snapshots)
            if len(clones) != needed or any(s.tags for s in dataset.snapshots):
                return None
            found += [after.datasets[name] for name in clones]
            doomed |= {name: after.datasets[name] for name in clones}
        for name in doomed:
            after.drop(name)
        call = calls.destroy([picked[0]], recursive=True, cascade=len(doomed) > 1)
        what = f"destroy {picked[0]} and {len(doomed) - 1} clones"
        return self._call(what, tuple(doomed.values()), call, after)

    def _destroy_group(self, after: Model) -> Pending | None:
        prefix, group = self._group(after)
        for dataset in group.values():
            inside = [clone for clone in after.clones_of(dataset) if clone in group]
            needed = sum(snapshot.clones for snapshot in dataset.snapshots)
            if len(inside) != needed or any(s.tags for s in dataset.snapshots):
                return None
        if not group:
            return None
        for name in group:
            after.drop(name)
        call = calls.destroy(prefix=prefix, recursive=True)
        return self._call(f"destroy all of {prefix}", tuple(group.values()), call, after)

    def _destroy_kept(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or picked[1].is_needed or len(after.kept) >= KEPT_MAX:
            return None
        name, dataset = picked
        del after.datasets[name]  # its origin stays needed
        call = calls.destroy([name], recursive=True, keep=KEEP_SECONDS)
        pending = self._call(f"destroy {name}, kept", (dataset,), call, after)

        def learn(reply: Any) -> None:
            after.kept[reply.operation.name] = (name, dataset)

        pending.learn = learn
        return pending

    def _destroy_briefly_kept(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or picked[1].is_needed or picked[1].origin is not None:
            return None
        after.drop(picked[0])
        call = calls.destroy([picked[0]], recursive=True, keep=SHORT_KEEP_SECONDS)
        return self._call(f"destroy {picked[0]}, briefly kept", (picked[1],), call, after)

    def _undestroy(self, after: Model) -> Pending | None:
        if not after.kept:
            return None
        operation = self._chance.choice(list(after.kept))
        name, dataset = after.kept.pop(operation)
        after.datasets[name] = dataset
        return self._call(f"undestroy {name}", (dataset,), calls.undestroy(operation), after)
