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
import time
from dataclasses import dataclass, field
from typing import Any

import cowshed
from cowshed import calls
from cowshed.file import DatasetFile, merge
from kill_model import Action, History, Model, Seen, explain
from kill_verbs import BLOCK_BYTES, SMALL_BYTES, Pending, Verbs, patched
from server_process import Server

FILE_BYTES = 64 * BLOCK_BYTES
ANSWER_SECONDS_MAX = 60.0
EXPIRING_MAX = 3
EXPIRY_SLACK_SECONDS = 60.0


class ServerDied(Exception):
    """The server died under a call."""


class Loss(AssertionError):
    """Something acknowledged is not there, or something is there that nobody asked for."""


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


@dataclass
class Expiring:
    """A dataset with a time to live: it goes by itself, not before `earliest`."""

    name: str
    call: calls.Call[Any]
    earliest: float = 0.0
    latest: float = field(default=float("inf"))


def apply(content: bytes, writes: list[VolatileWrite]) -> bytes:
    """The content after some writes."""
    for write in writes:
        content = patched(content, write.offset, write.data)
    return content


class Worker:
    """One client's load. `run` it in a thread; `verify` it while no thread runs."""

    def __init__(self, server: Server, number: int, seed: int, *, timeout: float) -> None:
        self.base = f"w{number}"
        self.failure: BaseException | None = None
        self.acknowledged = 0
        self.replayed = 0
        self.lost_reports = 0
        self.lost_writes = 0
        self._server = server
        self._random = random.Random(f"{seed}/{number}")
        self._stop = threading.Event()
        # Short, so that the death of the server is soon noticed, but not so short that it gives up
        # calls that a busy server may still carry out later; calls are sent again below.
        self.client = cowshed.connect(server.unix, timeout=timeout, wait_ready=10)
        self._verbs = Verbs(self.client, self.base, self._random)
        self._history = History()
        self._expiring: list[Expiring] = []
        self.model = Model()
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

    def _insist(self, action: Action) -> object:
        """Does it, again and again, until it is answered or the server is dead."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            try:
                reply = action()
                self.acknowledged += 1
                return reply
            except (
                cowshed.UnavailableError,
                cowshed.DeadlineExceededError,
                cowshed.ServerRestartedError,
                cowshed.ResourceExhaustedError,
            ) as error:
                if isinstance(error, cowshed.LostWritesError):
                    raise
                if not self._server.alive():
                    raise ServerDied from None
                if time.monotonic() > deadline:
                    raise Loss(f"{self.base}: a server that lives does not answer: {error}") from error

    # Bytes through a file ---------------------------------------------------------------------

    def _write_or_flush(self) -> None:
        if self._unflushed and self._random.random() < 0.3:
            self._flush()
            return
        length = self._random.randint(1, 5 * BLOCK_BYTES)
        offset = self._random.randrange(FILE_BYTES - length)
        self._unflushed.append(VolatileWrite(offset, self._random.randbytes(length)))
        self._history.note((0,), f"write {offset}+{length}")
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
            by_txg = self._random.random() < 0.5
            self._insist(self._file.flush if by_txg else self._file.fdatasync)
        except cowshed.LostWritesError as error:
            self._note_lost(error)
            return
        self._durable = apply(self._durable, self._unflushed)
        self._unflushed = []
        self._history.note((0,), "flushed")

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
        self._history.note((0,), f"{kept} of {len(self._unflushed)} unflushed writes are there")
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
        raise Loss(
            f"{self.base}/file shows neither what was flushed nor what followed:\n"
            + self._history.of(0)
        )

    # Lifecycle --------------------------------------------------------------------------------

    def _lifecycle(self) -> None:
        if len(self._expiring) < EXPIRING_MAX and self._random.random() < 0.03:
            self._create_expiring()
            return
        self.pending = self._verbs.any(copy.deepcopy(self.model))
        if self.pending is not None:
            self._finish_pending()

    def _finish_pending(self) -> None:
        pending = self.pending
        assert pending is not None
        self._history.note(pending.numbers, f"{pending.what} ...")
        try:
            pending.learn(self._insist(pending.action))
        except ServerDied:
            self._history.note(pending.numbers, "... unanswered: the server died")
            raise
        except cowshed.CowshedError as error:
            told = "\n".join(map(self._history.of, pending.numbers))
            raise Loss(f"{pending.what}: {error!r}\n{told}") from error
        self._history.note(pending.numbers, "... acknowledged")
        self.model = pending.after
        self.pending = None

    def _create_expiring(self) -> None:
        name = f"{self.base}/x/{self._verbs.new_number()}"
        ttl = self._random.uniform(0.5, 3.0)
        expiring = Expiring(name, calls.create(name, SMALL_BYTES, ttl=ttl))
        expiring.earliest = time.monotonic() + ttl
        self._expiring.append(expiring)
        self._insist(lambda: self.client.call(expiring.call))
        expiring.latest = time.monotonic() + ttl + EXPIRY_SLACK_SECONDS

    # Verification -----------------------------------------------------------------------------

    def verify(self, *, stopped: bool = False) -> None:
        """Compares a server that was started again with the oracle. One that was asked to stop has
        lost nothing, flushed or not."""
        found = self._look()
        if self.pending is not None:
            before, after = self.model.shown(), self.pending.after.shown()
            if found != before:
                self._expect(after, found, self.pending.after)
            self._finish_pending()
            self.replayed += found == after != before
            # Sent again, it has not happened twice.
            self._expect(self.model.shown(), self._look(), self.model)
        else:
            self._expect(self.model.shown(), found, self.model)
        self._see_what_expired()
        if self._lost:
            self._see_what_is_left()
        _, kept = self._find_prefix()
        if stopped and kept < sum(write.acknowledged for write in self._unflushed):
            raise Loss(f"{self.base}/file: a server that stopped lost acknowledged writes")
        if any(write.acknowledged for write in self._unflushed):
            reports = self.lost_reports
            self._flush()
            if self.lost_reports != reports + 1:
                raise Loss(f"{self.base}/file: unflushed writes were lost in silence")

    def _expect(self, expected: Seen, found: Seen, model: Model) -> None:
        if found == expected:
            return
        numbers = {name: dataset.number for name, dataset in model.datasets.items()}
        raise Loss(f"{self.base}:\n" + explain(expected, found, numbers, self._history))

    def _see_what_expired(self) -> None:
        left = []
        for expiring in self._expiring:
            asked = time.monotonic()
            there = self._exists(expiring.name)
            unanswered = expiring.latest == float("inf")
            if not there and not unanswered and time.monotonic() < expiring.earliest:
                raise Loss(f"{expiring.name} is gone before its time")
            if there and asked > expiring.latest:
                raise Loss(f"{expiring.name} is there {EXPIRY_SLACK_SECONDS} s after its end")
            if there:
                left.append(expiring)
        self._expiring = left

    def _exists(self, name: str) -> bool:
        with cowshed.connect(self._server.unix) as patient:
            return patient.exists(name)

    def finish(self) -> None:
        """Undoes what waits, so that everything can be destroyed; sees the rest expire."""
        with cowshed.connect(self._server.unix) as patient:
            for operation in self.model.kept:
                patient.undestroy(operation)
        while self._expiring:
            self._see_what_expired()
            time.sleep(0.1)
        self.client.close()

    def _look(self) -> Seen:
        found: Seen = {}
        with cowshed.connect(self._server.unix) as patient:
            tags: dict[str, set[str]] = {}
            for hold in patient.list_holds(prefix=f"{self.base}/d"):
                tags.setdefault(hold.snapshot, set()).add(hold.tag)
            for dataset in patient.list(f"{self.base}/d"):
                origin = dataset.origin.partition("@")[2]
                label = dataset.labels.get("l", "")
                found[dataset.name] = (patient.read(dataset), label, origin)
                for snapshot in patient.list_snapshots(dataset):
                    held = frozenset(tags.get(snapshot.name, ()))
                    found[snapshot.name] = (patient.read(snapshot), held, snapshot.deferred)
        return found
