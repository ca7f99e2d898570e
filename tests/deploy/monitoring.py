# SPDX-License-Identifier: Apache-2.0
"""What the tests of deploy/ share: where its files are, what they say, and a little PromQL.

Standard library only. The YAML files read here are ours and regular, so a few patterns read them;
promtool, which the tests run as well, is the judge of their syntax.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS_DIR = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
OPERATIONS = ROOT / "docs" / "operations.md"
BUILD = Path(os.environ.get("COWSHED_BUILD_DIR", ROOT / "build" / "release"))


def tool(name: str) -> str:
    """Path of promtool or prometheus: from PROMTOOL or PROMETHEUS, PATH, or `./dev deps test`."""
    unpacked = ROOT / "build" / "tools" / "prometheus" / "usr" / "bin" / name
    found = os.environ.get(name.upper()) or shutil.which(name)
    if not found and unpacked.exists():
        found = str(unpacked)
    assert found, f"{name} not found: run ./dev deps test or set {name.upper()}"
    return found


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [tool("promtool"), *arguments], input=stdin, text=True, capture_output=True, timeout=120
    )


# --- dashboards ---------------------------------------------------------------------------------


def load_dashboard(path: Path) -> dict:
    return json.loads(path.read_text())


def panels_of(dashboard: dict) -> list[dict]:
    """All panels that show data, those inside collapsed rows included."""
    panels = []
    for panel in dashboard["panels"]:
        panels += panel.get("panels", [])
        if panel["type"] != "row":
            panels.append(panel)
    return panels


def fill_in(expr: str, range_: str = "5m") -> str:
    """The expression as Grafana sends it with everything selected."""
    for name, value in (
        ("$__rate_interval", range_), ("$__interval", range_), ("$__range", range_),
        ("$job", ".+"), ("$instance", ".+"),
    ):
        expr = expr.replace(name, value)
    return expr


# --- PromQL -------------------------------------------------------------------------------------

_IDENTIFIER = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_KEYWORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_GROUPING = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"


def selectors_of(expr: str) -> list[str]:
    """The series selectors of an expression, without ranges: `name{labels}`."""
    expr = re.sub(_GROUPING, " ", expr)
    found = []
    # Braces are taken along with the name before them, so that labels are never mistaken for names.
    for match in re.finditer(rf"({_IDENTIFIER})\s*(\{{[^}}]*\}})?(\s*\()?", expr):
        name, labels, call = match.groups()
        if call or name.lower() in _KEYWORDS:
            continue
        before = expr[: match.start()]
        if before and (before[-1].isdigit() or before[-1] in "[."):
            continue  # the unit of a duration
        found.append(name + (labels or ""))
    return list(dict.fromkeys(found))


def metrics_of(expr: str) -> list[str]:
    return [selector.split("{")[0] for selector in selectors_of(expr)]


# --- rule files ---------------------------------------------------------------------------------


def rules_in(path: Path, kind: str) -> list[dict]:
    """The rules of a file; kind is `alert` or `record`. Each has its scalar fields and `expr`."""
    rules = []
    for block in re.split(rf"\n      - (?={kind}: )", path.read_text())[1:]:
        rule = {}
        lines = block.splitlines()
        for number, line in enumerate(lines):
            match = re.match(r"\s*(alert|record|expr|for|severity|summary|description|runbook_url):"
                             r"\s*(.*)$", line)
            if not match:
                continue
            key, value = match.groups()
            if value == "|":
                indent = len(line) - len(line.lstrip())
                body = []
                for following in lines[number + 1 :]:
                    if following.strip() and len(following) - len(following.lstrip()) <= indent:
                        break
                    body.append(following.strip())
                value = " ".join(part for part in body if part)
            rule[key] = value.strip('"')
        rules.append(rule)
    return rules


def alerts() -> list[dict]:
    return rules_in(PROMETHEUS_DIR / "alerts.yml", "alert")


def recording_rules() -> list[dict]:
    return rules_in(PROMETHEUS_DIR / "recording_rules.yml", "record")


# --- expositions --------------------------------------------------------------------------------


def families_of(exposition: str) -> dict[str, dict]:
    """Families of an exposition: name -> {type, help, labels}; `le` and `quantile` left out."""
    families: dict[str, dict] = {}
    for line in exposition.splitlines():
        if line.startswith("# HELP "):
            name, help_ = line[len("# HELP ") :].split(" ", 1)
            families[name] = {"help": help_, "labels": set(), "type": ""}
        elif line.startswith("# TYPE "):
            name, type_ = line[len("# TYPE ") :].split(" ")
            families.setdefault(name, {"help": "", "labels": set()})["type"] = type_
        elif line:
            sample = re.match(rf"({_IDENTIFIER})(?:\{{(.*)\}})? ", line)
            assert sample, line
            name = sample.group(1)
            for suffix in ("_bucket", "_sum", "_count"):
                if name not in families and name.endswith(suffix):
                    name = name[: -len(suffix)]
            labels = set(re.findall(r'([a-zA-Z_]+)="', sample.group(2) or ""))
            families[name]["labels"] |= labels - {"le", "quantile"}
    return families


def series_names_of(families: dict[str, dict]) -> set[str]:
    """The names that a query may use."""
    names = set(families)
    for name, family in families.items():
        if family["type"] == "histogram":
            names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")}
    return names
