# SPDX-License-Identifier: Apache-2.0
"""The rules that each dashboard keeps. `lint(dashboard)` returns its violations as sentences.

They are those that Grafana's own dashboard linter checks, so that dashboards look and filter the
same way: one data source variable, job and instance on every query, rates over $__rate_interval.
"""

import re
from collections.abc import Iterator

from monitoring import panels_of

# Units of Grafana that fit here; a panel with another one is more likely a slip than a wish.
UNITS = {
    "short", "none", "bytes", "decbytes", "Bps", "s", "ms", "ops", "reqps", "cps", "percentunit",
    "bool", "bool_yes_no", "bool_on_off", "dateTimeAsIso",
}
DATASOURCES = {"$datasource", "${datasource}"}
RATES = r"\b(?:rate|irate|increase|delta|idelta|deriv)\s*\("


def lint(dashboard: dict) -> list[str]:
    return [*_frame(dashboard), *_variables(dashboard), *_panels(dashboard)]


def _frame(dashboard: dict) -> Iterator[str]:
    if not re.fullmatch(r"[a-z0-9-]{1,40}", dashboard.get("uid") or ""):
        yield "dashboard: no fixed uid"
    if dashboard.get("id") is not None:
        yield "dashboard: id belongs to one Grafana's database"
    if dashboard.get("editable") is not False:
        yield "dashboard: editable"
    if "__inputs" in dashboard:
        yield "dashboard: __inputs is for import by hand"
    if not isinstance(dashboard.get("schemaVersion"), int):
        yield "dashboard: no schemaVersion"
    if not dashboard.get("tags"):
        yield "dashboard: no tags"


def _variables(dashboard: dict) -> Iterator[str]:
    variables = dashboard.get("templating", {}).get("list", [])
    sources = [variable for variable in variables if variable["type"] == "datasource"]
    if len(sources) != 1:
        yield f"variables: {len(sources)} data sources instead of one"
    elif sources[0]["name"] != "datasource" or sources[0].get("label") != "Data source":
        yield 'variables: the data source is not named datasource, "Data source"'
    elif sources[0].get("query") != "prometheus":
        yield "variables: the data source is not prometheus"
    for name in ("job", "instance"):
        found = [variable for variable in variables if variable["name"] == name]
        if len(found) != 1:
            yield f"variables: {len(found)} named {name}"
            continue
        variable = found[0]
        for wrong, why in (
            (variable["type"] != "query", "is no query"),
            (variable.get("datasource", {}).get("uid") not in DATASOURCES,
             "is not on the data source variable"),
            (not variable.get("multi"), "is not multi"),
            (not variable.get("includeAll"), "does not include all"),
            (variable.get("allValue") != ".+", "has an allValue other than .+"),
            (variable.get("label") != name, "has another label than its name"),
            (variable.get("refresh") != 2, "is not refreshed when the time range changes"),
        ):
            if wrong:
                yield f"variables: {name} {why}"


def _panels(dashboard: dict) -> Iterator[str]:
    panels = panels_of(dashboard)
    ids = [panel.get("id") for panel in panels]
    if len(set(ids)) != len(ids):
        yield "panels: two share an id"
    titles = [panel.get("title") for panel in panels]
    for title in sorted({str(title) for title in titles if titles.count(title) > 1}):
        yield f"panel {title!r}: the title is there twice"
    for panel in panels:
        name = f"panel {panel.get('title') or panel.get('id')!r}"
        if not panel.get("title"):
            yield f"{name}: no title"
        if not panel.get("description"):
            yield f"{name}: no description"
        if (panel.get("datasource") or {}).get("uid") not in DATASOURCES:
            yield f"{name}: not on the data source variable"
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        if unit not in UNITS:
            yield f"{name}: unit {unit!r}"
        if not panel.get("targets"):
            yield f"{name}: no query"
        references = [target.get("refId") for target in panel.get("targets", [])]
        if len(set(references)) != len(references):
            yield f"{name}: two queries share a refId"
        for target in panel.get("targets", []):
            for violation in _target(target):
                yield f"{name}, query {target.get('refId')}: {violation}"


def _target(target: dict) -> Iterator[str]:
    expr = target.get("expr") or ""
    if not expr:
        yield "empty"
    if (target.get("datasource") or {}).get("uid") not in DATASOURCES:
        yield "not on the data source variable"
    selectors = re.findall(r"\{[^}]*\}", re.sub(r'"[^"]*"', lambda m: m.group().replace("}", ""),
                                                expr))
    if not selectors:
        yield "no series selector with labels"
    for selector in selectors:
        for label in ("job", "instance"):
            if not re.search(rf'(?<![a-z_]){label}=~"\${label}"', selector):
                yield f'no {label}=~"${label}" in {selector}'
    for range_ in re.findall(r"\[([^\]]*)\]", expr):
        if range_ != "$__rate_interval":
            yield f"range {range_} instead of $__rate_interval"
    for match in re.finditer(r"[a-zA-Z_:][a-zA-Z0-9_:]*_total\b", expr):
        if not re.search(RATES + r"\s*$", expr[: match.start()]):
            yield f"{match.group()} without a rate"
    for match in re.finditer(r"[a-zA-Z_:][a-zA-Z0-9_:]*_bucket\b", expr):
        if not re.search(RATES + r"\s*$", expr[: match.start()]):
            yield f"{match.group()} without a rate"
