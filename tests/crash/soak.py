# SPDX-License-Identifier: Apache-2.0
"""A real server under mixed load that is killed again and again, and what it must still know.

    soak.py --minutes N [--seed S]      (or ./dev soak)

Clients in Python (kill_load) and in C++ (tests/soak) run beside one another, on small limits, so that
condense, reclaim and rebuild happen underneath. A round starts the server, verifies what it knows,
lets the load run and ends with a death: SIGKILL at random, SIGKILL at a failpoint, or SIGTERM, after
which not even unflushed writes may be missing. Now and then the pool is checked offline. At the end
everything is destroyed and every byte must come back. The last line counts cases and losses.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients/python"))

from server_process import BUILD, PYTHON_DIR, Server, ServerEnded, server_binary  # noqa: E402

sys.path.insert(0, str(PYTHON_DIR))

import cowshed  # noqa: E402
from kill_load import Loss, Worker  # noqa: E402

WORKERS = 3
HERDS = 3
FAILPOINT_SECONDS = 10.0
STOP_SECONDS = 8.0  # a drain of at most 5 s, a last sync, and a machine with other work
CHECK_EVERY = 12  # rounds

SYNC_POINTS = (
    "sync.data_written",
    "sync.tasks_run",
    "sync.before_fsync",
    "sync.before_commit",
    "meta.before_commit",
    "meta.after_commit",
    "sync.after_commit",
)
# Where background work can be cut in two.
BACKGROUND_POINTS = (
    "reclaim.applied",
    "reclaim.verify",
    "condense.shadow",
    "condense.swap",
    "condense.swapped",
    "undelete.end",
    "undelete.ended",
    "undelete.undone",
)
# The first one makes a livelist be given up, so that there is one to rebuild.
REBUILD_POINTS = ("rebuild.begin", "rebuild.walk", "rebuild.shadow", "rebuild.swap")
DAMAGED = "livelist.damaged=true:skip={skip}:count=1"
OPTIONS = ("--capacity", "128MiB", "--blocks-reserve", "4MiB", "--meta-reserve", "4MiB") + (
    "--txg-interval-ms", "150", "--livelist-max-entries", "64", "--node-cache", "1MiB",
)  # fmt: skip


# What a worker or a round may end with: a loss, or an error that a healthy server never answers.
FAILURES = (AssertionError, cowshed.CowshedError, ServerEnded, subprocess.SubprocessError)


@dataclass
class Round:
    """How one life of the server ends, and the failpoints it is started with."""

    cause: str
    failpoints: str = ""
    # Only a server that lives until it is told to die can be verified first.
    deadly: bool = False


@dataclass
class Tally:
    """What happened so far."""

    deaths: Counter[str] = field(default_factory=Counter)
    stops: int = 0
    checks: int = 0
    acknowledged: int = 0
    replayed: int = 0
    lost_reports: int = 0
    losses: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Deaths by SIGKILL."""
        return sum(self.deaths.values())


def rounds(chance: random.Random) -> Iterator[Round]:
    """For ever: deadly rounds of all causes in turn, each after one that verifies what the last one
    left, and ends by a kill at random or, one time in six, by SIGTERM."""
    while True:
        deadly = [_sync_round(point, chance) for point in SYNC_POINTS]
        for point in BACKGROUND_POINTS:
            skip = chance.randint(0, 8)
            deadly.append(Round(point.partition(".")[0], f"{point}=kill:skip={skip}", True))
        # As the reclaimer takes a job apart: most of what a death could repeat or forget.
        deadly += [
            Round("reclaim", f"reclaim.applied=kill:skip={chance.randint(1, 12)}", True)
            for _ in range(3)
        ]
        for point in REBUILD_POINTS:
            damaged = DAMAGED.format(skip=chance.randint(0, 20))
            deadly.append(Round("rebuild", f"{damaged};{point}=kill", True))
        for one in _interleaved(deadly, chance):
            damaged = DAMAGED.format(skip=chance.randint(0, 50)) if chance.random() < 0.25 else ""
            yield Round("stop" if chance.random() < 1 / 6 else "random", damaged)
            yield one


def _interleaved(deadly: list[Round], chance: random.Random) -> list[Round]:
    """In random order, but the first ones are of all causes."""
    chance.shuffle(deadly)
    met: Counter[str] = Counter()
    turns = []
    for one in deadly:
        turns.append(met[one.cause])
        met[one.cause] += 1
    return [one for _, one in sorted(zip(turns, deadly, strict=True), key=lambda pair: pair[0])]


def _sync_round(point: str, chance: random.Random) -> Round:
    return Round(point.partition(".")[0], f"{point}=kill:skip={chance.randint(0, 60)}", True)


def _memory_or_temporary() -> str | None:
    shared = Path("/dev/shm")
    enough = shared.is_dir() and shutil.disk_usage(shared).free > 1 << 30
    return str(shared) if enough else None


def _client_binary() -> Path:
    """The C++ client of this build."""
    return Path(os.environ.get("COWSHED_SOAK_CLIENT", BUILD / "tests/soak_client"))


class Herds:
    """The C++ clients: one process that outlives the servers."""

    def __init__(self, server: Server, seed: int) -> None:
        self._process = subprocess.Popen(
            [_client_binary(), server.unix, str(seed), str(HERDS)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def has_ended(self) -> bool:
        """Whether it gave up: nothing but losses makes it."""
        return self._process.poll() is not None

    def finish(self) -> tuple[int, str]:
        """Lets it look at everything once more; the calls acknowledged, and its losses if any."""
        self._process.terminate()
        try:
            told, _ = self._process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.kill()
            return 0, "the C++ clients were not answered for two minutes"
        last = told.rstrip().rpartition("\n")[2]
        lost = told if self._process.returncode != 0 or " acknowledged" not in last else ""
        return int(last.split()[0]) if " acknowledged" in last else 0, lost

    def kill(self) -> None:
        """Ends it at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Soak:
    """One pool, its server and its clients."""

    def __init__(self, seed: int, *, life_seconds: float, timeout: float) -> None:
        self.tally = Tally()
        self._seed = seed
        self._chance = random.Random(seed)
        self._life_seconds = life_seconds
        self._timeout = timeout
        self.directory = Path(tempfile.mkdtemp(prefix="cowsoak", dir=_memory_or_temporary()))
        self._server = Server(self.directory)
        self._workers: list[Worker] = []
        self._herds: Herds | None = None
        self._initial_bytes = 0

    def run(self, is_enough: Callable[[Tally, float], bool]) -> Tally:
        """Rounds until it is enough; then everything is destroyed. Losses are in the tally."""
        started = time.monotonic()
        try:
            self._begin()
            stopped = False
            for number, one in enumerate(rounds(self._chance)):
                self._count()
                if not one.deadly and is_enough(self.tally, time.monotonic() - started):
                    break
                stopped = self._round(one, stopped)
                if number % CHECK_EVERY == CHECK_EVERY - 1:
                    self._check_offline()
            self._end(stopped)
        except FAILURES as loss:
            self.tally.losses.append(str(loss) or repr(loss))
        finally:
            if self._herds is not None:
                self._herds.kill()
            if self._server.alive():
                self._server.kill()
        if not self.tally.losses:
            shutil.rmtree(self.directory)
        return self.tally

    def _begin(self) -> None:
        self._server.start(*OPTIONS)
        with cowshed.connect(self._server.unix) as client:
            client.create("first", 1 << 20)
            client.fdatasync("first")  # has the ring of the intent log made, which stays
            client.destroy("first").wait()
            self._initial_bytes = client.pool().allocated_bytes
        self._workers = [
            Worker(self._server, number, self._seed, timeout=self._timeout)
            for number in range(WORKERS)
        ]
        self._herds = Herds(self._server, self._seed)
        self._server.kill()

    def _count(self) -> None:
        self.tally.acknowledged = sum(worker.acknowledged for worker in self._workers)
        self.tally.replayed = sum(worker.replayed for worker in self._workers)
        self.tally.lost_reports = sum(worker.lost_reports for worker in self._workers)

    # Rounds -----------------------------------------------------------------------------------

    def _round(self, one: Round, stopped: bool) -> bool:
        """One life of the server; `stopped` and the result: whether it ended by being asked to."""
        try:
            self._server.start(*OPTIONS, failpoints=one.failpoints)
        except ServerEnded as ended:
            # Bug: a death while the pool opened, where armed txgs already run, failed the test.
            if not one.deadly or ended.status != -9:
                raise Loss(f"{one}: {ended}") from ended
            self.tally.deaths[one.cause] += 1
            return False
        if not one.deadly:
            for worker in self._workers:
                worker.verify(stopped=stopped)
        if self._herds is not None and self._herds.has_ended():
            raise Loss(self._herds.finish()[1])
        lived = FAILPOINT_SECONDS if one.deadly else self._chance.uniform(0.05, self._life_seconds)
        status = self._load(lived, kill=one.cause != "stop")
        if one.cause == "stop" and status is None:
            self.tally.stops += 1
            return True
        if one.deadly and status is not None:
            self.tally.deaths[one.cause] += 1
        elif not one.deadly and status is None:
            self.tally.deaths["random"] += 1
        if status not in (None, -9) or (status is not None and not one.deadly):
            raise Loss(f"{one}: the server ended by itself with status {status}:\n{self._log()}")
        return False

    def _load(self, seconds: float, *, kill: bool) -> int | None:
        """Runs the load until the server dies; ends the server's life after that time. Returns the
        exit status if it died by itself."""
        threads = [threading.Thread(target=worker.run) for worker in self._workers]
        for worker in self._workers:
            worker.restart()
        for thread in threads:
            thread.start()
        status = self._server.wait(seconds)
        if status is None and kill:
            self._server.kill()
        elif status is None:
            self._stop()
        for worker in self._workers:
            worker.stop()
        for thread in threads:
            thread.join()
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure
        return status

    def _stop(self) -> None:
        started = time.monotonic()
        status = self._server.stop()
        took = time.monotonic() - started
        if status != 0 or took > STOP_SECONDS:
            raise Loss(f"SIGTERM under load: status {status} after {took:.1f} s:\n{self._log()}")

    def _log(self) -> str:
        return "".join(self._server.log[-20:])

    # The end ----------------------------------------------------------------------------------

    def _check_offline(self) -> None:
        done = subprocess.run(
            [server_binary(), "check", "--pool", self.directory / "pool"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.tally.checks += 1
        if done.returncode != 0:
            raise Loss(f"the pool does not check clean:\n{done.stdout}{done.stderr}")

    def _end(self, stopped: bool) -> None:
        self._server.start(*OPTIONS)
        for worker in self._workers:
            worker.verify(stopped=stopped)
            worker.finish()
        self._count()
        assert self._herds is not None
        acknowledged, lost = self._herds.finish()
        self.tally.acknowledged += acknowledged
        if lost:
            raise Loss(lost)
        if self._server.stop() != 0:
            raise Loss(f"the server did not stop:\n{self._log()}")
        self._check_offline()
        self._server.start(*OPTIONS)
        self._empty()
        if self._server.stop() != 0:
            raise Loss(f"the server did not stop:\n{self._log()}")
        self._check_offline()

    def _empty(self) -> None:
        """Destroys everything; the space must come back to the last byte."""
        with cowshed.connect(self._server.unix) as client:
            for snapshot in {hold.snapshot for hold in client.list_holds()}:
                client.release(snapshot, "tag")
            for number in range(WORKERS):
                client.destroy_prefix(f"w{number}", recursive=True, cascade=True)
            left = [dataset.name for dataset in client.list()]
            if left:
                raise Loss(f"datasets that nobody knows: {left}")
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                pool = client.pool()
                if not pool.freeing_bytes and not pool.reclaim_pending_count:
                    break
                time.sleep(0.05)
            if pool.allocated_bytes != self._initial_bytes or pool.freeing_bytes:
                raise Loss(
                    f"{pool.allocated_bytes} bytes are allocated, {pool.freeing_bytes} of them"
                    f" freeing, and {self._initial_bytes} were in the beginning"
                )
            if not client.check().ok:
                raise Loss("the empty pool does not check clean")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill a server under load, again and again.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    print(f"soak: seed {seed}", flush=True)
    soak = Soak(seed, life_seconds=4.0, timeout=3.0)
    seconds_max: float = arguments.minutes * 60
    tally = soak.run(lambda _, seconds: seconds >= seconds_max)
    for loss in tally.losses:
        print(f"{loss}\nthe pool is kept in {soak.directory}")
    print(
        f"soak: deaths {dict(tally.deaths)}, {tally.stops} stops, {tally.checks} offline checks,"
        f" {tally.replayed} calls had happened unanswered and were sent again"
    )
    print(
        f"soak: {arguments.minutes:g} min, {tally.kills} kills,"
        f" {tally.acknowledged:,} calls acknowledged, {len(tally.losses)} losses"
    )
    return 1 if tally.losses else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
