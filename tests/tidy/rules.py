# SPDX-License-Identifier: Apache-2.0
"""What a rule is: a function from a Tree to findings that comes with samples, a tree that breaks it
and, where the line is fine, one that does not. A rule without a bad sample cannot be registered,
and a rule that does not find its bad sample fails its own test. The rules themselves are in the
modules *_rules.py."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SKIPPED_FOLDERS = {".git", ".cache", ".mypy_cache", ".pytest_cache", "__pycache__", "build"}


@dataclass
class Tree:
    """The files of a checkout, by path relative to its root; text files only."""

    files: dict[str, str]

    @staticmethod
    def read(root: Path) -> Tree:
        files = {}
        for folder, names, leaves in os.walk(root):
            names[:] = [
                name
                for name in names
                if name not in _SKIPPED_FOLDERS and not name.endswith(".egg-info")
            ]
            for leaf in leaves:
                path = Path(folder, leaf)
                try:
                    files[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
                except (UnicodeDecodeError, FileNotFoundError):
                    continue  # A binary, or a file that a build running beside us has removed.
        return Tree(files)

    def match(self, *patterns: str) -> Iterator[tuple[str, str]]:
        """Files whose path matches one of the patterns; `*` crosses folders."""
        for path in sorted(self.files):
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                yield path, self.files[path]

    def cpp(self, *folders: str) -> Iterator[tuple[str, str]]:
        endings = (".h", ".cc")
        return self.match(*(f"{folder}/*{ending}" for folder in folders for ending in endings))


Check = Callable[[Tree], list[str]]


@dataclass
class Rule:
    name: str
    check: Check
    bad: list[dict[str, str]]
    good: list[dict[str, str]] = field(default_factory=list)


RULES: list[Rule] = []


def rule(
    *, bad: list[dict[str, str]], good: list[dict[str, str]] | None = None
) -> Callable[[Check], Check]:
    assert bad, "a rule needs a sample that breaks it"

    def register(check: Check) -> Check:
        RULES.append(Rule(check.__name__, check, bad, good or []))
        return check

    return register
