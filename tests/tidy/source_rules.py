# SPDX-License-Identifier: Apache-2.0
"""Sizes of files and functions, the words in them, how they open, and that tests run."""

from __future__ import annotations

import ast
import re

import cpp_text
from rules import Tree, rule

HEADER_LINES_MAX = 200
SOURCE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70


@rule(
    bad=[
        {"engine/a.h": "\n" * (HEADER_LINES_MAX + 1)},
        {"tests/engine/a_test.cc": "\n" * (SOURCE_LINES_MAX + 1)},
        {"engine/a.cc": "// Size:\n" + "\n" * SOURCE_LINES_MAX},
    ],
    good=[
        {"engine/a.h": "\n" * HEADER_LINES_MAX},
        {"engine/a.cc": "// Size: one switch over all records\n" + "\n" * SOURCE_LINES_MAX},
    ],
)
def files_are_small(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.match("*.h", "*.cc"):
        limit = HEADER_LINES_MAX if path.endswith(".h") else SOURCE_LINES_MAX
        lines = text.count("\n")
        if lines > limit and not re.search(r"^// Size: \S", text, re.MULTILINE):
            excuse = "or a line `// Size: <reason>`"
            findings.append(f"{path}: {lines} lines, at most {limit} ({excuse})")
    return findings


def _long_body(lines: int) -> str:
    return "  Step();\n" * (lines - 2)


@rule(
    bad=[
        {"engine/a.cc": "void F() {\n" + _long_body(71) + "}\n"},
        {"engine/a.cc": "class A {\n int F() const {\n" + _long_body(71) + "}\n};\n"},
        {"engine/a.cc": "A::A(int n)\n    : a_{n},\n      b_(n) {\n" + _long_body(71) + "}\n"},
        {"engine/a.cc": "TEST_F(PoolTest, Works) {\n" + _long_body(71) + "}\n"},
        {"engine/a.cc": 'auto s = R"({)"; int n = 1\'000;\nvoid F() {\n' + _long_body(71) + "}\n"},
        {"clients/python/a.py": "def f():\n" + "    step()\n" * 70},
    ],
    good=[
        {"engine/a.cc": "void F() {\n" + _long_body(70) + "}\n"},
        {"engine/a.cc": "namespace n {\n" + "void F() {}\n" * 100 + "}\n"},
        {"engine/a.cc": "class CAPABILITY(\"m\") A {\n" + " int n_;\n" * 100 + "};\n"},
        {"engine/a.cc": "constexpr int kTable[] = {\n" + " 1,\n" * 100 + "};\n"},
        {"engine/a.cc": "#define F(x) \\\n  { \\\n  x\n" + "void F() {}\n" * 100},
    ],
)
def functions_are_short(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.match("*.h", "*.cc"):
        for start, lines, head in cpp_text.functions(text):
            if lines > FUNCTION_LINES_MAX:
                findings.append(f"{path}:{start}: {lines} lines in {head}")
    for path, text in tree.match("*.py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    findings.append(f"{path}:{node.lineno}: {lines} lines in {node.name}")
    return findings


_BANNED = {
    r"(?<![A-Za-z])(gc|GC)(?![A-Za-z])|(?<=[a-z])G[Cc](?![a-z])": "say reclaim",
    r"(?i)garbage[ -_]?collect": "say reclaim",
    r"(?i)(?<!MDB_CP_)compact(?!_enum)": "say condense",
    r"(?i)purg(e|ing)": "say reclaim or destroy",
    r"\b(TODO|FIXME|XXX|HACK)\b": "do it, or write an issue",
    r"(?<![\w./-])/(work|root)/": "a path of one machine",
    r"/tmp/build-": "a path of one machine",
}


@rule(
    bad=[
        {"engine/a.h": "// The gc thread.\n"},
        {"engine/a.cc": "void StartGc();\n"},
        {"engine/a.cc": "int gc_runs = 0;\n"},
        {"docs/a.md": "Livelists are compacted.\n"},
        {"metrics/a.cc": "void RunCompaction();\n"},
        {"service/a.cc": "PurgeAll();\n"},
        {"dev": "# TODO: later\n"},
        {"clients/python/a.py": 'POOL = "/work/main"\n'},
    ],
    good=[
        {"engine/a.cc": "// reclaims what a destroyed dataset held; MDB_CP_COMPACT copies less\n"},
        {"clients/python/a.py": "import gc\ngc.collect()\n", "docs/a.md": "framework/root/x\n"},
    ],
)
def words_are_ours(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.match("*"):
        if path == "LICENSE" or path.startswith("tests/tidy/"):
            continue
        if path.endswith(".py"):  # Python's own module of that name is not our word.
            text = re.sub(r"\bimport gc\b|\bgc\.\w+", "", text)
        for line, content in enumerate(text.splitlines(), 1):
            for pattern, advice in _BANNED.items():
                match = re.search(pattern, content)
                if match:
                    findings.append(f"{path}:{line}: '{match.group()}': {advice}")
    return findings


_SPDX = "SPDX-License-Identifier: Apache-2.0"


@rule(
    bad=[
        {"engine/a.h": "#pragma once\n"},
        {"dev": "#!/usr/bin/env bash\nset -e\n"},
        {"engine/CMakeLists.txt": "add_library(a)\n"},
        {"clients/python/a.py": '"""Doc."""\n'},
        {"protos/cowshed/v1/a.proto": 'syntax = "proto3";\n'},
    ],
    good=[{"dev": f"#!/usr/bin/env bash\n# {_SPDX}\n", "engine/a.h": f"// {_SPDX}\n"}],
)
def sources_name_their_license(tree: Tree) -> list[str]:
    sources = ("*.h", "*.cc", "*.py", "*.pyi", "*.proto", "*.cmake", "*CMakeLists.txt", "*.sh")
    findings = []
    for path, text in tree.match(*sources, "dev", ".ci/run", "Dockerfile"):
        lines = text.splitlines()[:2]
        if lines and lines[0].startswith("#!"):
            lines = lines[1:]
        if not lines or lines[0] not in (f"// {_SPDX}", f"# {_SPDX}"):
            findings.append(f"{path}:1: the first line is not the SPDX header")
    return findings


_THEORY = f"// {_SPDX}\n//\n// A thing.\n"


@rule(
    bad=[
        {"engine/a.h": f"// {_SPDX}\n#pragma once\n#include <string>\n"},
        {"service/a.h": f"// {_SPDX}\n//\n// A thing.\n#ifndef A_H\n"},
    ],
    good=[{"engine/a.h": _THEORY + "#pragma once\n"}],
)
def headers_open_with_their_theory(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.match("engine/*.h", "metrics/*.h", "service/*.h"):
        if not re.search(r"^#pragma once$", text, re.MULTILINE):
            findings.append(f"{path}: no #pragma once")
        opening = re.split(r"^(?!//|\s*$|#pragma once)", text, maxsplit=1, flags=re.MULTILINE)[0]
        words = [line for line in opening.splitlines() if re.match(r"// *\w", line)]
        if len(words) < 2:
            findings.append(f"{path}: does not open with what it is and why it is correct")
    return findings


_DISABLED = [
    (r"^\s*//+\s*(TEST|TEST_F|TEST_P|TYPED_TEST|INSTANTIATE_TEST_SUITE_P)\s*\(", (".cc", ".h")),
    (r"\bDISABLED_\w", (".cc", ".h")),
    (r"^\s*#\s*if\s+0\b", (".cc", ".h")),
    (r"^\s*#\s*(async\s+)?def test_|^\s*#\s*@pytest", (".py",)),
    (r"^\s*@(pytest\.mark\.skip\b(?!if)|unittest\.skip\()", (".py",)),
    (r"^\s*#\s*(add_test|add_executable|cowshed_test_program)\s*\(", ("CMakeLists.txt",)),
]


@rule(
    bad=[
        {"tests/engine/a_test.cc": "// TEST_F(PoolTest, Works) {\n"},
        {"tests/engine/a_test.cc": "TEST(PoolTest, DISABLED_Works) {}\n"},
        {"tests/engine/a_test.cc": "#if 0\n#endif\n"},
        {"tests/clients/a_test.py": "# def test_works():\n"},
        {"tests/clients/a_test.py": "@pytest.mark.skip\ndef test_works(): pass\n"},
        {"tests/CMakeLists.txt": "# add_test(NAME a)\n"},
    ],
    good=[{"tests/engine/a_test.cc": "// TEST names are sentences.\nTEST(PoolTest, Works) {}\n"}],
)
def tests_are_not_switched_off(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.match("*"):
        if path.startswith("tests/tidy/"):
            continue
        for pattern, endings in _DISABLED:
            if path.endswith(endings):
                for match in re.finditer(pattern, text, re.MULTILINE):
                    line = text.count("\n", 0, match.start()) + 1
                    findings.append(f"{path}:{line}: a test that does not run")
    return findings


@rule(
    bad=[
        {"tests/engine/a_test.cc": "TEST(PoolTest, Opens_Twice) {}\n"},
        {"tests/engine/a_test.cc": "TEST_F(Pool_Test, Opens) {}\n"},
    ],
    good=[{"tests/engine/a_test.cc": "TEST_F(PoolTest, OpensTwice) {}\n"}],
)
def test_names_have_no_underscores(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.match("tests/*.cc"):
        for match in re.finditer(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text, re.MULTILINE):
            if "_" in match.group(1) + match.group(2):
                line = text.count("\n", 0, match.start()) + 1
                findings.append(f"{path}:{line}: {match.group(1)}.{match.group(2)}")
    return findings
