# SPDX-License-Identifier: Apache-2.0
"""Load on a server that may die at any moment, and an oracle of what it must still know.

Each worker owns a subtree of names. One dataset of it is written through a file object, flushed now
and then; the others live through everything a dataset can live through. What was acknowledged is in
the oracle. The one call that was under way when the server died is `pending`: it must have happened
wholly or not at all, and sent again, with the same request_id, it must happen exactly once.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import cowshed
from cowshed import calls
from cowshed.file import DatasetFile, merge
from server_process import Server

BLOCK_BYTES = 4096
FILE_BYTES = 64 * BLOCK_BYTES
SMALL_BYTES = 8 * BLOCK_BYTES
DATASETS_MAX = 6
SNAPSHOTS_MAX = 3

Action = Callable[[], object]


class ServerDied(Exception):
    """The server died under a call."""


@dataclass
class ModelSnapshot:
    """A snapshot as the oracle knows it."""

    name: str
    content: bytes
    clones: int = 0
    tags: set[str] = field(default_factory=set)

    @property
    def needed(self) -> bool:
        """Whether it may not be destroyed."""
        return bool(self.clones or self.tags)


@dataclass
class ModelDataset:
    """A dataset as the oracle knows it; snapshots oldest first."""

    content: bytes
    snapshots: list[ModelSnapshot] = field(default_factory=list)
    origin: ModelSnapshot | None = None


Model = dict[str, ModelDataset]


def shown(model: Model) -> dict[str, object]:
    """What a client must see of a model: contents and tags by name."""
    seen: dict[str, object] = {}
    for name, dataset in model.items():
        seen[name] = dataset.content
        for snapshot in dataset.snapshots:
            seen[f"{name}@{snapshot.name}"] = (snapshot.content, frozenset(snapshot.tags))
    return seen


@dataclass
class Pending:
    """A call under way, and the model once it has happened."""

    action: Action
    after: Model


@dataclass
class VolatileWrite:
    """A write through the file object since its last flush."""

    offset: int
    data: bytes
    acknowledged: bool = False

    @property
    def range(self) -> tuple[int, int]:
        """The bytes it covers."""
        return self.offset, self.offset + len(self.data)


def apply(content: bytes, writes: list[VolatileWrite]) -> bytes:
    """The content after some writes."""
    changed = bytearray(content)
    for write in writes:
        changed[write.offset : write.offset + len(write.data)] = write.data
    return bytes(changed)


class Worker:
    """One client's load. `run` it in a thread; `verify` it while no thread runs."""

    def __init__(self, server: Server, number: int, seed: int) -> None:
        self.base = f"w{number}"
        self.failure: BaseException | None = None
        self.acknowledged = 0
        self.replayed = 0
        self.lost_reports = 0
        self.lost_writes = 0
        self._server = server
        self._random = random.Random(f"{seed}/{number}")
        self._names = 0
        self._stop = threading.Event()
        # Short, so that the death of the server is soon noticed; calls are sent again below.
        self.client = cowshed.connect(server.unix, timeout=0.5, wait_ready=10)
        self.model: Model = {}
        self.pending: Pending | None = None
        self.client.create(f"{self.base}/file", FILE_BYTES, block_size=BLOCK_BYTES)
        self._file: DatasetFile = self.client.open(f"{self.base}/file", "r+b")
        self._durable = bytes(FILE_BYTES)
        self._unflushed: list[VolatileWrite] = []
        self._lost: list[tuple[int, int]] = []  # reported lost; what is left is still to be seen
        self._again: list[VolatileWrite] = []  # reported lost, to be written again

    # The load ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until it is stopped or the server dies."""
        try:
            while not self._stop.is_set():
                self._step()
        except ServerDied:
            pass
        except BaseException as error:  # told by the main thread
            self.failure = error

    def stop(self) -> None:
        """Ends `run` after the call under way."""
        self._stop.set()

    def restart(self) -> None:
        """Lets `run` be called again."""
        self._stop.clear()

    def _step(self) -> None:
        if self.pending is not None:
            self._finish_pending()
        elif self._lost:
            self._see_what_is_left()
        elif self._unflushed and not self._unflushed[-1].acknowledged:
            self._send_write()
        elif self._again:
            self._unflushed.append(self._again.pop(0))
            self._send_write()
        elif self._random.random() < 0.4:
            self._write_or_flush()
        else:
            self._lifecycle()

    def _insist(self, action: Action) -> None:
        """Does it, again and again, until it is answered or the server is dead."""
        while True:
            try:
                action()
                self.acknowledged += 1
                return
            except (cowshed.UnavailableError, cowshed.DeadlineExceededError):
                if not self._server.alive():
                    raise ServerDied from None

    # Bytes through a file ---------------------------------------------------------------------

    def _write_or_flush(self) -> None:
        if self._unflushed and self._random.random() < 0.3:
            self._flush()
            return
        length = self._random.randint(1, 5 * BLOCK_BYTES)
        offset = self._random.randrange(FILE_BYTES - length)
        self._unflushed.append(VolatileWrite(offset, self._random.randbytes(length)))
        self._send_write()

    def _send_write(self) -> None:
        write = self._unflushed[-1]

        def send() -> None:
            self._file.seek(write.offset)
            self._file.write(write.data)

        try:
            self._insist(send)
            write.acknowledged = True
        except cowshed.LostWritesError as error:
            self._note_lost(error)

    def _flush(self) -> None:
        try:
            self._insist(self._file.flush)
        except cowshed.LostWritesError as error:
            self._note_lost(error)
            return
        self._durable = apply(self._durable, self._unflushed)
        self._unflushed = []

    def _note_lost(self, error: cowshed.LostWritesError) -> None:
        # It names what may be lost, no less and no more.
        assert list(error.ranges) == merge(write.range for write in self._unflushed)
        self.lost_reports += 1
        self._lost = list(error.ranges)
        self._see_what_is_left()

    def _see_what_is_left(self) -> None:
        # A report is given once, but the server may die again before this has looked.
        wanted = apply(self._durable, self._unflushed)
        found, kept = self._find_prefix()
        self.lost_writes += len(self._unflushed) - kept
        self._durable = found
        self._unflushed = []
        self._again = [
            VolatileWrite(start, wanted[start:end]) for start, end in self._lost
        ] + self._again
        self._lost = []

    def _find_prefix(self) -> tuple[bytes, int]:
        """What is there: everything flushed, and of the rest the first writes, each whole."""
        content: list[bytes] = []
        self._insist(lambda: content.append(self.client.read(f"{self.base}/file")))
        for kept in range(len(self._unflushed), -1, -1):
            if content[-1] == apply(self._durable, self._unflushed[:kept]):
                return content[-1], kept
        raise AssertionError(f"{self.base}/file shows neither what was flushed nor what followed")

    # Lifecycle --------------------------------------------------------------------------------

    def _lifecycle(self) -> None:
        verb = self._random.choice(
            [self._create, self._write, self._snapshot, self._clone, self._rollback]
            + [self._destroy, self._destroy_snapshot, self._rename, self._hold, self._release]
        )
        self.pending = verb(copy.deepcopy(self.model))
        if self.pending is not None:
            self._finish_pending()

    def _finish_pending(self) -> None:
        assert self.pending is not None
        self._insist(self.pending.action)
        self.model = self.pending.after
        self.pending = None

    def _call(self, call: calls.Call[calls.R], after: Model) -> Pending:
        # The call carries its request_id: sent again, it is the same request.
        return Pending(lambda: self.client.call(call), after)

    def _new_name(self) -> str:
        self._names += 1
        return f"{self.base}/d/{self._names}"

    def _pick(self, model: Model) -> tuple[str, ModelDataset] | None:
        return self._random.choice(list(model.items())) if model else None

    def _pick_snapshot(self, model: Model) -> tuple[ModelDataset, ModelSnapshot, str] | None:
        found = [
            (dataset, snapshot, f"{name}@{snapshot.name}")
            for name, dataset in model.items()
            for snapshot in dataset.snapshots
        ]
        return self._random.choice(found) if found else None

    def _create(self, after: Model) -> Pending | None:
        if len(after) >= DATASETS_MAX:
            return None
        name = self._new_name()
        after[name] = ModelDataset(bytes(SMALL_BYTES))
        return self._call(calls.create(name, SMALL_BYTES, block_size=BLOCK_BYTES), after)

    def _write(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        name, dataset = picked
        length = self._random.randint(1, SMALL_BYTES)
        offset = self._random.randrange(SMALL_BYTES - length + 1)
        data = self._random.randbytes(length)
        dataset.content = apply(dataset.content, [VolatileWrite(offset, data)])
        return Pending(lambda: self.client.write(name, offset, data), after)

    def _snapshot(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or len(picked[1].snapshots) >= SNAPSHOTS_MAX:
            return None
        self._names += 1
        snapshot = ModelSnapshot(f"s{self._names}", picked[1].content)
        picked[1].snapshots.append(snapshot)
        return self._call(calls.create_snapshots([f"{picked[0]}@{snapshot.name}"]), after)

    def _clone(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or len(after) >= DATASETS_MAX:
            return None
        name = self._new_name()
        picked[1].clones += 1
        after[name] = ModelDataset(picked[1].content, origin=picked[1])
        return self._call(calls.clone(picked[2], name), after)

    def _rollback(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or not picked[1].snapshots:
            return None
        picked[1].content = picked[1].snapshots[-1].content
        return self._call(calls.rollback(picked[0]), after)

    def _destroy(self, after: Model) -> Pending | None:
        picked = self._pick(after)
        if picked is None or any(snapshot.needed for snapshot in picked[1].snapshots):
            return None
        if picked[1].origin is not None:
            picked[1].origin.clones -= 1
        del after[picked[0]]
        return self._call(calls.destroy([picked[0]], recursive=True), after)

    def _destroy_snapshot(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or picked[1].needed:
            return None
        picked[0].snapshots.remove(picked[1])
        return self._call(calls.destroy_snapshots([picked[2]]), after)

    def _rename(self, after: Model) -> Pending | None:
        if (picked := self._pick(after)) is None:
            return None
        name = self._new_name()
        after[name] = after.pop(picked[0])
        return self._call(calls.rename(picked[0], name), after)

    def _hold(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or picked[1].tags:
            return None
        picked[1].tags.add("tag")
        return self._call(calls.hold(picked[2], "tag"), after)

    def _release(self, after: Model) -> Pending | None:
        picked = self._pick_snapshot(after)
        if picked is None or not picked[1].tags:
            return None
        picked[1].tags.clear()
        return self._call(calls.release(picked[2], "tag"), after)

    # Verification -----------------------------------------------------------------------------

    def verify(self) -> None:
        """Compares a server that was started again with the oracle."""
        found = self._look()
        if self.pending is not None:
            assert found in (shown(self.model), shown(self.pending.after)), self.base
            happened = found == shown(self.pending.after) != shown(self.model)
            self._finish_pending()
            self.replayed += happened
            assert self._look() == shown(self.model), "a call sent again happened twice"
        else:
            assert found == shown(self.model), self.base
        if self._lost:
            self._see_what_is_left()
        self._find_prefix()
        if any(write.acknowledged for write in self._unflushed):
            before = self.lost_reports
            self._flush()
            assert self.lost_reports == before + 1, "unflushed writes were lost in silence"

    def _look(self) -> dict[str, object]:
        found: dict[str, object] = {}
        with cowshed.connect(self._server.unix) as patient:
            tags: dict[str, set[str]] = {}
            for hold in patient.list_holds(prefix=f"{self.base}/d"):
                tags.setdefault(hold.snapshot, set()).add(hold.tag)
            for dataset in patient.list(f"{self.base}/d"):
                found[dataset.name] = patient.read(dataset)
                for snapshot in patient.list_snapshots(dataset):
                    held = frozenset(tags.get(snapshot.name, ()))
                    found[snapshot.name] = (patient.read(snapshot), held)
        return found
