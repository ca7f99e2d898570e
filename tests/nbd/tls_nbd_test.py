# SPDX-License-Identifier: Apache-2.0
"""NBD on TCP: where the server has certificates, encrypted or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import raw_nbd
from nbd_support import MIB, NbdServer, cowshed, needs, run, serving

pytestmark = needs("nbdinfo", "nbdcopy", "openssl")

SIZE_BYTES = 4 * MIB


def make_certificates(directory: Path) -> None:
    """An authority, a server's certificate for this machine, and clients' in the form that libnbd
    looks for: ca-cert.pem, client-cert.pem, client-key.pem."""
    authority = ["-CA", "ca-cert.pem", "-CAkey", "ca-key.pem"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run("openssl", "req", "-x509", *key, "-keyout", "ca-key.pem", "-out", "ca-cert.pem",
        "-subj", "/CN=authority", "-days", "2", cwd=directory)  # fmt: skip
    for name, san in (
        ("server", "DNS:localhost,IP:127.0.0.1"),
        ("admin", "DNS:admin.example"),
        ("reader", "DNS:reader.example"),
        ("stranger", "DNS:stranger.example"),
    ):
        run("openssl", "req", "-x509", *authority, *key, "-keyout", f"{name}-key.pem",
            "-out", f"{name}-cert.pem", "-subj", f"/CN={name}", "-days", "2",
            "-addext", f"subjectAltName={san}",
            "-addext", "basicConstraints=critical,CA:FALSE", cwd=directory)  # fmt: skip
    for name in ("admin", "reader", "stranger"):
        (directory / name).mkdir()
        (directory / name / "ca-cert.pem").write_bytes((directory / "ca-cert.pem").read_bytes())
        for part in ("cert", "key"):
            made = directory / f"{name}-{part}.pem"
            made.rename(directory / name / f"client-{part}.pem")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of certificates."""
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def tls_server(certificates: Path) -> Iterator[NbdServer]:
    """A server with certificates, for NBD on TCP, too."""
    with serving(
        "--nbd-listen", "127.0.0.1:0",
        "--tls-certificate", certificates / "server-cert.pem",
        "--tls-key", certificates / "server-key.pem",
        "--tls-client-ca", certificates / "ca-cert.pem",
        "--admin", "admin.example", "--reader", "reader.example",
    ) as server:  # fmt: skip
        with cowshed.connect(server.unix) as client:
            client.create("disk", SIZE_BYTES)
            client.write("disk", 0, b"secret")
        yield server


def port_of(server: NbdServer) -> str:
    """Where it serves NBD on TCP."""
    (address,) = (one for one in server.nbd_addresses() if not one.startswith("unix:"))
    return address.rpartition(":")[2]


def uri_of(server: NbdServer, certificates: Path, who: str, export: str = "disk") -> str:
    """The export with TLS, as this client."""
    where = f"nbds://127.0.0.1:{port_of(server)}/{export}"
    return f"{where}?tls-certificates={certificates / who}"


def test_administrator_reads_and_writes(
    tls_server: NbdServer, certificates: Path, tmp_path: Path
) -> None:
    uri = uri_of(tls_server, certificates, "admin")
    told = json.loads(run("nbdinfo", "--json", uri))
    assert told["TLS"] is True
    assert told["exports"][0]["export-size"] == SIZE_BYTES
    run("nbdinfo", "--is", "tls", uri)
    image = tmp_path / "image"
    image.write_bytes(b"over TLS" * (SIZE_BYTES // 8))
    run("nbdcopy", "--flush", image, uri)
    run("nbdcopy", uri, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == image.read_bytes()
    with cowshed.connect(tls_server.unix) as client:
        assert client.read("disk") == image.read_bytes()


def test_reader_may_only_read(tls_server: NbdServer, certificates: Path, tmp_path: Path) -> None:
    run("nbdinfo", uri_of(tls_server, certificates, "reader"), status=1)
    read_only = uri_of(tls_server, certificates, "reader", "disk%3Fread-only")
    assert run("nbdinfo", "--size", read_only) == f"{SIZE_BYTES}\n"
    run("nbdcopy", read_only, tmp_path / "out")


def test_stranger_gets_nothing(tls_server: NbdServer, certificates: Path) -> None:
    uri = uri_of(tls_server, certificates, "stranger", "disk%3Fread-only")
    run("nbdinfo", uri, status=1)
    assert '"disk"' not in run("sh", "-c", f"nbdinfo --list '{uri}' 2>/dev/null; true")


def test_without_tls_nothing_is_told(tls_server: NbdServer) -> None:
    plain = f"nbd://127.0.0.1:{port_of(tls_server)}/disk"
    run("nbdinfo", plain, status=1)
    one = raw_nbd.Raw.over_tcp("127.0.0.1", int(port_of(tls_server)))
    one.greet()
    for option in (raw_nbd.LIST, raw_nbd.STRUCTURED_REPLY):
        one.option(option)
        assert one.last_reply().kind == raw_nbd.ERR_TLS_REQD
    one.option(raw_nbd.GO, raw_nbd.text("disk") + b"\0\0")
    assert one.last_reply().kind == raw_nbd.ERR_TLS_REQD
    one.option(raw_nbd.ABORT)
    assert one.last_reply().kind == raw_nbd.ACK


def test_unix_socket_stays_as_it_is(tls_server: NbdServer) -> None:
    assert run("nbdinfo", "--size", tls_server.uri("disk")) == f"{SIZE_BYTES}\n"


def test_garbage_in_place_of_a_handshake_closes(tls_server: NbdServer) -> None:
    one = raw_nbd.Raw.over_tcp("127.0.0.1", int(port_of(tls_server)))
    one.greet()
    one.option(raw_nbd.STARTTLS)
    assert one.last_reply().kind == raw_nbd.ACK
    one.send(b"\x17\x03\x03\x01\x00" + b"x" * 256)
    assert one.is_closed()
    assert run("nbdinfo", "--size", tls_server.uri("disk")) == f"{SIZE_BYTES}\n"


def test_plain_tcp_on_this_machine_without_certificates() -> None:
    with serving("--nbd-listen", "127.0.0.1:0") as server:
        with cowshed.connect(server.unix) as client:
            client.create("disk", SIZE_BYTES)
        uri = f"nbd://127.0.0.1:{port_of(server)}/disk"
        assert run("nbdinfo", "--size", uri) == f"{SIZE_BYTES}\n"
        # Who is at the other end of a port nobody knows: each connection is a holder of its own.
        run("nbdinfo", "--can", "multi-conn", uri, status=2)
