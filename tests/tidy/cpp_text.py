# SPDX-License-Identifier: Apache-2.0
"""C++ as text: enough of its lexical structure to check style without a compiler."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<comment> //[^\n]* | /\*.*?\*/ )
  | (?P<raw> R"(?P<delimiter>[^\s()\\]{0,16})\(.*?\)(?P=delimiter)" )
  | (?P<string> "(?:[^"\\\n]|\\.)*" )
  | (?P<char> (?<![0-9a-zA-Z_])'(?:[^'\\\n]|\\.)+' )
    """,
    re.VERBOSE | re.DOTALL,
)


def without_comments_and_strings(text: str) -> str:
    """Blanks comments and the insides of literals; line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        newlines = "\n" * match.group().count("\n")
        if match.lastgroup == "comment":
            return " " + newlines
        return '""' + newlines

    return _TOKEN.sub(blank, text)


def without_comments(text: str) -> str:
    """Blanks comments only."""

    def blank(match: re.Match[str]) -> str:
        if match.lastgroup != "comment":
            return match.group()
        return " " + "\n" * match.group().count("\n")

    return _TOKEN.sub(blank, text)


def includes(text: str) -> list[tuple[int, str]]:
    """(line, path) of every #include."""
    found = []
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            found.append((number, match.group(1)))
    return found


def _without_preprocessor(code: str) -> str:
    lines = code.split("\n")
    continued = False
    for index, line in enumerate(lines):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        if directive:
            lines[index] = ""
    return "\n".join(lines)


_SCOPE = re.compile(r"^(?:inline\s+)?namespace\b|^extern\s+\"\"$")
_TYPE = re.compile(r"(?:^|\s|>)(?:class|struct|union|enum)\b[^()]*$")


def _opens(head: str) -> str:
    """What a brace outside of any function opens, judged by the text before it."""
    head = head.strip()
    if _SCOPE.search(head):
        return "scope"
    # Attribute macros have parentheses: class CAPABILITY("mutex") Mutex {
    plain = re.sub(r"\b(?:alignas|[A-Z][A-Z0-9_]+)\s*\([^()]*\)", "", head)
    if _TYPE.search(plain):
        return "scope"
    if "(" in head and head.count("(") == head.count(")") and not head.endswith("="):
        return "function"
    return "other"


def functions(text: str) -> list[tuple[int, int, str]]:
    """(first line, lines, head) of every function body; a lambda belongs to its function."""
    code = _without_preprocessor(without_comments_and_strings(text))
    found: list[tuple[int, int, str]] = []
    stack: list[tuple[str, int, str]] = []
    head = ""
    closed = ""  # The kind of the brace closed last, while nothing but blanks followed it.
    closed_head = ""
    line = 1
    for char in code:
        if char == "\n":
            line += 1
        in_function = any(kind == "function" for kind, _, _ in stack)
        if char == "{":
            if in_function:
                kind = "block"
            elif closed == "function" and (not head.strip() or head.lstrip().startswith(",")):
                # What looked like a body was a braced member initialiser: Foo() : a_{1}, b_(2) {
                kind, head = "function", closed_head
                found.pop()
            else:
                kind = _opens(head)
            stack.append((kind, line, head))
            head, closed = "", ""
        elif char == "}":
            if stack:
                kind, start, opened_by = stack.pop()
                if kind == "function":
                    found.append((start, line - start + 1, " ".join(opened_by.split())))
                    closed, closed_head = kind, opened_by
                else:
                    closed = ""
            head = ""
        elif char == ";":
            head, closed = "", ""
        else:
            head += char
    return found
