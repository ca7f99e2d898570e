# SPDX-License-Identifier: Apache-2.0
"""A wheel can be built without a network, and what is in it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import cowshed

from server_process import PYTHON_DIR, Server


def test_wheel_is_complete_and_runs(server: Server, tmp_path: Path) -> None:
    source, out, site = tmp_path / "source", tmp_path / "out", tmp_path / "site"
    shutil.copytree(PYTHON_DIR, source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-index", "--no-build-isolation", "--no-deps", "-w", out, source],
        check=True,
        capture_output=True,
    )
    [wheel] = out.glob("cowshed-*.whl")
    assert f"-{cowshed.__version__}-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("cowshed/")}
        archive.extractall(site)
    expected = {
        str(path.relative_to(PYTHON_DIR))
        for path in (PYTHON_DIR / "cowshed").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    [entry_points] = site.glob("cowshed-*.dist-info/entry_points.txt")
    assert "cow = cowshed.cli:main" in entry_points.read_text()
    told = subprocess.run(
        [sys.executable, "-m", "cowshed", "-a", server.unix, "version", "-q"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.strip() == cowshed.__version__


def test_google_rpc_is_never_registered() -> None:
    """Else the client would clash with googleapis-common-protos in one process."""
    script = (
        "import cowshed, cowshed.aio, cowshed.cli\n"
        "from google.protobuf import descriptor_pool\n"
        "for name in ('google/rpc/status.proto', 'google/rpc/error_details.proto'):\n"
        "    try:\n"
        "        descriptor_pool.Default().FindFileByName(name)\n"
        "    except KeyError:\n"
        "        continue\n"
        "    raise SystemExit(name)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(PYTHON_DIR)},
        check=True,
    )
