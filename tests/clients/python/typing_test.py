# SPDX-License-Identifier: Apache-2.0
"""The package is typed: mypy --strict passes, and a typo in a message's field is an error."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cowshed.v1 import data_pb2, dataset_pb2, operation_pb2, pool_pb2

from server_process import PYTHON_DIR, ROOT

TYPINGS = ROOT / "clients/python/typings"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all runs: the first pays for the library."""
    return tmp_path_factory.mktemp("mypy")


def mypy(cache: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs mypy --strict beside the package, with our stubs."""
    return subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache,
            "--config-file", PYTHON_DIR / "pyproject.toml", *arguments,
        ],
        cwd=PYTHON_DIR,
        env={**os.environ, "MYPYPATH": str(TYPINGS)},
        capture_output=True,
        text=True,
    )  # fmt: skip


def check(cache: Path, tmp_path: Path, body: str) -> str:
    """What mypy says about a script that uses the package."""
    script = tmp_path / "script.py"
    script.write_text(body)
    return mypy(cache, script).stdout


def test_package_passes_strict(cache: Path) -> None:
    result = mypy(cache, "cowshed")
    assert result.returncode == 0, result.stdout


def test_correct_use_passes(cache: Path, tmp_path: Path) -> None:
    said = check(
        cache,
        tmp_path,
        """
import grpc
import cowshed
from cowshed.v1 import dataset_pb2, dataset_pb2_grpc

client = cowshed.connect()
name: str = client.clone("golden@v1", "dev/alice", ttl=60).name
with client.open(name, "r+b") as f:
    count: int = f.write(b"x")
stub = dataset_pb2_grpc.DatasetServiceStub(grpc.insecure_channel("127.0.0.1:7420"))
reply: dataset_pb2.Dataset = stub.GetDataset(dataset_pb2.GetDatasetRequest(name="a"))
size: int = reply.size_bytes
""",
    )
    assert said.startswith("Success"), said


@pytest.mark.parametrize(
    "line",
    [
        'dataset_pb2.GetDatasetRequest(nmae="a")',
        "dataset_pb2.Dataset().size_byte",
        'dataset_pb2.Dataset(size_bytes="1")',
        "stub.GetDatasets(dataset_pb2.GetDatasetRequest())",
        "stub.GetDataset(dataset_pb2.CreateDatasetRequest())",
        "client.clone('golden@v1')",
        "client.get('a').sise_bytes",
        "client.create('a', '10G')",
        "dataset_pb2.DATASET_STATE_ACTIV",
    ],
)
def test_a_typo_is_an_error(cache: Path, tmp_path: Path, line: str) -> None:
    said = check(
        cache,
        tmp_path,
        f"""
import grpc
import cowshed
from cowshed.v1 import dataset_pb2, dataset_pb2_grpc

client = cowshed.connect()
stub = dataset_pb2_grpc.DatasetServiceStub(grpc.insecure_channel("127.0.0.1:7420"))
{line}
""",
    )
    assert "script.py:8: error:" in said and "Found 1 error" in said, said


def test_stubs_of_the_services_know_every_method() -> None:
    for module in (data_pb2, dataset_pb2, operation_pb2, pool_pb2):
        short = module.__name__.rpartition(".")[2]
        text = (PYTHON_DIR / f"cowshed/v1/{short}_grpc.pyi").read_text()
        generated = importlib.import_module(f"{module.__name__}_grpc")
        for service in module.DESCRIPTOR.services_by_name.values():
            assert hasattr(generated, f"{service.name}Stub")
            assert f"class {service.name}Stub:" in text
            stub = text.partition(f"class {service.name}Stub:")[2].partition("\nclass ")[0]
            for method in service.methods:
                kind = ("Stream" if method.client_streaming else "Unary") + (
                    "Stream" if method.server_streaming else "Unary"
                )
                assert f"    {method.name}: grpc.{kind}MultiCallable[" in stub, method.name
