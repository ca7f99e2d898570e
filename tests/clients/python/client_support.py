# SPDX-License-Identifier: Apache-2.0
"""What the tests share beside fixtures: sizes, and what a run of `cow` gives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server_process import PYTHON_DIR

MIB = 1024 * 1024


@dataclass(frozen=True)
class Result:
    """What a run of `cow` gave."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """stdout as text."""
        return self.stdout.decode()

    @property
    def lines(self) -> list[list[str]]:
        """stdout as lines of tab-separated columns."""
        return [line.split("\t") for line in self.text.splitlines()]

    @property
    def json(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.stdout)


Cow = Callable[..., Result]


def cow_environment(address: str) -> dict[str, str]:
    """The environment for `cow`."""
    return {**os.environ, "PYTHONPATH": str(PYTHON_DIR), "COWSHED_ADDRESS": address}
