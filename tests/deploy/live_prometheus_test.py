# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a real server under load: every query shows something, the counters
equal what the clients counted, and alerts fire when what they are about happens.
"""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import grpc
import pytest
from live_load import MIB, WORKERS, create, run_load
from live_server import Counts, CountingClient, Prometheus, Server, free_port, wait_for
from monitoring import (
    DASHBOARDS, alerts, fill_in, load_dashboard, panels_of, recording_rules, selectors_of,
)

from cowshed.v1 import data_pb2 as data
from cowshed.v1 import dataset_pb2 as dataset
from cowshed.v1 import pool_pb2 as pool

RATE_RANGE = "5s"  # what $__rate_interval becomes: a few scrapes


# --- the run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A server that has been under load, scraped all the while; counters before and after."""
    directory = tmp_path_factory.mktemp("load")
    server = Server(directory / "server")
    prometheus = None
    try:
        prometheus = Prometheus(directory / "prometheus", [server.metrics])
        wait_for("the first scrapes",
                 lambda: prometheus.now('count_over_time(up{job="cowshed"}[1m]) > 2'))
        before = server.scrape()
        start = time.time()
        counts = Counts()
        run_load(server, counts)
        wait_for("reclaim is done", lambda: server.scrape()["cowshed_reclaim_pending_items"] == 0)
        after = server.scrape()
        time.sleep(3)  # the scrapes that show the end
        yield SimpleNamespace(server=server, prometheus=prometheus, counts=counts, before=before,
                              after=after, start=start, end=time.time())
    finally:
        if prometheus:
            prometheus.stop()
        server.stop()


def increase(run, name: str) -> float:
    return run.after[name] - run.before[name]


# --- what the load has to show ------------------------------------------------------------------

# Queries that need not change under this load, and why. Panel title, or title and refId.
CONSTANT = {
    "Up": "it is up all the while",
    "Alarms raised": "an ordinary load raises none",
    "Alarms": "an ordinary load raises none",
    "Checksum errors": "none on a sound disk",
    "Faults": "no call fails by the server's fault",
    "Executor": "three clients never fill the queue; the live alerts look at the rest",
    "Entries B": "the longest list is sampled every 60 s, longer than the load",
    "Condense runs": "this load may log too little to condense",
    "Condensed entries": "this load may log too little to condense",
    "Written by condense": "this load may log too little to condense",
    "Condense duration, p99": "no run, no observation, hence no value",
    "Dropped and rebuilt": "no list is damaged",
    "Reclaim failures and expiry A": "nothing fails",
    "Reclaim failures and expiry B": "nothing expires within the load",
    "Pool space A": "the capacity is fixed",
    "Objects D": "no snapshot is deferred",
    "Dirty bytes": "as of commits, which leave little behind",
    "Metadata file": "the reserve ahead of use takes the growth in",
    "Metadata readers": "readers are over before the next scrape",
    "Descriptors and threads": "the pools of threads and files are made at the start",
    "Reclaim held back": "nobody pauses it, and nothing stalls",
    "Objects waiting": "reclaim may be done within a second",
    "Oldest waiting": "reclaim may be done within a second",
    "Node cache": "every node of this load is found",
    "Build": "always 1",
    "Certificate": "no TLS here: no value",
    "Scrub and backup speed B": "the backup may be done between two scrapes",
    "Scrub and backup under way B": "the backup may be done between two scrapes",
    "Scrub and backup under way C": "nothing is damaged",
    "Scrub and backup under way D": "no backup fails",
    "Age of the copy of the metadata": "made every hour",
    "Copies of the metadata": "made every hour",
    "NBD connections": "they may come and go between two scrapes",
    "Access and audit A": "without a policy nobody is refused",
    "Access and audit C": "the audit log can be written",
    "Access and audit D": "nothing is reloaded",
}
NO_VALUE = {"Certificate"}
MAY_HAVE_NO_VALUE = {"Condense duration, p99"}


def queries() -> list:
    found = []
    for path in DASHBOARDS:
        for panel in panels_of(load_dashboard(path)):
            for target in panel["targets"]:
                found.append(pytest.param(panel["title"], target["refId"],
                                          fill_in(target["expr"], RATE_RANGE),
                                          id=f"{panel['title']} {target['refId']}"))
    return found


def test_exceptions_name_existing_queries():
    names = {parameter.id for parameter in queries()} | {p.values[0] for p in queries()}
    assert set(CONSTANT) <= names


@pytest.mark.parametrize("title, reference, expr", queries())
def test_panel_shows_the_load(run, title, reference, expr):
    series = run.prometheus.over(expr, run.start, run.end)
    if title in NO_VALUE:
        assert not any(series)
        return
    assert any(series) or title in MAY_HAVE_NO_VALUE, "no finite value"
    if title in CONSTANT or f"{title} {reference}" in CONSTANT:
        return
    assert any(len(set(values)) > 1 for values in series), "the load does not show"


RULE_CONSTANT = {
    "instance:grpc_server_faults:ratio_rate5m": "no call fails by the server's fault",
    "instance:cowshed_reclaim_oldest_pending_seconds:age": "reclaim may be done within a second",
}


@pytest.mark.parametrize("rule", recording_rules(), ids=lambda rule: rule["record"])
def test_recording_rule_shows_the_load(run, rule):
    series = run.prometheus.over(rule["record"], run.start, run.end)
    assert any(series), "no finite value"
    if rule["record"] not in RULE_CONSTANT:
        assert any(len(set(values)) > 1 for values in series), "the load does not show"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_what_an_alert_looks_at_is_there(run, alert):
    for selector in selectors_of(alert["expr"]):
        assert run.prometheus.now(selector), selector


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alert_is_silent_under_an_ordinary_load(run, alert):
    assert run.prometheus.now(alert["expr"]) == []


# --- truth --------------------------------------------------------------------------------------


def test_destroys_are_those_of_the_clients(run):
    for kind in ("dataset", "clone", "snapshot", "rollback"):
        counted = increase(run, f'cowshed_destroy_requests_total{{kind="{kind}"}}')
        assert counted == run.counts.one("destroyed", kind) > 0, kind


def test_attachments_are_those_of_the_clients(run):
    wait_for("nothing is attached", lambda: not any(
        value for name, value in run.server.scrape().items()
        if name.startswith("cowshed_attachments{")))
    assert increase(run, "cowshed_attachments_cut_total") == run.counts.one("cut")


def test_handled_calls_are_those_of_the_clients(run):
    server = {}
    for name in run.after:
        if name.startswith("grpc_server_handled_total{") and increase(run, name):
            labels = dict(part.split("=", 1) for part in name[name.index("{") + 1 : -1].split(","))
            key = (labels["grpc_method"].strip('"'), labels["grpc_code"].strip('"'))
            server[key] = increase(run, name)
    assert server == run.counts.of("handled")
    assert ("CloneDataset", "OK") in server and ("GetDataset", "NotFound") in server
    assert ("DestroyDatasets", "FailedPrecondition") in server


def test_stream_messages_are_those_of_the_clients(run):
    for method, type_ in (("Write", "bidi_stream"), ("Read", "server_stream")):
        labels = (f'{{grpc_type="{type_}",grpc_service="cowshed.v1.DataService",'
                  f'grpc_method="{method}"}}')
        received = increase(run, f"grpc_server_msg_received_total{labels}")
        sent = increase(run, f"grpc_server_msg_sent_total{labels}")
        assert received == run.counts.one("sent", method) > 0, method
        assert sent == run.counts.one("streamed", method) > 0, method


def test_started_calls_are_handled(run):
    started = sum(value for name, value in run.after.items()
                  if name.startswith("grpc_server_started_total"))
    handled = sum(value for name, value in run.after.items()
                  if name.startswith("grpc_server_handled_total"))
    observed = sum(value for name, value in run.after.items()
                   if name.startswith("grpc_server_handling_seconds_count"))
    assert started == handled == observed


def test_bytes_are_those_of_the_clients(run):
    assert increase(run, "cowshed_write_bytes_total") == run.counts.one("written")
    assert increase(run, "cowshed_request_replays_total") == run.counts.one("replays")
    assert increase(run, "cowshed_read_bytes_total") >= run.counts.one("read") > 0


def test_requests_over_nbd_are_those_of_the_clients(run):
    for command in ("read", "write", "flush"):
        answered = increase(run, f'cowshed_nbd_requests_total{{command="{command}"}}')
        assert answered == run.counts.one("nbd", command) > 0, command
    refused = increase(run, 'cowshed_nbd_errors_total{reason="invalid"}')
    assert refused == run.counts.one("nbd", "refused")
    written = increase(run, 'cowshed_nbd_bytes_total{direction="write"}')
    assert written == run.counts.one("nbd", "written")


def test_every_destroyed_object_has_its_reclaim_latency(run):
    for kind in ("dataset", "clone", "snapshot", "rollback"):
        observed = increase(run, f'cowshed_reclaim_latency_seconds_count{{kind="{kind}"}}')
        assert observed == run.counts.one("destroyed", kind), kind


def test_everything_destroyed_came_back(run):
    assert run.after["cowshed_reclaim_pending_bytes"] == 0
    assert run.after["cowshed_reclaim_oldest_pending_timestamp_seconds"] == 0
    assert increase(run, "cowshed_datasets") == 2 * WORKERS
    assert increase(run, "cowshed_clones") == WORKERS
    assert increase(run, "cowshed_snapshots") == WORKERS


def test_pool_agrees_with_the_gauges(run):
    client = CountingClient(run.server, Counts())
    state = client.call("GetPool", pool.GetPoolRequest())
    found = run.server.scrape()
    client.close()
    for field, metric in (
        ("capacity_bytes", "cowshed_pool_capacity_bytes"),
        ("allocated_bytes", "cowshed_pool_allocated_bytes"),
        ("dataset_count", "cowshed_datasets"),
        ("livelist_count", "cowshed_livelists"),
        ("livelist_entries", "cowshed_livelist_entries"),
        ("freed_bytes_total", "cowshed_reclaim_freed_bytes_total"),
        ("written_bytes_total", "cowshed_write_bytes_total"),
    ):
        assert getattr(state, field) == found[metric], field


# Runs last of those that use `run`: it stops the server.
def test_inspect_counts_the_same_again(run):
    last = run.server.scrape()
    run.server.stop()
    found = run.server.inspect()
    for (section, key), metric in INSPECTED.items():
        assert found[section][key] == last[metric], f"{section}.{key}"
    assert found["freed_bytes"] and sum(found["freed_bytes"].values()) == (
        last["cowshed_reclaim_freed_bytes_total"])
    assert found["operations"]
    assert all(state.endswith("_succeeded") for state in found["operations"])


INSPECTED = {
    ("pool", "datasets"): "cowshed_datasets",
    ("pool", "clones"): "cowshed_clones",
    ("pool", "snapshots"): "cowshed_snapshots",
    ("pool", "deferred_snapshots"): "cowshed_deferred_snapshots",
    ("pool", "holds"): "cowshed_holds",
    ("livelists", "count"): "cowshed_livelists",
    ("livelists", "sublists"): "cowshed_livelist_sublists",
    ("livelists", "entries"): "cowshed_livelist_entries",
    ("space", "capacity_bytes"): "cowshed_pool_capacity_bytes",
    ("space", "freeing_bytes"): "cowshed_reclaim_pending_bytes",
}


# --- alerts that fire ---------------------------------------------------------------------------


def shorten(text: str) -> str:
    """The same rules with their patience in seconds."""
    for old, new in (
        ("for: 1m", "for: 2s"), ("for: 5m", "for: 2s"), ("for: 10m", "for: 2s"),
        ("for: 15m", "for: 2s"), ("for: 1h", "for: 2s"),
        ("[15m]", "[5s]"), ("[10m]", "[5s]"), ("[5m]", "[5s]"), ("[1h]", "[30s]"), ("> 900", "> 3"),
    ):
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def watch(tmp_path_factory):
    """A Prometheus with short patience, and four places where a server may appear."""
    directory = tmp_path_factory.mktemp("watch")
    ports = [free_port() for _ in range(4)]
    prometheus = Prometheus(directory / "prometheus", [f"127.0.0.1:{port}" for port in ports],
                            shorten)
    yield SimpleNamespace(directory=directory, ports=ports, prometheus=prometheus)
    prometheus.stop()


@pytest.fixture
def start(watch):
    """Starts a server at the place `number`; it is stopped at the end."""
    servers = []

    def begin(number: int, **options) -> tuple[Server, CountingClient]:
        server = Server(watch.directory / f"server{number}", metrics_port=watch.ports[number],
                        **options)
        client = CountingClient(server, Counts())
        servers.append((server, client))
        wait_for("the first scrape",
                 lambda: watch.prometheus.now(f'up{{instance="{server.metrics}"}} == 1'))
        return server, client

    yield begin
    for server, client in servers:
        client.close()
        server.stop(signal.SIGKILL)


def fires(watch, alert: str, server: Server, seconds: float = 60) -> None:
    wait_for(f"{alert} fires", lambda: watch.prometheus.firing(alert, server.metrics), seconds)


def write(client: CountingClient, name: str, blocks: range,
          expect: grpc.StatusCode = grpc.StatusCode.OK) -> None:
    for block in blocks:
        client.call("WriteRange", data.WriteRangeRequest(
            dataset=name, offset_bytes=block * MIB, data=block.to_bytes(4, "big") * (MIB // 4)),
            expect)


def test_a_full_pool_fires_pool_reserve_reached(watch, start):
    server, client = start(0, capacity="256MiB")
    create(client, "big", 1024 * MIB)
    try:
        write(client, "big", range(1024))
        pytest.fail("256 MiB took 1 GiB")
    except AssertionError as refused:
        assert "RESOURCE_EXHAUSTED" in str(refused)
    fires(watch, "PoolReserveReached", server)
    client.call("DestroyDatasets", dataset.DestroyDatasetsRequest(names=["big"]))
    wait_for("the alert resolves",
             lambda: not watch.prometheus.firing("PoolReserveReached", server.metrics), 60)


def destroyed(client: CountingClient) -> None:
    """A dataset with 16 MiB in it, destroyed."""
    create(client, "victim", 64 * MIB)
    write(client, "victim", range(16))
    client.call("Flush", data.FlushRequest(dataset="victim"))
    client.call("DestroyDatasets", dataset.DestroyDatasetsRequest(names=["victim"]))


def test_reclaim_that_pauses_fires_reclaim_stalled(watch, start):
    server, client = start(1, failpoints="reclaim.step=pause")
    destroyed(client)
    fires(watch, "ReclaimStalled", server)
    assert server.scrape()["cowshed_reclaim_pending_items"] == 1


def test_a_damaged_list_fires_livelist_damaged(watch, start):
    server, client = start(2, failpoints="reclaim.verify=error")
    destroyed(client)
    fires(watch, "LivelistDamaged", server)


def test_a_stopped_server_fires_cowshed_down(watch, start):
    server, _ = start(3)
    wait_for("it is known to be up",
             lambda: not watch.prometheus.firing("CowshedDown", server.metrics))
    server.stop(signal.SIGKILL)
    fires(watch, "CowshedDown", server)
