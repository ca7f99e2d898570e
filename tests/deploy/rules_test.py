# SPDX-License-Identifier: Apache-2.0
"""Alerts are complete, each is tested both ways, and its runbook exists."""

import re

import pytest
from monitoring import OPERATIONS, PROMETHEUS_DIR, ROOT, alerts, promtool, recording_rules

ALERT_TESTS = PROMETHEUS_DIR / "tests" / "alerts.yml"
REQUIRED = {
    "CowshedDown", "PoolSuspended", "PoolFillingUp", "PoolReserveReached", "MetadataMapFull",
    "ReclaimStalled", "ReclaimBehind", "CondenseFailing", "LivelistDamaged", "ChecksumErrors",
    "SyncSlow", "ExecutorSaturated", "StalledReader", "CertificateExpiring",
}


def test_every_promised_alert_exists():
    assert REQUIRED <= {alert["alert"] for alert in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alert_is_complete(alert):
    assert re.fullmatch(r"([A-Z][a-z]+)+", alert["alert"])
    assert re.fullmatch(r"\d+[mh]", alert["for"])
    assert alert["severity"] in ("critical", "warning")
    assert "{{ $labels.instance }}" in alert["summary"]
    assert len(alert["description"]) > 60


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_runbook_exists(alert):
    page, anchor = alert["runbook_url"].split("#")
    assert ROOT / page == OPERATIONS
    headings = re.findall(r"^#+ (.+)$", OPERATIONS.read_text(), re.M)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    section = re.search(rf"^#+ {alert['alert']}\n(.*?)(?=^#+ )", OPERATIONS.read_text(),
                        re.M | re.S)
    assert section, "no section named like the alert"
    assert len(section.group(1)) > 200, "a runbook says what it means and what to do"


def test_every_alarm_of_the_server_reaches_an_alert():
    source = (ROOT / "metrics" / "collector.cc").read_text()
    alarms = re.search(r"kAlarms\[\] = \{(.*?)\};", source, re.S)
    expressions = " ".join(alert["expr"] for alert in alerts())
    for alarm in re.findall(r'"(\w+)"', alarms.group(1)):
        assert re.search(rf'alarm=~?"[^"]*\b{alarm}\b', expressions), alarm


def cases() -> dict[tuple[str, str], str]:
    """(alert, "fires" | "stays silent") -> the case's text."""
    text = ALERT_TESTS.read_text()
    found = {}
    for block in re.split(r"\n  - name: ", text)[1:]:
        match = re.match(r'"(\w+) (fires|stays silent): ', block)
        assert match, block.splitlines()[0]
        found[match.groups()] = block
    return found


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_each_alert_has_a_firing_and_a_silent_case(alert):
    name = alert["alert"]
    firing, silent = cases()[name, "fires"], cases()[name, "stays silent"]
    assert f"alertname: {name}\n" in firing and f"severity: {alert['severity']}\n" in firing
    assert f"alertname: {name}\n" in silent and silent.rstrip().endswith("exp_alerts: []")


def test_each_recording_rule_has_a_case():
    text = (PROMETHEUS_DIR / "tests" / "recording_rules.yml").read_text()
    for rule in recording_rules():
        assert re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z0-9_]+", rule["record"])
        assert f"expr: {rule['record']}\n" in text, rule["record"]


@pytest.mark.parametrize("path", sorted((PROMETHEUS_DIR / "tests").glob("*.yml")),
                         ids=lambda path: path.name)
def test_promtool_agrees(path):
    result = promtool("test", "rules", str(path))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_configuration_is_valid():
    result = promtool("check", "config", str(PROMETHEUS_DIR / "prometheus.yml"))
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_firing_case_can_fail(tmp_path):
    """With a `for` of a year nothing fires any more, and each firing case notices."""
    for path in PROMETHEUS_DIR.glob("*.yml"):
        text = re.sub(r"^(\s+for:) \w+$", r"\g<1> 1y", path.read_text(), flags=re.M)
        (tmp_path / path.name).write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "alerts.yml").write_text(ALERT_TESTS.read_text())
    result = promtool("test", "rules", str(tmp_path / "tests" / "alerts.yml"))
    assert result.returncode != 0
    for alert in alerts():
        assert f"{alert['alert']} fires" in result.stdout + result.stderr
