# SPDX-License-Identifier: Apache-2.0
"""What dashboards, rules and docs name is what a scrape returns: no query shows nothing for ever.

The exposition comes from tests/metrics/exposition_main.cc: a real scrape of a real exposer.
"""

import re
import subprocess

import pytest
from monitoring import (
    BUILD, DASHBOARDS, OPERATIONS, alerts, families_of, fill_in, load_dashboard, metrics_of,
    panels_of, promtool, recording_rules, selectors_of, series_names_of,
)


@pytest.fixture(scope="module")
def exposition() -> str:
    program = BUILD / "tests" / "exposition"
    assert program.exists(), f"{program} is not built: run ./dev build"
    return subprocess.run([program], check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture(scope="module")
def families(exposition) -> dict[str, dict]:
    # What prometheus-cpp says about itself is not ours to promise.
    return {name: family for name, family in families_of(exposition).items()
            if not name.startswith("exposer_")}


def test_promtool_finds_no_fault_with_the_metrics(exposition):
    result = promtool("check", "metrics", stdin=exposition)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_promtool_would_find_a_fault():
    result = promtool("check", "metrics", stdin="# HELP a b\n# TYPE a counter\na 1\n")
    assert "_total" in result.stdout + result.stderr


def known(families) -> set[str]:
    return series_names_of(families) | {"up"} | {rule["record"] for rule in recording_rules()}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboards_use_existing_metrics(path, families):
    dashboard = load_dashboard(path)
    expressions = [target["expr"] for panel in panels_of(dashboard) for target in panel["targets"]]
    expressions += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    for expr in expressions:
        unknown = set(metrics_of(fill_in(expr))) - known(families)
        assert not unknown, expr


def test_rules_use_existing_metrics(families):
    for rule in recording_rules() + alerts():
        names = metrics_of(rule["expr"])
        assert names, rule
        assert not set(names) - known(families), rule["expr"]


def expressions_of_all() -> list[str]:
    expressions = [rule["expr"] for rule in recording_rules() + alerts()]
    for path in DASHBOARDS:
        for panel in panels_of(load_dashboard(path)):
            expressions += [fill_in(target["expr"]) for target in panel["targets"]]
    return expressions


def test_label_values_that_are_matched_exist(families, exposition):
    """`alarm="pool_suspendet"` would be silent for ever."""
    checked = 0
    for expr in expressions_of_all():
        for selector in selectors_of(expr):
            for label, operator, pattern in re.findall(r'(\w+)(=~|=)"([^"]*)"', selector):
                if label in ("job", "instance", "le"):
                    continue
                present = set(re.findall(rf'[{{,]{label}="([^"]*)"', exposition))
                wanted = pattern.split("|") if operator == "=~" else [pattern]
                assert set(wanted) <= present, selector
                checked += 1
    assert checked >= 15


NOT_SHOWN = {
    "cowshed_txg": "a number to look up, not a curve; its rate is that of the syncs",
    "cowshed_reclaim_rate_limit_bytes_per_second": "a setting; what it does shows in Freed",
    "cowshed_intent_log_ring_bytes": "made once, and then always the same",
    "cowshed_intent_log_used_bytes": "what is full shows in Durable writes, as its reason",
    "cowshed_intent_log_written_bytes_total": "Durable writes counts the batches",
    "cowshed_intent_log_replayed_entries_total": "once, at a start",
    "cowshed_intent_log_lost_entries_total": "once, at a start; checksum errors show it",
    "cowshed_engine_copied_bytes_total": "for benchmarks: copies per byte served",
    "cowshed_service_copied_bytes_total": "for benchmarks: copies per byte served",
    "process_virtual_memory_bytes": "address space, nearly all of it the metadata's map",
}


def test_every_metric_is_shown_on_a_dashboard(families):
    used = {name for expr in expressions_of_all() for name in metrics_of(expr)}
    base = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} | used
    assert set(families) - base == set(NOT_SHOWN)


# --- the catalogue of docs/operations.md ----------------------------------------------------------


def catalogue() -> dict[str, tuple[str, set[str]]]:
    """name -> (type, labels), from rows `| name | type | labels | ... |`."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \| ([^|]*) \|",
                      OPERATIONS.read_text(), re.M)
    found = {name: (type_, set(re.findall(r"`(\w+)`", labels))) for name, type_, labels in rows}
    assert len(found) == len(rows), "a metric is there twice"
    return found


def test_the_docs_list_exactly_the_metrics_there_are(families):
    documented = catalogue()
    assert set(documented) == set(families)
    for name, family in families.items():
        assert documented[name] == (family["type"], family["labels"]), name


# --- the helpers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("expr, expected", [
    ("up == 0", ["up"]),
    ('sum by (a, b) (rate(x_total{c="d"}[5m])) / y', ['x_total{c="d"}', "y"]),
    ("time() - (a > 0) > 900 and rate(b[10m]) == 0", ["a", "b"]),
    ("histogram_quantile(0.99, sum without (x) (instance:a:b)) or c offset 5m",
     ["instance:a:b", "c"]),
    ("predict_linear(a[1h], 4 * 3600) < 0", ["a"]),
])
def test_selectors_are_found(expr, expected):
    assert selectors_of(expr) == expected
