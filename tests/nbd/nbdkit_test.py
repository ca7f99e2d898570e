# SPDX-License-Identifier: Apache-2.0
"""nbdkit as a proxy before the server: its nbd plugin is one more client, its filters others."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from nbd_support import MIB, NbdServer, cowshed, needs, run

pytestmark = needs("nbdkit", "nbdinfo", "nbdcopy")

SIZE_BYTES = 4 * MIB


def through(uri: str, command: str, *options: str, parameters: tuple[str, ...] = ()) -> str:
    """Runs a shell command; there $uri is the export behind the proxy."""
    return run("nbdkit", "-U", "-", *options, "nbd", uri, *parameters, "--run", command)


@pytest.mark.parametrize("shared", ["shared=false", "shared=true"])
def test_copy_through_the_proxy(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path, shared: str
) -> None:
    client.create(base, SIZE_BYTES)
    image = tmp_path / "image"
    image.write_bytes(b"abc" * MIB + bytes(MIB))
    copied = f'nbdcopy --flush {shlex.quote(str(image))} "$uri" && nbdcopy "$uri" {tmp_path}/out'
    through(server.uri(base), copied, parameters=(shared,))
    assert client.read(base) == image.read_bytes()
    assert (tmp_path / "out").read_bytes() == image.read_bytes()


def test_proxy_passes_on_what_the_export_can(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    client.snapshot(f"{base}@s")
    for can in ("flush", "fua", "trim", "zero", "cache", "df", "multi-conn"):
        through(server.uri(base), f'nbdinfo --can {can} "$uri"')
    through(server.uri(f"{base}@s"), 'nbdinfo --is read-only "$uri"')
    straight = run("nbdinfo", "--map", server.uri(base))
    assert through(server.uri(base), 'nbdinfo --map "$uri"') == straight


def test_cow_filter_keeps_changes_to_itself(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    client.write(base, 0, b"ours")
    client.snapshot(f"{base}@s")
    script = "h.pwrite(b'mine', 0); h.flush(); print(bytes(h.pread(4, 0)))"
    shell = f'nbdsh -u "$uri" -c {shlex.quote(script)}'
    assert through(server.uri(f"{base}@s"), shell, "--filter=cow") == "b'mine'\n"
    assert client.read(f"{base}@s", 0, 4) == b"ours"


def test_block_size_filter_splits_and_joins(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, SIZE_BYTES)
    image = tmp_path / "image"
    image.write_bytes(bytes(range(256)) * (SIZE_BYTES // 256))
    copied = f'nbdcopy --flush {shlex.quote(str(image))} "$uri"'
    parameters = ("minblock=4k", "maxdata=64k", "maxlen=1M")
    through(server.uri(base), copied, "--filter=blocksize", parameters=parameters)
    assert client.read(base) == image.read_bytes()
