# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, and where outside things have their one home."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import partial

import cpp_text
from rules import Tree, rule

# The engine's public face, and what is below everything: locks and checks that know no pool.
_HELPERS = ("bytes", "check", "mutex", "status_macros", "strings")
_BASE = {f"engine/base/{name}.h" for name in _HELPERS}
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
    allowed.add("engine/attachments.h")
    allowed |= {"engine/base/failpoints.h", "engine/repair.h"}
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
    "lmdb.h": ("engine/store/meta_store.*", "engine/store/meta_environment.*"),
    "xxhash.h": ("engine/base/hash.*",),
    "prometheus/*": ("metrics/*",),
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
            for header, homes in _SOLE_INCLUDERS.items():
                at_home = any(fnmatch.fnmatchcase(path, home) for home in homes)
                if fnmatch.fnmatchcase(included, header) and not at_home:
                    findings.append(f"{path}:{line}: only {', '.join(homes)} includes {included}")
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
