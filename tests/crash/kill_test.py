# SPDX-License-Identifier: Apache-2.0
"""The short form of the soak: kill -9 of a real server under load, at random and in the worst
moments. After every death the server must know everything that it acknowledged; in the end the pool
checks clean and, once everything is destroyed, is as empty as in the beginning.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from soak import OPTIONS, Round, Soak, Tally  # noqa: E402
import cowshed  # noqa: E402, I001: found by way of soak

SCALE = 6 if "COWSHED_TEST_FULL" in os.environ else 1
SECONDS_MAX = 100 * SCALE


def _is_enough(tally: Tally, seconds: float) -> bool:
    return seconds > SECONDS_MAX or _has_met_the_worst(tally)


def _has_met_the_worst(tally: Tally) -> bool:
    deaths = tally.deaths
    return (
        deaths["sync"] + deaths["meta"] >= 4 * SCALE
        and deaths["reclaim"] >= 2 * SCALE
        and min(deaths["condense"], deaths["undelete"], deaths["rebuild"]) >= SCALE
        and tally.kills >= 24 * SCALE
        and tally.stops >= SCALE
        and tally.lost_reports > 0
    )


def test_killed_server_forgets_nothing_it_acknowledged() -> None:
    seed = int(os.environ.get("COWSHED_TEST_SEED") or random.randrange(1 << 32))
    print(f"seed {seed} (COWSHED_TEST_SEED={seed} for the same moments)")
    soak = Soak(seed, life_seconds=0.6, timeout=1.0)
    tally = soak.run(_is_enough)
    print(tally)
    assert not tally.losses, "\n".join(tally.losses)
    assert _has_met_the_worst(tally), tally


class _Tampered(Soak):
    """One byte is changed behind the back of all oracles, after the first death."""

    def _round(self, one: Round, stopped: bool) -> bool:
        ended = super()._round(one, stopped)
        self._server.start(*OPTIONS)
        with cowshed.connect(self._server.unix) as client:
            (byte,) = client.read("w0/file", 4096, 1)
            client.write("w0/file", 4096, bytes([byte ^ 1]))
        self._server.kill()
        return ended


def test_a_byte_that_changed_is_told_with_its_history() -> None:
    soak = _Tampered(1, life_seconds=0.6, timeout=1.0)
    tally = soak.run(lambda _, seconds: seconds > 30)
    shutil.rmtree(soak.directory)
    assert len(tally.losses) == 1
    assert "w0/file shows neither what was flushed nor what followed" in tally.losses[0]
    assert " s  write " in tally.losses[0]
