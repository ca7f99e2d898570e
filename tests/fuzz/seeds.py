# SPDX-License-Identifier: Apache-2.0
"""Writes the first inputs of the fuzz targets: scripts of real requests, real records, NBD clients.

    PYTHONPATH=build/asan/protos/python /usr/bin/python3 tests/fuzz/seeds.py <folder>

The records are those of tests/golden/records_golden_test.cc. From here libFuzzer goes on; what
it keeps after a merge is in tests/fuzz/corpus.
"""

import pathlib
import re
import struct
import sys

from cowshed.v1 import attachment_pb2 as attachment
from cowshed.v1 import data_pb2 as data
from cowshed.v1 import dataset_pb2 as dataset
from cowshed.v1 import operation_pb2 as operation
from cowshed.v1 import pool_pb2 as pool
from cowshed.v1 import snapshot_pb2 as snapshot
from google.protobuf import duration_pb2, text_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
ON_THE_WIRE = 0x80
READ_ALL = b"\xff"
MODULES = (attachment, data, dataset, operation, pool, snapshot)

# One line a call: method and request in text format; a Write has one message a line, after `+`.
SCRIPTS = {
    "dataset_service": """
CreateDataset name: 'n' size_bytes: 1048576 labels { key: 'team' value: 'red' } request_id: 'q'
CreateDataset name: 'n' size_bytes: 1048576 labels { key: 'team' value: 'red' } request_id: 'q'
GetDataset name: 'n'
UpdateDataset dataset { name: 'n' size_bytes: 4097 } update_mask { paths: 'size_bytes' }
CreateSnapshots names: 'n@1' names: 'a@1'
ListSnapshots prefix: 'a' page_size: 1

CloneDataset source: 'a@s' name: 'm' ttl { seconds: 1000 }
CloneDataset source: 'a@latest' name: 'm' replace: true
PromoteDataset name: 'm'
RenameDataset name: 'm' new_name: 'o/p/q'
RollbackDataset name: 'a' origin: true
DestroyDatasets names: 'o/p/q' recursive: true cascade: true

CreateSnapshots prefix: 'a' snapshot: 'p'
HoldSnapshot snapshot: 'a@p' tag: 'k' owner: 'w' ttl { seconds: 5 }
DestroySnapshots names: 'a@p' defer: true
ListHolds prefix: 'a'
ReleaseHold snapshot: 'a@p' tag: 'k'
GetSnapshot name: 'a@p'

RollbackDataset name: 'a' snapshot: 'a@s' destroy_newer: true
DestroySnapshots range { dataset: 'a' } validate_only: true
DestroyDatasets prefix: 'a' recursive: true cascade: true validate_only: true
RenameSnapshot name: 'a@s' new_name: 'a@z'
ListDatasets prefix: 'a' labels { key: 'team' value: 'red' }

DestroyDatasets names: 'a/x' recursive: true reclaim_after { seconds: 100 }
Undestroy operation: 'op-20'
ListDatasets origin: 'a@s' page_size: 1
ListBlockers list_token: 'x'
""",
    "data_service": """
WriteRange dataset: 'a' offset_bytes: 4095 data: 'across a block'
ReadRange name: 'a' offset_bytes: 4000 length_bytes: 300
WriteRange dataset: 'a' offset_bytes: 0 zero_bytes: 1048576
WriteRange dataset: 'a' offset_bytes: 1 discard_bytes: 500000
Flush dataset: 'a'
Read name: 'a' offset_bytes: 1

Write
+ header { dataset: 'b' }
+ chunk { offset_bytes: 16384 data: 'first' }
+ chunk { offset_bytes: 100 zero_bytes: 70000 }
+ chunk { flush: true }
+ chunk { discard_bytes: 1048576 }
Diff from_snapshot: 'a@s' to_snapshot: 'a@u'
Diff to_snapshot: 'b@t'

Read name: 'a@s' offset_bytes: 100 length_bytes: 200
WriteRange dataset: 'a@s' data: 'no'
ReadRange name: 'a' offset_bytes: 1048576 length_bytes: 1
Flush dataset: 'a' expect_boot_id: 'other'
Write
+ chunk { data: 'no header' }
""",
    "operation_service": """
ListOperations page_size: 1
GetOperation name: 'op-30'
WaitOperations names: 'op-30' names: 'op-31' mode: WAIT_MODE_ANY
ListOperations unfinished: true

ListOperations kind: OPERATION_KIND_DESTROY_DATASETS state: OPERATION_STATE_SUCCEEDED
WaitOperations names: 'none'
""",
    "attachment_service": """
ListAttachments page_size: 1
GetExport name: 'a'
GetExport name: 'a@latest' read_only: true
GetExport name: 'b' shared: true
Detach name: 'a'
ListAttachments name: 'a/x'

ListAttachments prefix: 'a'
Detach attachment: '1'
Detach name: 'a/x@s'
GetExport name: 'none'
""",
    "pool_service": """
GetServerInfo
GetPool
GetSpace name: 'a'
GetLivelist dataset: 'b'
SyncPool
Check

UpdateReclaim paused: true
UpdateReclaim paused: false rate_bytes_per_second: 1000000 txg_budget { nanos: 5000000 }
GetPool
GetLivelist dataset: 'a' page_size: 1
""",
}


def message(name: str, text: str) -> bytes:
    for module in MODULES:
        if hasattr(module, name):
            request = getattr(module, name)()
            text_format.Parse(text, request)
            return bytes(request.SerializeToString())
    raise ValueError(f"there is no message {name}")


def methods(target: str) -> list[str]:
    service = "".join(word.capitalize() for word in target.split("_"))
    for module in MODULES:
        if service in module.DESCRIPTOR.services_by_name:
            return [m.name for m in module.DESCRIPTOR.services_by_name[service].methods]
    raise ValueError(f"there is no service {service}")


def prefixed(encoded: bytes) -> bytes:
    return struct.pack("<H", len(encoded)) + encoded


def script(target: str, lines: list[str]) -> bytes:
    steps = b""
    while lines:
        method, _, text = lines.pop(0).partition(" ")
        steps += bytes([ON_THE_WIRE | methods(target).index(method)])
        if method == "Write":
            sent = []
            while lines and lines[0].startswith("+"):
                sent.append(message("WriteRequest", lines.pop(0)[1:]))
            steps += bytes([len(sent) - 1]) + b"".join(map(prefixed, sent)) + READ_ALL
        else:
            steps += prefixed(message(f"{method}Request", text))
            steps += READ_ALL if method in ("Read", "Diff") else b""
    return steps


def records() -> dict[str, bytes]:
    source = (ROOT / "tests/golden/records_golden_test.cc").read_text()
    source = re.sub(r"//.*", "", source)
    source = re.sub(r"/\*.*?\*/", "", source)
    tree = re.search(r"#define COWSHED_TREE_HEX(.*?)\n\n", source, re.S)
    if tree is None:
        raise ValueError("the golden tree is not found")
    source = source.replace(tree.group(0), "").replace("COWSHED_TREE_HEX", tree.group(1))
    found = {}
    for name, text in re.findall(r"constexpr char k(\w+)Hex\[\] =(.*?);", source, re.S):
        found[name] = bytes.fromhex("".join(re.findall(r'"([0-9a-f]+)"', text)))
    return found


RECORDS = ["Pool", "Name", "Directory", "Dataset", "Snapshot", "Hold", "Job", "Rebuild", "Operation"]


def nbd_seeds() -> list[bytes]:
    """Inputs of nbd_fuzz.cc: clients with every option and command, and messages for its parsers."""

    def request(command: int, flags: int, offset: int, length: int, wild: int = 0) -> bytes:
        fill = b"w" if command == 1 else b""
        return bytes([0, command, flags, wild]) + struct.pack("<IH", offset, length) + fill

    def option(number: int, rest: bytes = b"") -> bytes:
        return bytes([240, number]) + rest + b"\x00"

    structured, plain = b"\x01\x02", b"\x01\x03"
    go = b"\x00\x02"  # of `c`
    contexts = option(10, b"\x02\x00" + b"\x04")  # one query, base:allocation
    commands = b"".join(
        request(command, flags, 5000, 20000) for command in range(9) for flags in (0, 1, 2, 8))
    options = b"".join(option(number, bytes(number)) for number in range(12))
    info = struct.pack(">I", 1) + b"a" + struct.pack(">HH", 1, 3)
    meta = struct.pack(">I", 1) + b"a" + struct.pack(">II", 1, 5) + b"base:"
    whole = struct.pack(">IHHQQI", 0x25609513, 0, 0, 1, 4096, 512)
    scripts = [
        structured + go + commands, plain + go + commands, structured + contexts + go + commands,
        structured + options + go, plain + b"\x00\x01" + commands,
        structured + go + request(1, 0, 0, 60000, 254), structured + go + b"\xfc" + b"x" * 40,
    ]
    return scripts + [b"\x00" + text for text in (info, meta, whole, b"c?read-only&shared")]


def main() -> None:
    into = pathlib.Path(sys.argv[1])
    seeds: dict[str, list[bytes]] = {}
    for target, text in SCRIPTS.items():
        parts = [part.splitlines() for part in text.strip().split("\n\n")]
        seeds[target] = [script(target, lines) for lines in parts]
    golden = records()
    seeds["records"] = [bytes([i]) + golden[f"{n}Record"] for i, n in enumerate(RECORDS)]
    seeds["records"] += [b"\x0a\x02\x00" + b"\x20\x00\x00\x00\x00\x00\x01\x01" + b"\x05" + b"\x00" * 40]
    seeds["records"] += [b"\x0b\x40" + b"\x01" * 130, b"\x0c" + b"\x00" * 300, b"\x09\x01"]
    seeds["page_tokens"] = [bytes([i]) + bytes(range(65, 110)) for i in range(4)]
    seeds["nbd"] = nbd_seeds()
    for target, inputs in seeds.items():
        (into / target).mkdir(parents=True, exist_ok=True)
        for i, content in enumerate(inputs):
            (into / target / f"seed-{i}").write_bytes(content)


if __name__ == "__main__":
    main()
