# SPDX-License-Identifier: Apache-2.0
"""The coverage report finds the files of the project."""

import coverage_report
import pytest


# Bug: names by way of the build folder were in no folder of the project, and the report was empty.
@pytest.mark.parametrize(
    "name",
    [
        "engine/pool.cc",
        "./engine/pool.cc",
        "build/coverage/../../engine/pool.cc",
        str(coverage_report.ROOT / "engine" / "pool.cc"),
    ],
)
def test_names_are_taken_from_the_checkout(name: str) -> None:
    assert coverage_report.relative(name) == "engine/pool.cc"


def test_names_elsewhere_stay_what_they_are() -> None:
    assert coverage_report.relative("/usr/include/stdio.h") == "/usr/include/stdio.h"
