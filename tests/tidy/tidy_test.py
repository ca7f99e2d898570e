# SPDX-License-Identifier: Apache-2.0
"""Style is a test: every rule holds in the tree, and every rule can fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

sys.path.insert(0, str(Path(__file__).parent))
import cpp_text
import descriptors
import document_rules  # noqa: F401  registers its rules, as the two below do
import layer_rules  # noqa: F401
import rules
import source_rules  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COWSHED_BUILD_DIR", ROOT / "build/release"))
PACKAGE = "cowshed.v1"


@pytest.fixture(scope="module")
def tree() -> rules.Tree:
    return rules.Tree.read(ROOT)


def _named(cases: list[tuple[rules.Rule, dict[str, str]]]) -> list[object]:
    return [pytest.param(r, files, id=f"{r.name}-{n}") for n, (r, files) in enumerate(cases)]


@pytest.mark.parametrize("rule", rules.RULES, ids=[rule.name for rule in rules.RULES])
def test_tree_keeps(rule: rules.Rule, tree: rules.Tree) -> None:
    findings = rule.check(tree)
    assert not findings, "\n" + "\n".join(findings)


@pytest.mark.parametrize("rule, files", _named([(r, s) for r in rules.RULES for s in r.bad]))
def test_rule_finds(rule: rules.Rule, files: dict[str, str]) -> None:
    assert rule.check(rules.Tree(files))


@pytest.mark.parametrize("rule, files", _named([(r, s) for r in rules.RULES for s in r.good]))
def test_rule_accepts(rule: rules.Rule, files: dict[str, str]) -> None:
    assert rule.check(rules.Tree(files)) == []


def test_protos_are_commented() -> None:
    path = BUILD / "protos/cowshed.binpb"
    descriptor_set = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    assert any(file.package == PACKAGE for file in descriptor_set.file)
    findings = descriptors.uncommented(descriptor_set, PACKAGE)
    assert not findings, "\n" + "\n".join(findings)


def _sample_descriptors() -> descriptor_pb2.FileDescriptorSet:
    """One element of each kind; none commented."""
    result = descriptor_pb2.FileDescriptorSet()
    file = result.file.add(name="a.proto", package=PACKAGE)
    message = file.message_type.add(name="M")
    message.field.add(name="f", number=1)
    message.nested_type.add(name="N").field.add(name="g", number=1)
    message.nested_type.add(name="Entry").options.map_entry = True
    message.enum_type.add(name="E").value.add(name="E_UNSPECIFIED", number=0)
    file.enum_type.add(name="F").value.add(name="F_UNSPECIFIED", number=0)
    file.service.add(name="S").method.add(name="Do")
    return result


def test_missing_proto_comments_are_found() -> None:
    findings = descriptors.uncommented(_sample_descriptors(), PACKAGE)
    names = [finding.split()[1].removeprefix(f"{PACKAGE}.") for finding in findings]
    messages = ["M", "M.f", "M.N", "M.N.g", "M.E", "M.E.E_UNSPECIFIED"]
    assert names == [*messages, "F", "F.F_UNSPECIFIED", "S", "S.Do"]


def test_proto_comments_count_before_and_after() -> None:
    sample = _sample_descriptors()
    info = sample.file[0].source_code_info
    info.location.add(path=[4, 0], leading_comments=" A message.\n")
    info.location.add(path=[4, 0, 2, 0], trailing_comments=" A field.\n")
    info.location.add(path=[6, 0, 2, 0], leading_comments=" \n")
    findings = "\n".join(descriptors.uncommented(sample, PACKAGE))
    assert "M " not in findings and "M.f " not in findings
    assert "S.Do has no comment" in findings


def test_functions_are_measured_from_brace_to_brace() -> None:
    text = "int F(int n) {  // {\n  return n == '{'; /* } */\n}\nstruct S { int n = {}; };\n"
    assert cpp_text.functions(text) == [(1, 3, "int F(int n)")]


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))
