# SPDX-License-Identifier: Apache-2.0
"""Documents and error reasons: what they name exists, and the other way round."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

import cpp_text
from rules import Tree, rule


def _top_folders(tree: Tree) -> set[str]:
    return {path.split("/")[0] for path in tree.files if "/" in path and not path.startswith(".")}


@rule(
    bad=[
        {"README.md": "`engine/` is here.\n", "engine/a.h": "", "service/b.h": ""},
        {"engine/a.h": ""},
    ],
    good=[{"README.md": "engine/  the pool\n", "engine/a.h": ""}],
)
def readme_maps_every_folder(tree: Tree) -> list[str]:
    readme = tree.files.get("README.md", "")
    return [
        f"README.md: does not say what {folder}/ is"
        for folder in sorted(_top_folders(tree))
        if not re.search(rf"(?<![\w/]){re.escape(folder)}/", readme)
    ]


@rule(
    bad=[
        {"README.md": "Start at `engine/pool.h`.\n", "engine/a.h": ""},
        {"docs/a.md": "See `engine/tree/` and [here](decisions/0009-x.md).\n", "engine/a.h": ""},
    ],
    good=[
        {
            "README.md": "Start at `engine/pool.h`, see [the API](docs/api.md), `engine/pool.*`.\n",
            "engine/pool.h": "",
            "docs/api.md": "[back](../README.md) [out](https://example.org/x) `engine/<x>/`\n",
        }
    ],
)
def documents_name_what_exists(tree: Tree) -> list[str]:
    known = set(tree.files)
    for path in tree.files:
        known.update(parent.as_posix() for parent in Path(path).parents)
    tops = _top_folders(tree)

    def exists(target: str) -> bool:
        target = os.path.normpath(target)
        return target in known or ("*" in target and bool(fnmatch.filter(known, target)))

    findings = []
    for path, text in tree.match("*.md"):
        if path.startswith("docs/decisions/"):
            continue  # A decision names what was there when it was taken.
        for line, content in enumerate(text.splitlines(), 1):
            quoted = re.findall(r"`([\w.*/-]+/[\w.*/-]*)`", content)
            linked = re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", content)
            targets = [target for target in quoted if target.split("/")[0] in tops]
            targets += [os.path.join(os.path.dirname(path), target) for target in linked]
            missing = [target for target in targets if not exists(target)]
            findings += [f"{path}:{line}: {target} does not exist" for target in missing]
    return findings


_REASONS_FILE = "protos/cowshed/v1/error.proto"
_REASONS_SAMPLE = {
    _REASONS_FILE: "enum ErrorReason {\n  ERROR_REASON_UNSPECIFIED = 0;\n  POOL_FULL = 1;\n}\n",
    "service/status.cc": "return Fail(v1::POOL_FULL);\n",
    "docs/api.md": "# API\n## Error reasons\n| reason | code |\n|---|---|\n| `POOL_FULL` | x |\n",
    "tests/service/a_test.cc": "ExpectReason(status, v1::POOL_FULL);\n",
}


def _reasons(tree: Tree) -> set[str]:
    text = cpp_text.without_comments(tree.files.get(_REASONS_FILE, ""))
    body = re.search(r"\benum ErrorReason \{(.*?)\}", text, re.DOTALL)
    if not body:
        return set()
    return set(re.findall(r"^\s*(\w+)\s*=\s*[1-9]", body.group(1), re.MULTILINE))


def _documented_reasons(tree: Tree) -> set[str]:
    """First columns of the tables below the heading of docs/api.md that speaks of reasons."""
    found: set[str] = set()
    inside, level = False, 0
    for line in tree.files.get("docs/api.md", "").splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading and (not inside or len(heading.group(1)) <= level):
            inside, level = "reason" in heading.group(2).lower(), len(heading.group(1))
        elif inside:
            found.update(re.findall(r"^\|\s*`([A-Z][A-Z0-9_]*)`", line))
    return found


@rule(
    bad=[
        {**_REASONS_SAMPLE, "docs/api.md": "# API\n## Error reasons\nnone\n"},
        {**_REASONS_SAMPLE, "tests/service/a_test.cc": "// POOL_FULLER\n"},
        {**_REASONS_SAMPLE, "service/status.cc": "\n"},
        {**_REASONS_SAMPLE, _REASONS_FILE: ""},
        {
            **_REASONS_SAMPLE,
            "docs/api.md": _REASONS_SAMPLE["docs/api.md"] + "| `POOL_LOST` | never sent |\n",
        },
    ],
    good=[
        _REASONS_SAMPLE,
        {**_REASONS_SAMPLE, "tests/service/a_test.cc": 'ExpectReason(s, "POOL_FULL");\n'},
        {"docs/api.md": "# API\n"},
    ],
)
def reasons_are_sent_documented_and_tested(tree: Tree) -> list[str]:
    if not any(tree.cpp("service")):
        return []  # Nobody sends anything yet.
    sent = "\n".join(cpp_text.without_comments(text) for _, text in tree.cpp("engine", "service"))
    reasons = _reasons(tree)
    documented = _documented_reasons(tree)
    tests = "\n".join(
        cpp_text.without_comments(text) if path.endswith(".cc") else text
        for path, text in tree.match("tests/*.cc", "tests/*.py")
        if not path.startswith("tests/tidy/")
    )
    findings = [] if reasons else [f"{_REASONS_FILE}: no reasons found"]
    for reason in sorted(reasons):
        word = re.compile(rf"\b{reason}\b")
        if not word.search(sent):
            findings.append(f"{_REASONS_FILE}: nothing sends {reason}")
        if reason not in documented:
            findings.append(f"docs/api.md: no row for the error reason {reason}")
        if not word.search(tests):
            findings.append(f"{_REASONS_FILE}: no test provokes {reason}")
    unknown = sorted(documented - reasons)
    return findings + [f"docs/api.md: {reason} is not in {_REASONS_FILE}" for reason in unknown]
