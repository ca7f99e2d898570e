# SPDX-License-Identifier: Apache-2.0
"""The main job of Cowshed on real input: one golden database, a hundred clones of it, twenty of them
changed, all of them thrown away."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import cowshed
import debian_index
from cowshed import devices
from cowshed.client import Client
from cowshed.images import export_image, import_image
from cowshed.v1 import pool_pb2
from debian_index import PAGE_BYTES, Slice
from report import CloneFigures, Report, human
from server import Server

GOLDEN, SNAPSHOT, PREFIX = "golden", "golden@v1", "dev"
CLONES, CHANGED = 100, 20
MIN_BYTES = 50 * 2**20
GROWTH_BYTES = 8 * 2**20  # of a database that is changed on its device
MAX_RATIO = 2.0  # bytes written per byte of changed pages: the page itself and its part of the nodes
DRAIN_SECONDS = 120.0
_SHOWN_LINES = 12


def clone_name(number: int) -> str:
    """dev/001 and so on."""
    return f"{PREFIX}/{number:03}"


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Scenario:
    """The steps, to be taken in the order of the methods."""

    def __init__(self, server: Server, client: Client, directory: Path, report: Report) -> None:
        self._server = server
        self._client = client
        self._directory = directory
        self._report = report
        self._database = directory / "golden.db"
        self._sha256 = ""
        self._slices: list[Slice] = []
        self._changed_sha256: dict[str, str] = {}
        self._allocated_before = 0

    def build_database(self) -> None:
        """Turns the machine's package index into a database."""
        with self._report.step("build the database") as step:
            index = debian_index.build(self._database, MIN_BYTES)
            step.note = f"{human(index.size_bytes)}: {index}"
        self._report.check(
            "the database is larger than 50 MiB", index.size_bytes > MIN_BYTES, index.size_bytes
        )
        self._report.figures["database_bytes"] = index.size_bytes
        self._sha256 = sha256(self._database)
        self._slices = debian_index.slices(self._database, CHANGED)

    def import_golden(self) -> None:
        """Imports and snapshots it."""
        with self._report.step(f"import as {GOLDEN}") as step:
            done = import_image(self._client, self._database, GOLDEN, block_size=PAGE_BYTES)
            rate = human(done.written_bytes / step.stop())
            step.note = f"{rate}/s, durable in txg {done.txg}"
        with self._report.step(f"snapshot {SNAPSHOT}") as step:
            snapshot = self._client.snapshot(SNAPSHOT)
            step.note = f"{human(snapshot.referenced_bytes)} referenced"
        pool = self.settle()
        self._allocated_before = pool.allocated_bytes
        self._report.figures["allocated_before_bytes"] = pool.allocated_bytes

    def make_clones(self) -> None:
        """Makes the clones, one call after the other."""
        slowest = 0.0
        with self._report.step(f"make {CLONES} clones") as step:
            for number in range(1, CLONES + 1):
                start = time.monotonic()
                self._client.clone(SNAPSHOT, clone_name(number))
                slowest = max(slowest, time.monotonic() - start)
            mean = step.stop() / CLONES
            step.note = f"{mean * 1e3:.1f} ms each, {slowest * 1e3:.1f} ms the slowest"
        used = self._client.pool().allocated_bytes - self._allocated_before
        self._report.check(f"{CLONES} clones take no space", used == 0, f"{used} bytes")

    def change_clones(self) -> None:
        """Changes rows in some of them: export, SQL, import of what differs."""
        rows, before = 0, self._blocks_written()
        with self._report.step(f"change {CHANGED} clones") as step:
            for number, part in enumerate(self._slices, 1):
                rows += self._change(clone_name(number), part)
            step.note = f"{rows:,} rows by export, SQL and import --changed-only"
        self._report.figures["changes_to_data_file_bytes"] = self._blocks_written() - before

    def change_in_place(self) -> None:
        """Attaches another clone as a file, which SQLite changes where it is; nothing is exported."""
        name, part = clone_name(CHANGED + 1), self._slices[0]
        path = self._directory / "attached.db"
        report, before = self._report, self._blocks_written()
        with report.step(f"attach {name} as a file") as step:
            if lacking := devices.lacking_for_files():
                step.note = f"skipped: {lacking}"
                return
            # A device does not grow with its database.
            self._client.resize(name, self._client.get(name).size_bytes + GROWTH_BYTES)
            self._cow("attach", name, "--file", str(path), "--background")
            step.note = f"{human(path.stat().st_size)} through nbdfuse, read and written in place"
        with report.step(f"change {name} in place") as step:
            rows = debian_index.review(path, part, name)
            self._cow("attachments")
            self._cow("detach", str(path))
            step.note = f"{rows:,} rows by SQL on the attached file, no export, no import"
        report.figures["in_place_rows"] = rows
        report.figures["in_place_to_data_file_bytes"] = self._blocks_written() - before
        report.check("nothing is attached any more", not list(self._client.attachments()), "none")
        exported = self._exported(name)
        found = debian_index.integrity(exported)
        report.check("what was changed in place is sound when exported", found == "ok", found)
        reviewed = debian_index.reviews(exported)
        report.check(
            "it has the rows changed in place", reviewed == {(name, part): rows}, f"{rows:,} rows"
        )
        exported.unlink()

    def _blocks_written(self) -> int:
        return int(self._server.scrape()["cowshed_blocks_written_bytes_total"])

    def _change(self, name: str, part: Slice) -> int:
        path = self._exported(name)
        rows = debian_index.review(path, part, name)
        import_image(self._client, path, name, changed_only=True, resize=True)
        dataset = self._client.get(name)
        sublists = list(self._client.livelist(name))
        pages = debian_index.changed_pages(self._database, path)
        self._report.clones.append(
            CloneFigures(
                name, part.section, rows, pages, dataset.written_bytes, len(sublists),
                sum(sublist.entries for sublist in sublists),
                dataset.written_bytes / (pages * PAGE_BYTES),
            )
        )  # fmt: skip
        self._changed_sha256[name] = sha256(path)
        path.unlink()
        return rows

    def show(self) -> None:
        """Shows what the command line says to it."""
        self._cow("tree")
        self._cow("space")
        self._cow("space", SNAPSHOT)
        self._cow("space", clone_name(1))
        self._cow("space", clone_name(CLONES))

    def verify(self) -> None:
        """Exports the changed clones again and looks whose rows are in there."""
        report, sound, own, exact = self._report, 0, 0, 0
        with report.step(f"export and verify the {CHANGED} clones"):
            for figures, part in zip(report.clones, self._slices, strict=True):
                path = self._exported(figures.name)
                sound += debian_index.integrity(path) == "ok"
                own += debian_index.reviews(path) == {(figures.name, part): figures.rows}
                exact += sha256(path) == self._changed_sha256[figures.name]
                path.unlink()
        of = f"of {CHANGED}"
        report.check("PRAGMA integrity_check says ok", sound == CHANGED, f"{sound} {of}")
        report.check("each has its own rows and no other's", own == CHANGED, f"{own} {of}")
        report.check("each is bit for bit what was imported", exact == CHANGED, f"{exact} {of}")
        with report.step(f"export {GOLDEN} and {SNAPSHOT}"):
            for name in (GOLDEN, SNAPSHOT):
                path = self._exported(name)
                found = sha256(path)
                report.check(f"{name} has its SHA-256 still", found == self._sha256, found)
                path.unlink()
        worst = max(figures.ratio for figures in report.clones)
        report.check(
            f"at most {MAX_RATIO:g} bytes written per changed byte",
            worst <= MAX_RATIO,
            f"{worst:.3f}",
        )
        self._check_pool("with all clones")
        self._note_space()

    def _note_space(self) -> None:
        report, pool = self._report, self._client.pool()
        report.figures["allocated_with_clones_bytes"] = pool.allocated_bytes
        report.figures["referenced_by_clones_bytes"] = sum(
            dataset.referenced_bytes for dataset in self._client.list(PREFIX)
        )
        written = sum(figures.written_bytes for figures in report.clones)
        report.figures["written_to_clones_bytes"] = written
        report.figures["written_per_changed_clone_bytes"] = written // len(report.clones)
        report.figures["livelist_sublists"] = sum(one.sublists for one in report.clones)
        report.figures["livelist_entries"] = sum(one.entries for one in report.clones)

    def destroy(self) -> None:
        """Destroys all clones and waits until their space is back."""
        report, start = self._report, time.monotonic()
        with report.step(f"destroy {CLONES} clones") as step:
            operation = self._client.destroy_prefix(PREFIX)
            step.note = "the call: one txg, all names are free"
        left = sum(1 for _ in self._client.list(PREFIX))
        report.check("no clone is listed any more", left == 0, left)
        with report.step("wait for their space") as step:
            info = operation.wait(DRAIN_SECONDS)
            pool = self.settle()
            step.note = f"{info.name}: {human(info.done_bytes)} given back"
        report.figures["reclaimed_after_seconds"] = round(time.monotonic() - start, 4)
        report.figures["allocated_after_bytes"] = pool.allocated_bytes
        report.check("nothing is left to free", pool.freeing_bytes == 0, pool.freeing_bytes)
        report.check(
            "allocated space is what it was before the clones",
            pool.allocated_bytes == self._allocated_before,
            f"{pool.allocated_bytes} and {self._allocated_before} bytes",
        )
        self._note_latency()
        self._check_pool("without clones")

    def _note_latency(self) -> None:
        """Reads back from /metrics how the clones were reclaimed, and how long it took."""
        samples = self._server.scrape()
        reclaimed = samples['cowshed_destroy_method_total{method="livelist"}']
        self._report.check(
            "all clones were reclaimed by their livelists", reclaimed == CLONES, f"{reclaimed:g}"
        )
        latency = "cowshed_reclaim_latency_seconds"
        count = samples[f'{latency}_count{{kind="clone"}}']
        self._report.check("/metrics has the reclaim latency", count > 0, f"{count:g} observed")
        if count:
            mean = samples[f'{latency}_sum{{kind="clone"}}'] / count
            self._report.figures["reclaim_latency_seconds"] = round(mean, 4)

    def settle(self) -> pool_pb2.Pool:
        """Waits until nothing is left to free, at most DRAIN_SECONDS. Returns the pool."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            pool = self._client.pool()
            if pool.freeing_bytes == 0 and pool.reclaim_pending_count == 0:
                return pool
            if time.monotonic() > deadline:
                return pool
            time.sleep(0.02)

    def _check_pool(self, when: str) -> None:
        """Has the server recompute all references, lists and sums of the pool."""
        with self._report.step(f"check the pool {when}") as step:
            reply = self._client.check()
            step.note = f"{reply.block_count:,} blocks of {reply.dataset_count:,} datasets"
        first = f": {reply.findings[0].message}" if reply.findings else ""
        found = f"{reply.total_findings} findings{first}"
        self._report.check(f"the pool {when} is sound", reply.ok, found)

    def _exported(self, name: str) -> Path:
        path = self._directory / f"{name.replace('/', '-')}.db"
        export_image(self._client, name, path)
        return path

    def _cow(self, *arguments: str) -> None:
        """Runs `cow` as a user would, and prints the beginning of what it says."""
        package = Path(cowshed.__file__).parents[1]
        environment = {
            **os.environ, "PYTHONPATH": str(package), "COWSHED_ADDRESS": self._server.address
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "cowshed", *arguments],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        command = f"cow {' '.join(arguments)}"
        self._report.check(f"`{command}` works", done.returncode == 0, done.stderr.strip() or "yes")
        lines = done.stdout.splitlines()
        self._say(f"\n$ {command}")
        for line in lines[:_SHOWN_LINES]:
            cells = [f"{cell:<24}" for cell in line.split("\t")]
            self._say("  " + "".join(cells).rstrip())
        if len(lines) > _SHOWN_LINES:
            self._say(f"  ... {len(lines) - _SHOWN_LINES} more lines")

    def _say(self, line: str) -> None:
        self._report.console.print(line, highlight=False, markup=False)
