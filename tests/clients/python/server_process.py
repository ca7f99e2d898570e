# SPDX-License-Identifier: Apache-2.0
"""The real server as a child process, and a TCP proxy that can lose what the server answers."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("COWSHED_BUILD_DIR", ROOT / "build/release"))
PYTHON_DIR = Path(os.environ.get("COWSHED_PYTHON_DIR", BUILD / "python"))
START_SECONDS = 30

_ANNOUNCED = re.compile(r"\blistening on (unix:\S+|[\w.\[\]:]+:\d+)")


def server_binary() -> Path:
    """The server under test."""
    if "COWSHED_SERVER_BINARY" in os.environ:
        return Path(os.environ["COWSHED_SERVER_BINARY"])
    candidates = [BUILD / "service/cowshed", BUILD / "bin/cowshed"]
    return next((path for path in candidates if path.exists()), candidates[0])


class ServerEnded(RuntimeError):
    """The server ended before it listened; `status` is its exit status, -9 after SIGKILL."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(f"the server ended with status {status}:\n{log}")
        self.status = status


class Server:
    """A server on a pool of its own, listening on a unix socket and on a port of 127.0.0.1.

    It can be killed and started again on the same pool and addresses.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.unix = f"unix:{directory}/cowshed.sock"
        self.tcp = "127.0.0.1:0"
        self.metrics = "127.0.0.1:0"  # "off" makes a stop two seconds quicker
        self.log: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: object, failpoints: str = "") -> None:
        """Starts it, with further arguments and armed failpoints, and waits until it listens.

        Raises ServerEnded where it ends first: an armed failpoint may be met while the pool opens.
        """
        listening: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [
                server_binary(),
                "serve",
                "--pool", self.directory / "pool",
                "--listen", self.unix,
                "--listen", self.tcp,
                "--metrics-listen", self.metrics,
                *map(str, arguments),
            ],
            env={**os.environ, "COWSHED_FAILPOINTS": failpoints},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        reader = threading.Thread(target=self._read, args=(listening,), daemon=True)
        reader.start()
        missing = {"unix", "tcp"}
        while missing:
            address = listening.get(timeout=START_SECONDS)
            if address is None:
                status = self.wait(START_SECONDS)
                assert status is not None, "the server closed its output and lives"
                raise ServerEnded(status, "".join(self.log))
            if address.startswith("unix:"):
                missing.discard("unix")
            else:
                self.tcp = address
                missing.discard("tcp")

    def _read(self, listening: queue.Queue[str | None]) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self.log.append(line)
            announced = _ANNOUNCED.search(line)
            if announced and "metrics" not in line:
                listening.put(announced[1])
        listening.put(None)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> int:
        """Asks it to stop. Returns its exit status."""
        return self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it, as a crash would."""
        self._signal(signal.SIGKILL)

    def alive(self) -> bool:
        """Whether it runs: it may have died of a failpoint."""
        process = self._process
        return process is not None and process.poll() is None

    def wait(self, seconds: float) -> int | None:
        """Waits for its end. Returns its exit status, None if it did not end."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return status

    def _signal(self, number: int) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        status = self._process.wait(timeout=START_SECONDS)
        self._process = None
        return status


class Proxy:
    """Passes bytes between one port and a server. `deafen` loses what the server answers from then
    on; `cut` closes all connections and passes bytes again on new ones."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._deaf = threading.Event()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def deafen(self) -> None:
        """From now on the client hears nothing."""
        self._deaf.set()

    def cut(self) -> None:
        """Closes every connection; new ones work."""
        with self._lock:
            self._deaf.clear()
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets.clear()

    def close(self) -> None:
        """Ends the proxy."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                self._sockets += [client, server]
                self.connections += 1
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(
                target=self._pump, args=(server, client, self._deaf), daemon=True
            ).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, mute: threading.Event | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if mute is None or not mute.is_set():
                    sink.sendall(data)
