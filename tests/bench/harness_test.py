# SPDX-License-Identifier: Apache-2.0
"""The bench harness: what it makes of samples, of peers that cannot run, and of ratios."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from harness import Bench, Unavailable, at_least, at_most, result_path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("a", {"fast": at_least(10), "small": at_most(1.5)}, tmp_path, runs=3, quick=False)


def test_rows_are_medians(bench: Bench) -> None:
    for value in (5.0, 1.0, 3.0):
        bench.sample("ours", "1 GB", value, "s")
    (row,) = bench.as_json()["rows"]
    assert row == {
        "what": "ours",
        "size": "1 GB",
        "median": 3.0,
        "min": 1.0,
        "max": 5.0,
        "unit": "s",
        "runs": 3,
    }


def test_bars_hold_or_not(bench: Bench) -> None:
    bench.ratio("fast", 10.0)
    bench.ratio("small", 1.6)
    bars = bench.as_json()["bars"]
    assert bars["fast"] == {"bar": ">= 10", "holds": True}
    assert bars["small"] == {"bar": "<= 1.5", "holds": False}


def test_a_ratio_that_was_not_measured_neither_holds_nor_fails(bench: Bench) -> None:
    bench.ratio("fast", bench.over(("ours", "1 GB"), ("peer", "1 GB")))
    result = bench.as_json()
    assert result["ratios"] == {"fast": None, "small": None}
    assert result["bars"]["fast"]["holds"] is None


def test_only_promised_ratios_are_taken(bench: Bench) -> None:
    with pytest.raises(KeyError):
        bench.ratio("unknown", 1.0)


def test_paired_ratios_spare_a_drift(bench: Bench) -> None:
    for ours, peer in ((1.0, 2.0), (10.0, 20.0), (4.0, 40.0)):
        bench.sample("ours", "", ours, "s")
        bench.sample("peer", "", peer, "s")
    assert bench.over(("ours", ""), ("peer", ""), paired=True) == 0.5
    assert bench.over(("ours", ""), ("peer", "")) == 0.2


def test_a_peer_that_cannot_run_is_a_row_with_the_reason(bench: Bench) -> None:
    with bench.attempt("peer", "1 GB"):
        raise Unavailable("peer is not installed")
    (row,) = bench.as_json()["rows"]
    assert row == {"what": "peer", "size": "1 GB", "unavailable": "peer is not installed"}


def test_a_missing_program_is_unavailable(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="no-such-program is not installed"):
        bench.command("no-such-program")


def test_a_failing_command_says_what_it_said(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="no such thing"):
        bench.command("sh", "-c", "echo no such thing >&2; exit 1")


def test_folders_go(bench: Bench) -> None:
    with bench.folder("pool") as folder:
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_smoke_run_leaves_the_figures_alone() -> None:
    # Bug: the smoke run of the tests overwrote what a whole run had measured, and the page of
    # figures was made of both.
    assert result_path("data", quick=True) != result_path("data", quick=False)
