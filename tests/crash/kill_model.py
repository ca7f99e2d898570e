# SPDX-License-Identifier: Apache-2.0
"""The oracle: datasets, snapshots and what waits to be undone, as the acknowledged calls left them.

A model is a value: a call under way has the model before it and the one after it, and a server that
was started again must show one of the two.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

Action = Callable[[], object]
Seen = dict[str, tuple[object, ...]]

HISTORY_MAX = 200  # steps of one dataset


@dataclass
class ModelSnapshot:
    """A snapshot as the oracle knows it."""

    name: str
    content: bytes
    clones: int = 0
    tags: set[str] = field(default_factory=set)
    deferred: bool = False

    @property
    def needed(self) -> bool:
        """Whether it may not be destroyed."""
        return bool(self.clones or self.tags)


@dataclass
class ModelDataset:
    """A dataset as the oracle knows it; snapshots oldest first. `number` outlives its names."""

    number: int
    content: bytes
    snapshots: list[ModelSnapshot] = field(default_factory=list)
    origin: ModelSnapshot | None = None
    label: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether a snapshot of it is."""
        return any(snapshot.needed for snapshot in self.snapshots)


@dataclass
class Model:
    """Everything below one worker's names."""

    datasets: dict[str, ModelDataset] = field(default_factory=dict)
    # Destroyed with an undelete window, by operation: what comes back, and under which name.
    kept: dict[str, tuple[str, ModelDataset]] = field(default_factory=dict)

    def owned(self) -> Iterator[tuple[str, ModelDataset, ModelSnapshot]]:
        """All snapshots with their full names and datasets."""
        for name, dataset in self.datasets.items():
            for snapshot in dataset.snapshots:
                yield f"{name}@{snapshot.name}", dataset, snapshot

    def clones_of(self, dataset: ModelDataset) -> list[str]:
        """The datasets whose origin is a snapshot of this one."""
        return [
            name
            for name, clone in self.datasets.items()
            if any(clone.origin is snapshot for snapshot in dataset.snapshots)
        ]

    def parent_of(self, clone: ModelDataset) -> ModelDataset | None:
        """The dataset that holds its origin; None for one that waits to be undone."""
        for _, dataset, snapshot in self.owned():
            if snapshot is clone.origin:
                return dataset
        return None

    def drop(self, name: str) -> None:
        """Takes a dataset away; its origin needs one clone less."""
        dataset = self.datasets.pop(name)
        if dataset.origin is not None:
            dataset.origin.clones -= 1
            self.reap()

    def reap(self) -> None:
        """Takes away the deferred snapshots that nothing needs any more."""
        for dataset in [*self.datasets.values(), *(kept for _, kept in self.kept.values())]:
            dataset.snapshots = [s for s in dataset.snapshots if s.needed or not s.deferred]

    def promote(self, name: str) -> None:
        """The clone takes over its parent's snapshots up to its origin."""
        clone = self.datasets[name]
        parent = self.parent_of(clone)
        assert parent is not None and clone.origin is not None
        cut = next(i for i, s in enumerate(parent.snapshots) if s is clone.origin) + 1
        clone.snapshots = parent.snapshots[:cut] + clone.snapshots
        parent.snapshots = parent.snapshots[cut:]
        clone.origin, parent.origin = parent.origin, clone.origin

    def shown(self) -> Seen:
        """What a client must see: contents, labels and tags by name."""
        seen: Seen = {}
        for name, dataset in self.datasets.items():
            origin = "" if dataset.origin is None else dataset.origin.name
            seen[name] = (dataset.content, dataset.label, origin)
            for snapshot in dataset.snapshots:
                seen[f"{name}@{snapshot.name}"] = (
                    snapshot.content,
                    frozenset(snapshot.tags),
                    snapshot.deferred,
                )
        return seen


class History:
    """What was done to each dataset, told when something of it is lost."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._steps: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=HISTORY_MAX))

    def note(self, numbers: Iterable[int], what: str) -> None:
        """Adds a step to these datasets; 0 is the file."""
        for number in numbers:
            self._steps[number].append(f"{time.monotonic() - self._start:9.3f} s  {what}")

    def of(self, number: int) -> str:
        """The last steps of one dataset, a line each."""
        return "\n".join(f"    {step}" for step in self._steps.get(number, ()))


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_told, value)) + ")"
    if isinstance(value, bytes):
        return f"{len(value)} bytes {hashlib.sha256(value).hexdigest()[:12]}"
    return repr(value)


def explain(expected: Seen, found: Seen, numbers: dict[str, int], history: History) -> str:
    """What differs, and everything that happened to those datasets."""
    lines = []
    lost: dict[int, None] = {}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            lines.append(f"  {name}: expected {_told(expected.get(name))},")
            lines.append(f"    found {_told(found.get(name))}")
            lost[numbers.get(name.partition("@")[0], -1)] = None
    for number in lost:
        lines.append(f"  history of dataset {number}:\n{history.of(number)}")
    return "\n".join(lines)
