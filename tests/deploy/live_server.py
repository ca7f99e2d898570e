# SPDX-License-Identifier: Apache-2.0
"""What the live test runs: a Cowshed server, a Prometheus that scrapes it, clients that count."""

from __future__ import annotations

import collections
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from monitoring import BUILD, PROMETHEUS_DIR, tool

sys.path.insert(0, str(BUILD / "python"))

from cowshed.v1 import (  # noqa: E402
    data_pb2_grpc,
    dataset_pb2_grpc,
    operation_pb2_grpc,
    pool_pb2_grpc,
)


def server_binary() -> str:
    named = os.environ.get("COWSHED_SERVER_BINARY")
    path = Path(named) if named else BUILD / "bin" / "cowshed"
    assert path.exists(), f"{path} is not built: run ./dev build"
    return str(path)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what: str, condition: Callable[[], object], seconds: float = 30) -> object:
    """Polls until the condition is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)


class Process:
    """A child with its output in a file; stopped at the end, and killed if it does not stop."""

    def __init__(self, name: str, command: list[str], directory: Path, environment: dict) -> None:
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )

    def alive(self) -> bool:
        return self.child.poll() is None

    def stop(self, how: int = signal.SIGTERM) -> None:
        if not self.alive():
            return
        self.child.send_signal(how)
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class Server(Process):
    def __init__(
        self, directory: Path, capacity: str = "1GiB", failpoints: str = "",
        metrics_port: int = 0,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.pool = directory / "pool"
        super().__init__(
            "server",
            [server_binary(), "serve", "--pool", str(self.pool), "--listen", "127.0.0.1:0",
             "--metrics-listen", f"127.0.0.1:{metrics_port}", "--capacity", capacity,
             "--audit-log", str(directory / "audit.log"),
             "--nbd-listen", "127.0.0.1:0"],
            directory,
            {"COWSHED_FAILPOINTS": failpoints},
        )
        self.address = self._printed("listening on")
        self.nbd = self._printed("nbd on")
        self.metrics = self._printed("metrics on")

    def _printed(self, what: str) -> str:
        """The address that the start prints behind `what`."""

        def find() -> str:
            log = self.log.read_text()
            assert self.alive(), log
            found = re.search(rf"^{what} (\S+)$", log, re.M)
            return found.group(1) if found else ""

        return str(wait_for(what, find))

    def scrape(self) -> dict[str, float]:
        """All samples of a scrape of our own: `name{labels}` -> value."""
        with _open(f"http://{self.metrics}/metrics") as answer:
            text = answer.read().decode()
        samples = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def inspect(self) -> dict:
        """What `cowshed inspect` counts again in the files of the stopped server."""
        assert not self.alive()
        done = subprocess.run([server_binary(), "inspect", "--pool", str(self.pool), "--json"],
                              check=True, capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout)


def _open(url: str):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(url, timeout=10)


class Prometheus(Process):
    """Scrapes the targets every second with our rules. `shorten` edits the text of the alerts."""

    def __init__(self, directory: Path, targets: list[str],
                 shorten: Callable[[str], str] = lambda text: text) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        recording = (PROMETHEUS_DIR / "recording_rules.yml").read_text()
        (directory / "recording_rules.yml").write_text(shorten(recording))
        (directory / "alerts.yml").write_text(shorten((PROMETHEUS_DIR / "alerts.yml").read_text()))
        config = (PROMETHEUS_DIR / "prometheus.yml").read_text()
        config = re.sub(r"_interval: 15s", "_interval: 1s", config)
        config = re.sub(r"targets: .*", f"targets: {json.dumps(targets)}", config)
        (directory / "prometheus.yml").write_text(config)
        self.url = f"http://127.0.0.1:{free_port()}"
        super().__init__(
            "prometheus",
            [tool("prometheus"), f"--config.file={directory}/prometheus.yml",
             f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address={self.url.removeprefix('http://')}"],
            directory, {},
        )

        def ready() -> bool:
            assert self.alive(), self.log.read_text()
            try:
                with _open(f"{self.url}/-/ready") as answer:
                    return answer.status == 200
            except (urllib.error.URLError, ConnectionError):
                return False

        wait_for("Prometheus is ready", ready, 60)

    def _get(self, path: str, **arguments: object) -> list[dict]:
        query = urllib.parse.urlencode(arguments)
        try:
            with _open(f"{self.url}/api/v1/{path}?{query}") as answer:
                reply = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error
        return reply["data"]["result"]

    def now(self, expr: str) -> list[dict]:
        """The series of an instant query, each with `metric` and `value` (time, text)."""
        return self._get("query", query=expr)

    def over(self, expr: str, start: float, end: float) -> list[list[float]]:
        """The finite values of each series from start to end, a second apart."""
        result = self._get("query_range", query=expr, start=start, end=end, step=1)
        series = ([float(value) for _, value in one["values"]] for one in result)
        return [[value for value in values if math.isfinite(value)] for values in series]

    def firing(self, alert: str, instance: str) -> list[dict]:
        labels = f'alertname="{alert}", alertstate="firing", instance="{instance}"'
        return self.now(f"ALERTS{{{labels}}}")


class Counts:
    """What clients saw: calls, messages, bytes, destroyed objects. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter = collections.Counter()

    def add(self, what: str, *key: str, by: int = 1) -> None:
        with self._lock:
            self._counts[(what, *key)] += by

    def of(self, what: str) -> dict[tuple[str, ...], int]:
        return {key[1:]: value for key, value in self._counts.items() if key[0] == what}

    def one(self, what: str, *key: str) -> int:
        return self._counts[(what, *key)]


class Device:
    """A dataset attached over NBD in its oldest and simplest form, one request at a time."""

    READ, WRITE, FLUSH = 0, 1, 3

    def __init__(self, address: str, export: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self._receive(18)  # the greeting
        name = export.encode()
        self.socket.sendall(struct.pack(">IQII", 3, 0x49484156454F5054, 1, len(name)) + name)
        self.size_bytes = struct.unpack(">QH", self._receive(10))[0]

    def ask(self, command: int, offset: int = 0, length: int = 0, content: bytes = b"") -> int:
        """The error; what is read is dropped."""
        self.socket.sendall(
            struct.pack(">IHHQQI", 0x25609513, 0, command, 1, offset, length) + content)
        error = int(struct.unpack(">IIQ", self._receive(16))[1])
        if command == self.READ and error == 0:
            self._receive(length)
        return error

    def closed(self) -> bool:
        """Waits until the server has closed it."""
        return self.socket.recv(1) == b""

    def close(self) -> None:
        self.socket.close()

    def _receive(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            more = self.socket.recv(count - len(received))
            assert more, "the server has closed the connection"
            received += more
        return received


# grpc_code as the server's metrics spell it.
def code_name(code: grpc.StatusCode) -> str:
    if code is grpc.StatusCode.OK:
        return "OK"
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return "".join(part.capitalize() for part in code.name.split("_"))


class CountingClient:
    """Calls the generated stubs and counts each call's code: no retries in between."""

    def __init__(self, server: Server, counts: Counts) -> None:
        self.counts = counts
        self.channel = grpc.insecure_channel(
            server.address,
            [("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0),
             ("grpc.use_local_subchannel_pool", 1)],
        )
        self._stubs = [
            dataset_pb2_grpc.DatasetServiceStub(self.channel),
            data_pb2_grpc.DataServiceStub(self.channel),
            operation_pb2_grpc.OperationServiceStub(self.channel),
            pool_pb2_grpc.PoolServiceStub(self.channel),
        ]

    def close(self) -> None:
        self.channel.close()

    def _method(self, name: str):
        return next(getattr(stub, name) for stub in self._stubs if hasattr(stub, name))

    def call(self, method: str, request: object, expect: grpc.StatusCode = grpc.StatusCode.OK):
        """A unary call that has to end with `expect`; returns the reply, or None for an error."""
        try:
            reply = self._method(method)(request, timeout=60)
        except grpc.RpcError as error:
            self.counts.add("handled", method, code_name(error.code()))
            assert error.code() is expect, f"{method}: {error.code()} {error.details()}"
            return None
        self.counts.add("handled", method, "OK")
        assert expect is grpc.StatusCode.OK, f"{method} succeeded"
        return reply

    def stream(self, method: str, request: object) -> Iterator:
        """A streaming call to its end; `request` is a message or an iterator of messages."""
        for reply in self._method(method)(request, timeout=60):
            self.counts.add("streamed", method)
            yield reply
        self.counts.add("handled", method, "OK")
