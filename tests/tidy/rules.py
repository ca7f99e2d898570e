# SPDX-License-Identifier: Apache-2.0
"""The rules of the tree. Each is a function from a Tree to findings, and comes with samples: a tree
that breaks it and, where the line is fine, one that does not. A rule without a bad sample cannot
be registered, and a rule that does not find its bad sample fails its own test."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import cpp_text

HEADER_LINES_MAX = 200
SOURCE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

_SKIPPED_FOLDERS = {".git", ".cache", ".mypy_cache", ".pytest_cache", "__pycache__", "build"}


@dataclass
class Tree:
    """The files of a checkout, by path relative to its root; text files only."""

    files: dict[str, str]

    @staticmethod
    def read(root: Path) -> Tree:
        files = {}
        for folder, names, leaves in os.walk(root):
            names[:] = [
                name
                for name in names
                if name not in _SKIPPED_FOLDERS and not name.endswith(".egg-info")
            ]
            for leaf in leaves:
                path = Path(folder, leaf)
                try:
                    files[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
                except (UnicodeDecodeError, FileNotFoundError):
                    continue  # A binary, or a file that a build running beside us has removed.
        return Tree(files)

    def match(self, *patterns: str) -> Iterator[tuple[str, str]]:
        """Files whose path matches one of the patterns; `*` crosses folders."""
        for path in sorted(self.files):
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                yield path, self.files[path]

    def cpp(self, *folders: str) -> Iterator[tuple[str, str]]:
        endings = (".h", ".cc")
        return self.match(*(f"{folder}/*{ending}" for folder in folders for ending in endings))


Check = Callable[[Tree], list[str]]


@dataclass
class Rule:
    name: str
    check: Check
    bad: list[dict[str, str]]
    good: list[dict[str, str]] = field(default_factory=list)


RULES: list[Rule] = []


def rule(
    *, bad: list[dict[str, str]], good: list[dict[str, str]] | None = None
) -> Callable[[Check], Check]:
    assert bad, "a rule needs a sample that breaks it"

    def register(check: Check) -> Check:
        RULES.append(Rule(check.__name__, check, bad, good or []))
        return check

    return register


# --- layers -------------------------------------------------------------------------------------

# The engine's public face, and what is below everything: locks and checks that know no pool.
_BASE = {f"engine/base/{name}.h" for name in ("check", "mutex", "status_macros", "strings")}
_NOUNS = {f"engine/{name}.h" for name in ("types", "options", "stats")}
_ENGINE_FOREIGN = re.compile(
    r"^(grpc|grpcpp|google|prometheus|cowshed|spdlog|CLI|service|metrics|tests)/|\.pb\.h$"
)


def _include_findings(tree: Tree, folder: str, allowed: Callable[[str], bool]) -> list[str]:
    return [
        f"{path}:{line}: must not include {included}"
        for path, text in tree.cpp(folder)
        for line, included in cpp_text.includes(text)
        if not allowed(included)
    ]


@rule(
    bad=[
        {"engine/a.cc": "#include <grpcpp/grpcpp.h>\n"},
        {"engine/tree/a.h": '#include "cowshed/v1/dataset.pb.h"\n'},
        {"engine/a.h": "#include <prometheus/counter.h>\n"},
        {"engine/a.cc": '#include "service/status.h"\n'},
    ],
    good=[{"engine/a.cc": '// #include <grpcpp/grpcpp.h>\n#include "engine/pool.h"\n'}],
)
def engine_knows_no_network(tree: Tree) -> list[str]:
    return _include_findings(tree, "engine", lambda path: not _ENGINE_FOREIGN.search(path))


def _is_foreign_or_below(allowed: tuple[str, ...], included: str) -> bool:
    return not included.startswith("engine/") or included.startswith(allowed)


@rule(
    bad=[
        {"engine/store/a.h": '#include "engine/tree/dead_list.h"\n'},
        {"engine/store/a.h": '#include "engine/pool.h"\n'},
        {"engine/tree/a.cc": '#include "engine/dataset.h"\n'},
        {"engine/base/a.h": '#include "engine/types.h"\n'},
    ],
    good=[{"engine/tree/a.cc": '#include "engine/store/format.h"\n#include "engine/types.h"\n'}],
)
def engine_layers_point_down(tree: Tree) -> list[str]:
    store = ("engine/base/", "engine/store/")
    below = {
        "engine/base": ("engine/base/",),
        "engine/store": (*store, *_NOUNS),
        "engine/tree": (*store, *_NOUNS, "engine/tree/"),
    }
    return [
        finding
        for folder, allowed in below.items()
        for finding in _include_findings(tree, folder, partial(_is_foreign_or_below, allowed))
    ]


@rule(
    bad=[{"service/a.cc": '#include "engine/dataset.h"\n'}, {"service/a.h": "#include <lmdb.h>\n"}],
    good=[{"service/a.cc": '#include "engine/pool.h"\n#include "metrics/collector.h"\n'}],
)
def service_sees_the_pool_only(tree: Tree) -> list[str]:
    # Failpoints: main.cc arms those in COWSHED_FAILPOINTS.
    allowed = _BASE | _NOUNS | {"engine/pool.h", "engine/calls.h", "engine/errors.h"}
    allowed |= {"engine/base/failpoints.h"}
    return _include_findings(
        tree, "service", lambda path: not path.startswith("engine/") or path in allowed
    ) + _include_findings(tree, "service", lambda path: path != "lmdb.h")


@rule(
    bad=[
        {"metrics/a.cc": '#include "engine/pool.h"\n'},
        {"metrics/a.cc": '#include "service/server.h"\n'},
    ],
    good=[{"metrics/a.cc": '#include "engine/stats.h"\n'}],
)
def metrics_see_counters_only(tree: Tree) -> list[str]:
    allowed = _BASE | {"engine/stats.h"}
    return _include_findings(
        tree,
        "metrics",
        lambda path: path in allowed or not path.startswith(("engine/", "service/", "cowshed/")),
    )


# One file per outside thing: header, the files that may include it.
_SOLE_INCLUDERS = {
    "lmdb.h": "engine/store/meta_store.*",
    "xxhash.h": "engine/base/hash.*",
    "prometheus/*": "metrics/*",
}


@rule(
    bad=[
        {"engine/store/allocator.cc": "#include <lmdb.h>\n"},
        {"engine/tree/block_tree.cc": "#include <xxhash.h>\n"},
        {"service/server.cc": "#include <prometheus/exposer.h>\n"},
    ],
    good=[{"engine/store/meta_store.cc": "#include <lmdb.h>\n"}],
)
def outside_things_have_one_home(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.cpp("engine", "metrics", "service"):
        for line, included in cpp_text.includes(text):
            for header, home in _SOLE_INCLUDERS.items():
                if fnmatch.fnmatchcase(included, header) and not fnmatch.fnmatchcase(path, home):
                    findings.append(f"{path}:{line}: only {home} includes {included}")
    return findings


_FILES_OF_THE_HOST = ("engine/store/file.*", "engine/store/meta_store.*")


def _code_findings(
    tree: Tree, folders: tuple[str, ...], pattern: str, homes: tuple[str, ...], what: str
) -> list[str]:
    return [
        f"{path}:{line}: {what}"
        for path, text in tree.cpp(*folders)
        if not any(fnmatch.fnmatchcase(path, home) for home in homes)
        for line, code in enumerate(cpp_text.without_comments_and_strings(text).splitlines(), 1)
        if re.search(pattern, code)
    ]


@rule(
    bad=[
        {"engine/pool.cc": "int n = ::pwrite(fd, p, 1, 0);\n"},
        {"engine/store/meta_store.cc": "if (fdatasync(fd) != 0) return;\n"},
        {"engine/store/allocator.cc": "fallocate(fd, 0, 0, 1);\n"},
    ],
    good=[
        {"engine/store/file.cc": "int n = ::pwrite(fd, p, 1, 0);\n"},
        {"engine/store/meta_store.cc": "fallocate(fd, 0, 0, 1);\n"},
        {"engine/pool.cc": "// pwrite(2) happens below\nfile.Write(0, data);\n"},
    ],
)
def only_file_does_io(tree: Tree) -> list[str]:
    io = r"(?<![\w.>])(p?writev?|pwritev2|preadv?2?|fdatasync|sync_file_range)\s*\("
    # LMDB's own file has to be allocated ahead and its folder synced; that is meta_store's secret.
    host = r"(?<![\w.>])(fsync|fallocate|posix_fallocate|ftruncate)\s*\("
    what = "system I/O belongs in engine/store/file"
    folders = ("engine",)
    return _code_findings(tree, folders, io, _FILES_OF_THE_HOST[:1], what) + _code_findings(
        tree, folders, host, _FILES_OF_THE_HOST, what
    )


@rule(
    bad=[{"service/data_service.cc": "return grpc::Status(grpc::StatusCode::NOT_FOUND, m);\n"}],
    good=[
        {"service/status.cc": "return grpc::Status(grpc::StatusCode::NOT_FOUND, m);\n"},
        {"service/parse.cc": "return absl::Status(absl::StatusCode::kNotFound, m);\n"},
    ],
)
def one_map_to_grpc_codes(tree: Tree) -> list[str]:
    what = "only service/status.* names gRPC status codes"
    return _code_findings(tree, ("service",), r"\bgrpc::StatusCode\b", ("service/status.*",), what)


@rule(
    bad=[
        {"engine/a.h": "std::mutex mutex_;\n"},
        {"service/a.cc": "std::lock_guard<M> lock(m);\n"},
        {"engine/a.cc": "absl::MutexLock lock(&m);\n"},
    ],
    good=[{"engine/base/mutex.h": "std::mutex mutex_;\n"}],
)
def locks_are_annotated(tree: Tree) -> list[str]:
    locks = (
        r"\bstd::(\w*mutex|condition_variable\w*|lock_guard|unique_lock|scoped_lock|shared_lock)\b"
        r"|\babsl::(Mutex|CondVar)|\bpthread_(mutex|cond|rwlock)_"
    )
    what = "locks come from engine/base/mutex.h"
    return _code_findings(
        tree, ("engine", "metrics", "service"), locks, ("engine/base/mutex.*",), what
    )


# --- sizes --------------------------------------------------------------------------------------


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


# --- words --------------------------------------------------------------------------------------

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


# --- documents ----------------------------------------------------------------------------------


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


# --- error reasons ------------------------------------------------------------------------------

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


# --- tests --------------------------------------------------------------------------------------

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
