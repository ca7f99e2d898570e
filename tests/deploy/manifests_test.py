# SPDX-License-Identifier: Apache-2.0
"""The systemd unit, the Kubernetes manifest and Grafana's provisioning agree with the rest."""

import configparser
import re
import shutil
import subprocess

import pytest
from monitoring import DASHBOARDS, ROOT, load_dashboard

UNIT = ROOT / "deploy" / "systemd" / "cowshed.service"
MANIFEST = ROOT / "deploy" / "kubernetes" / "cowshed.yaml"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return parser["Service"]


def test_unit_waits_for_readiness_and_runs_without_root(service):
    assert service["Type"] == "notify"
    assert service["User"] == service["Group"] == "cowshed"
    assert service["ExecStart"].startswith("/usr/bin/cowshed serve ")
    assert "--pool /var/lib/cowshed" in service["ExecStart"]
    assert service["StateDirectory"] == "cowshed"


def test_unit_is_hardened(service):
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices",
                "ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups",
                "RestrictNamespaces", "MemoryDenyWriteExecute", "LockPersonality"):
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd on this machine")
def test_systemd_understands_the_unit():
    done = subprocess.run(["systemd-analyze", "verify", UNIT], capture_output=True, text=True,
                          timeout=60)
    # The program is not installed where the tests run; nothing else may be wrong.
    complaints = [line for line in (done.stdout + done.stderr).splitlines()
                  if UNIT.name in line and "is not executable" not in line]
    assert complaints == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd on this machine")
def test_unit_is_little_exposed():
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", UNIT],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_unit_tells_users_apart_and_reloads(service):
    # In a user name space of its own the server would take all other users for `nobody`.
    assert "PrivateUsers" not in service
    assert "-HUP" in service["ExecReload"]


def test_listening_in_the_clear_is_said_aloud():
    for path in (MANIFEST, ROOT / "Dockerfile"):
        text = path.read_text()
        assert ("0.0.0.0:7420" in text) == ("--insecure" in text), path


def documents() -> dict[str, str]:
    """kind -> text of the manifest's documents."""
    found = {}
    for text in MANIFEST.read_text().split("\n---\n"):
        found[re.search(r"^kind: (\w+)$", text, re.M).group(1)] = text
    return found


def test_manifest_runs_one_unprivileged_server():
    assert set(documents()) == {"Service", "NetworkPolicy", "StatefulSet"}
    stateful_set = documents()["StatefulSet"]
    assert "replicas: 1\n" in stateful_set
    assert "runAsNonRoot: true" in stateful_set
    assert "readOnlyRootFilesystem: true" in stateful_set
    assert "allowPrivilegeEscalation: false" in stateful_set
    assert re.search(r"readinessProbe:\n\s+exec:\n\s+command: \[cowshed, health\]", stateful_set)
    assert re.search(r"startupProbe:\n\s+exec:\n\s+command: \[cowshed, health\]", stateful_set)


def test_ports_and_user_are_those_of_the_image():
    image = (ROOT / "Dockerfile").read_text()
    user = re.search(r"useradd .*--uid (\d+)", image).group(1)
    ports = re.search(r"^EXPOSE (.*)$", image, re.M).group(1).split()
    stateful_set = documents()["StatefulSet"]
    assert f"runAsUser: {user}\n" in stateful_set and f"fsGroup: {user}\n" in stateful_set
    assert re.findall(r"containerPort: (\d+)", stateful_set) == ports
    assert re.findall(r"^      port: (\d+)", documents()["Service"], re.M) == ports
    for flag in ("--listen", "--metrics-listen", "--pool"):
        assert flag in image and f"- {flag}=" in stateful_set


def test_pods_are_found_by_service_policy_and_prometheus():
    label = "app.kubernetes.io/name: cowshed"
    for kind, text in documents().items():
        assert label in text, kind
    annotations = documents()["StatefulSet"]
    assert 'prometheus.io/scrape: "true"' in annotations
    assert 'prometheus.io/port: "9742"' in annotations


def test_grafana_provisions_what_the_dashboard_needs():
    source = (PROVISIONING / "datasources" / "prometheus.yml").read_text()
    provider = (PROVISIONING / "dashboards" / "cowshed.yml").read_text()
    assert "apiVersion: 1" in source and "type: prometheus" in source
    assert "apiVersion: 1" in provider and "allowUiUpdates: false" in provider
    assert [load_dashboard(path)["uid"] for path in DASHBOARDS] == ["cowshed-overview"]


def test_the_docs_list_exactly_the_flags_there_are():
    """Of serve, and those of all commands; check, inspect and health are in the text."""
    source = (ROOT / "service" / "main.cc").read_text()
    flags = set(re.findall(r'"!?(--[a-z-]+)"', source))
    page = (ROOT / "docs" / "operations.md").read_text()
    documented = re.findall(r"^\| `(--[a-z-]+)` \|", page, re.M)
    assert len(set(documented)) == len(documented)
    in_the_text = {
        "--json", "--address", "--timeout-seconds", "--repair", "--plan", "--from-copy",
        "--drop-intent-log",
    }
    assert set(documented) == flags - in_the_text
    assert {flag for flag in in_the_text if flag not in page} == set()
