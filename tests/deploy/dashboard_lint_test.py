# SPDX-License-Identifier: Apache-2.0
"""Our dashboards keep the rules, and the rules catch dashboards that do not."""

import copy

import pytest
from dashboard_lint import lint
from monitoring import DASHBOARDS, fill_in, load_dashboard, panels_of, promtool


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.name)
def dashboard(request):
    return load_dashboard(request.param)


def test_there_is_a_dashboard():
    assert DASHBOARDS


def test_dashboard_keeps_the_rules(dashboard):
    assert lint(dashboard) == []


def test_panels_do_not_overlap(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24, panel["title"]
        for x in range(position["x"], position["x"] + position["w"]):
            for y in range(position["y"], position["y"] + position["h"]):
                assert (x, y) not in taken, f"{panel['title']} on {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_every_row_of_the_operator_is_there(dashboard):
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Requests", "Destroy and reclaim", "Livelists", "Capacity",
                    "Attachments", "Scrub and backup", "Transaction groups and metadata", "Process"]


def test_alarms_are_annotated(dashboard):
    expressions = [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    assert any("cowshed_alarm_active" in expr for expr in expressions)


def rules_file(expressions: list[str]) -> str:
    lines = ["groups:", "  - name: expressions", "    rules:"]
    for number, expr in enumerate(expressions):
        quoted = expr.replace("'", "''")
        lines += [f"      - record: test:expression:{number}", f"        expr: '{quoted}'"]
    return "\n".join(lines) + "\n"


def check_expressions(expressions: list[str], tmp_path) -> str:
    """promtool's complaints about the expressions; empty if they parse."""
    path = tmp_path / "rules.yml"
    path.write_text(rules_file(expressions))
    result = promtool("check", "rules", str(path))
    return "" if result.returncode == 0 else result.stdout + result.stderr


def test_every_query_parses(dashboard, tmp_path):
    expressions = [fill_in(target["expr"]) for panel in panels_of(dashboard)
                   for target in panel["targets"]]
    expressions += [fill_in(a["expr"]) for a in dashboard["annotations"]["list"]]
    assert len(expressions) > 50
    assert check_expressions(expressions, tmp_path) == ""


def test_a_query_that_does_not_parse_is_caught(tmp_path):
    assert "parse error" in check_expressions(["sum(rate(up[5m])"], tmp_path)


# --- the rules themselves -----------------------------------------------------------------------


@pytest.fixture(name="good")
def good_sample():
    source = {"type": "prometheus", "uid": "${datasource}"}
    variable = {"type": "query", "datasource": source, "multi": True, "includeAll": True,
                "allValue": ".+", "refresh": 2}
    return {
        "uid": "sample", "editable": False, "schemaVersion": 37, "tags": ["sample"],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource",
             "query": "prometheus"},
            {"name": "job", "label": "job", **variable},
            {"name": "instance", "label": "instance", **variable},
        ]},
        "panels": [{
            "id": 1, "type": "timeseries", "title": "Requests", "description": "Calls a second.",
            "datasource": source, "fieldConfig": {"defaults": {"unit": "reqps"}},
            "targets": [{"refId": "A", "datasource": source, "expr":
                         'sum(rate(x_total{job=~"$job", instance=~"$instance"}'
                         "[$__rate_interval]))"}],
        }],
    }


def test_the_good_sample_passes(good):
    assert lint(good) == []


def _set(*path):
    """A mutation that sets the place `path[:-1]` of a dashboard to `path[-1]`."""

    def mutate(dashboard):
        *way, key, value = path
        place = dashboard
        for step in way:
            place = place[step]
        place[key] = value

    return mutate


def _query(expr):
    return _set("panels", 0, "targets", 0, "expr", expr)


VARIABLES = ("templating", "list")
SELECTED = '{job=~"$job", instance=~"$instance"}'
BAD = {
    "no fixed uid": _set("uid", ""),
    "id belongs": _set("id", 7),
    "editable": _set("editable", True),
    "__inputs": _set("__inputs", []),
    "no schemaVersion": _set("schemaVersion", None),
    "no tags": _set("tags", []),
    "2 data sources": lambda d: d["templating"]["list"].append(
        {"name": "other", "type": "datasource", "query": "prometheus"}),
    "not named datasource": _set(*VARIABLES, 0, "name", "ds"),
    'datasource, "Data source"': _set(*VARIABLES, 0, "label", "Data Source"),
    "not prometheus": _set(*VARIABLES, 0, "query", "loki"),
    "0 named job": _set(*VARIABLES, 1, "name", "jobs"),
    "0 named instance": lambda d: d["templating"]["list"].pop(),
    "instance is no query": _set(*VARIABLES, 2, "type", "custom"),
    "job is not on the data source": _set(*VARIABLES, 1, "datasource", {"uid": "abc"}),
    "job is not multi": _set(*VARIABLES, 1, "multi", False),
    "job does not include all": _set(*VARIABLES, 1, "includeAll", False),
    "job has an allValue": _set(*VARIABLES, 1, "allValue", ".*"),
    "job has another label": _set(*VARIABLES, 1, "label", "The job"),
    "job is not refreshed": _set(*VARIABLES, 1, "refresh", 1),
    "two share an id": lambda d: d["panels"].append({**d["panels"][0], "title": "Other"}),
    "the title is there twice": lambda d: d["panels"].append({**d["panels"][0], "id": 2}),
    "no title": _set("panels", 0, "title", ""),
    "no description": _set("panels", 0, "description", ""),
    "panel 'Requests': not on the data source": _set("panels", 0, "datasource", {"uid": "abc"}),
    "unit None": _set("panels", 0, "fieldConfig", {}),
    "unit 'req/s'": _set("panels", 0, "fieldConfig", {"defaults": {"unit": "req/s"}}),
    "no query": _set("panels", 0, "targets", []),
    "two queries share a refId": lambda d: d["panels"][0]["targets"].append(
        copy.deepcopy(d["panels"][0]["targets"][0])),
    "query A: not on the data source": _set("panels", 0, "targets", 0, "datasource", None),
    "query A: empty": _query(""),
    "no series selector": _query("rate(x_total[$__rate_interval])"),
    'no job=~"$job"': _query('x{instance=~"$instance"}'),
    'no instance=~"$instance"': _query('x{job=~"$job"}'),
    'no job=~"$job" in {a': _query('x' + SELECTED + ' / y{a="1", instance=~"$instance"}'),
    "range 5m": _query(f"rate(x_total{SELECTED}[5m])"),
    "x_total without a rate": _query(f"sum(x_total{SELECTED})"),
    "x_bucket without a rate": _query(f"histogram_quantile(0.9, x_bucket{SELECTED})"),
}


@pytest.mark.parametrize("expected", BAD)
def test_a_bad_sample_is_caught(good, expected):
    BAD[expected](good)
    found = lint(good)
    assert any(expected in violation for violation in found), found
