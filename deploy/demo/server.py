# SPDX-License-Identifier: Apache-2.0
"""A Cowshed server as a child process."""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import threading
import urllib.request
from collections import deque
from pathlib import Path
from types import TracebackType

START_SECONDS = 30.0
STOP_SECONDS = 60.0

_LISTENING = re.compile(r"\blistening on (unix:\S+|[\w.\[\]:]+:\d+)")
_METRICS = re.compile(r"\bmetrics on (?:http://)?([\w.\[\]:]+:\d+)")


class ServerError(RuntimeError):
    """The server did not start or did not stop as it should."""


class Server:
    """Starts on entry and stops on exit; `address` and `metrics` say where it listens."""

    def __init__(
        self, binary: Path, pool: Path, listen: str, metrics_listen: str, nbd_listen: str
    ) -> None:
        self.address = ""
        self.metrics = ""
        self._command = [
            str(binary), "serve", "--pool", str(pool),
            "--listen", listen, "--metrics-listen", metrics_listen, "--nbd-listen", nbd_listen,
        ]  # fmt: skip
        self._log: deque[str] = deque(maxlen=50)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Server:
        # A session of its own: Ctrl-C reaches us, and we stop it in order.
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            while not (self.address and self.metrics):
                self._take_line()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        try:
            self.stop()
        except ServerError:
            if error is None:
                raise

    def stop(self) -> None:
        """Asks it to stop; an exit status other than 0 is an error."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ServerError(f"the server did not stop within {STOP_SECONDS:g} s") from None
        if status != 0:
            raise ServerError(f"the server ended with {status}:\n{self.log()}")

    def wait(self) -> None:
        """Waits until it ends by itself."""
        assert self._process is not None
        self._process.wait()
        raise ServerError(f"the server ended with {self._process.returncode}:\n{self.log()}")

    def log(self) -> str:
        """The last lines it wrote."""
        return "".join(self._log).rstrip()

    def scrape(self) -> dict[str, float]:
        """All samples of /metrics: `name{labels}` -> value."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.metrics}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self._log.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _take_line(self) -> None:
        try:
            line = self._lines.get(timeout=START_SECONDS)
        except queue.Empty:
            raise ServerError(f"the server says nothing:\n{self.log()}") from None
        if line is None:
            raise ServerError(f"the server ended at once:\n{self.log()}")
        metrics, listening = _METRICS.search(line), _LISTENING.search(line)
        if metrics:
            self.metrics = metrics[1]
        elif listening:
            self.address = listening[1]
