# SPDX-License-Identifier: Apache-2.0
"""Runs `cow` (or another command) on a pseudo-terminal, as a person would."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from collections.abc import Mapping, Sequence

from client_support import cow_environment

LIMIT_SECONDS = 60


def on_terminal(
    arguments: Sequence[str],
    address: str,
    answer: str = "",
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Runs `cow ARGUMENTS` and types `answer` at the first question.

    Returns:
        its exit status and all that appeared on the terminal.
    """
    is_program = arguments[0] == "bash"
    command = list(arguments) if is_program else [sys.executable, "-m", "cowshed", *arguments]
    env = {**cow_environment(address), "TERM": "xterm-256color", "COLUMNS": "160"}
    env.update(environment or {})
    child, fd = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, env)
    output = b""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if not select.select([fd], [], [], 1)[0]:
            continue
        try:
            data = os.read(fd, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not data:
            break
        output += data
        if answer and b"?" in output:
            os.write(fd, answer.encode())
            answer = ""
    os.close(fd)
    _, raw = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(raw), output.decode()
