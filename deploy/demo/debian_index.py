# SPDX-License-Identifier: Apache-2.0
"""Real input: this machine's own Debian package index as a SQLite database."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096  # SQLite's default, and the block size of the dataset that will hold it
_STATUS = Path("/var/lib/dpkg/status")
_RELATIONS = ("Pre-Depends", "Depends", "Recommends", "Suggests", "Conflicts", "Provides")

_SCHEMA = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA journal_mode = MEMORY;
PRAGMA synchronous = OFF;
CREATE TABLE package (
  id INTEGER PRIMARY KEY,
  suite TEXT NOT NULL,
  name TEXT NOT NULL,
  version TEXT NOT NULL,
  architecture TEXT NOT NULL,
  section TEXT NOT NULL,
  maintainer TEXT NOT NULL,
  installed_size INTEGER NOT NULL,
  filename TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  tags TEXT NOT NULL,
  homepage TEXT NOT NULL,
  description TEXT NOT NULL,
  reviewed_by TEXT
);
CREATE TABLE relation (
  package INTEGER NOT NULL REFERENCES package (id),
  kind TEXT NOT NULL,
  target TEXT NOT NULL
);
CREATE INDEX package_by_name ON package (name);
CREATE INDEX package_by_section ON package (section);
CREATE INDEX relation_by_target ON relation (target);
"""


@dataclass(frozen=True)
class Index:
    """What a database was made from."""

    source: str
    packages: int
    relations: int
    suites: int
    size_bytes: int

    def __str__(self) -> str:
        text = f"{self.packages:,} packages and {self.relations:,} relations of {self.source}"
        if self.suites > 1:
            text += f" (too small for one load: loaded as {self.suites} suites)"
        return text


def _read_index() -> tuple[str, str]:
    """The index of all available packages, or where apt has none, that of the installed ones."""
    command = ["apt-cache", "dumpavail"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        text = ""
    else:
        text = done.stdout.decode("utf-8", "replace")
    if text.strip():
        return " ".join(command), text
    return str(_STATUS), _STATUS.read_text("utf-8", "replace")


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a Debian control file, as field -> value."""
    for paragraph in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] = fields.get(name, "") + "\n" + line.strip()
            else:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields.get("Package"):
            yield fields


def _load(database: sqlite3.Connection, suite: str, stanzas: list[dict[str, str]]) -> None:
    first = database.execute("SELECT coalesce(max(id), 0) + 1 FROM package").fetchone()[0]
    packages = (
        (
            number,
            suite,
            fields["Package"],
            *(fields.get(key, "") for key in ("Version", "Architecture", "Section", "Maintainer")),
            int(fields.get("Installed-Size") or 0),
            *(fields.get(key, "") for key in ("Filename", "SHA256", "Tag", "Homepage")),
            fields.get("Description", ""),
        )
        for number, fields in enumerate(stanzas, first)
    )
    database.executemany(
        f"INSERT INTO package VALUES ({','.join('?' * 13)}, NULL)", packages
    )
    relations = (
        (number, kind, target.strip())
        for number, fields in enumerate(stanzas, first)
        for kind in _RELATIONS
        for target in fields.get(kind, "").split(",")
        if target.strip()
    )
    database.executemany("INSERT INTO relation VALUES (?, ?, ?)", relations)
    database.commit()


def build(path: Path, min_bytes: int) -> Index:
    """Makes the database; loads the index again under another suite's name until it is larger than
    `min_bytes`."""
    source, text = _read_index()
    stanzas = list(_stanzas(text))
    if not stanzas:
        raise RuntimeError(f"{source} lists no package: is this a Debian machine?")
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    try:
        database.executescript(_SCHEMA)
        suites = 0
        while suites == 0 or path.stat().st_size <= min_bytes:
            suites += 1
            _load(database, f"suite{suites}", stanzas)
        packages = database.execute("SELECT count(*) FROM package").fetchone()[0]
        relations = database.execute("SELECT count(*) FROM relation").fetchone()[0]
    finally:
        database.close()
    return Index(source, packages, relations, suites, path.stat().st_size)


@dataclass(frozen=True)
class Slice:
    """Rows that one clone is to change."""

    suite: str
    section: str


def slices(path: Path, count: int) -> list[Slice]:
    """The largest sections, disjoint."""
    with sqlite3.connect(path) as database:
        rows = database.execute(
            "SELECT suite, section FROM package GROUP BY suite, section"
            " ORDER BY count(*) DESC, suite, section LIMIT ?",
            (count,),
        ).fetchall()
    database.close()
    if len(rows) < count:
        raise RuntimeError(f"the index has {len(rows)} sections only, {count} are needed")
    return [Slice(*row) for row in rows]


def review(path: Path, part: Slice, reviewer: str) -> int:
    """Marks the rows of a slice as reviewed. Returns how many."""
    database = sqlite3.connect(path)
    try:
        with database:
            done = database.execute(
                "UPDATE package SET reviewed_by = ? WHERE suite = ? AND section = ?",
                (reviewer, part.suite, part.section),
            )
        return done.rowcount
    finally:
        database.close()


def integrity(path: Path) -> str:
    """What SQLite thinks of the file: "ok", or the first thing that is wrong."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return str(database.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        database.close()


def reviews(path: Path) -> dict[tuple[str, Slice], int]:
    """How many rows each reviewer has marked in each slice."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        rows = database.execute(
            "SELECT reviewed_by, suite, section, count(*) FROM package"
            " WHERE reviewed_by IS NOT NULL GROUP BY 1, 2, 3"
        )
        return {(who, Slice(suite, section)): count for who, suite, section, count in rows}
    finally:
        database.close()


def changed_pages(before: Path, after: Path) -> int:
    """Pages of `after` that `before` does not have at the same place."""
    count = 0
    with before.open("rb") as old, after.open("rb") as new:
        while chunk := new.read(256 * PAGE_BYTES):
            base = old.read(len(chunk))
            if base == chunk:
                continue
            count += sum(
                base[at : at + PAGE_BYTES] != chunk[at : at + PAGE_BYTES]
                for at in range(0, len(chunk), PAGE_BYTES)
            )
    return count
