# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets, two at a time, and says how many cases and losses there were.

Each target starts from its checked-in corpus and from what earlier runs found (build/fuzz/corpus).
What brings a target down is kept in build/fuzz/losses, with its output beside it.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"
PROGRAMS = ROOT / "build/asan/tests"
WORK = ROOT / "build/fuzz"
AT_A_TIME = 2  # a server and its threads fill more than one processor
INPUT_MAX_BYTES = 4096
MEMORY_MAX_MB = 4096
INPUT_MAX_SECONDS = 120


def targets() -> list[str]:
    sources = sorted((ROOT / "tests/fuzz").glob("*_fuzz.cc"))
    return [source.name.removesuffix("_fuzz.cc") for source in sources]


def run(target: str, seconds: int) -> tuple[int, int]:
    """Returns (cases, losses) of one target."""
    found = WORK / "corpus" / target
    losses = WORK / "losses"
    for folder in (found, losses):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=memory_root()) as files:
        done = subprocess.run(
            [
                str(PROGRAMS / f"{target}_fuzz"),
                f"-max_total_time={seconds}",
                f"-max_len={INPUT_MAX_BYTES}",
                "-len_control=0",
                f"-rss_limit_mb={MEMORY_MAX_MB}",
                f"-timeout={INPUT_MAX_SECONDS}",
                f"-artifact_prefix={losses}/{target}-",
                "-print_final_stats=1",
                "-detect_leaks=0",
                str(found),
                str(CORPUS / target),
            ],
            env={**os.environ, "COWSHED_TEST_ROOT": files},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    counted = re.findall(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
    cases = int(counted[-1]) if counted else 0
    lost = 0 if done.returncode == 0 and cases > 0 else 1
    rate = cases // max(seconds, 1)
    print(f"{target:20} {cases:12,} cases {rate:8,}/s {lost} losses", flush=True)
    if lost:
        output = losses / f"{target}.log"
        output.write_text(done.stderr)
        print(done.stderr[-6000:], f"... all of it in {output}", sep="\n", file=sys.stderr)
    return cases, lost


def memory_root() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10, help="of each target")
    length.add_argument("--seconds", type=float, help="the same in seconds")
    parser.add_argument("target", nargs="*", help="default: all: " + ", ".join(targets()))
    arguments = parser.parse_args()
    chosen = arguments.target or targets()
    for target in chosen:
        if target not in targets():
            parser.error(f"there is no target {target}")
    seconds = int(arguments.seconds or arguments.minutes * 60)
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        results = list(pool.map(lambda target: run(target, seconds), chosen))
    cases = sum(result[0] for result in results)
    lost = sum(result[1] for result in results)
    print(f"fuzz: {len(chosen)} targets, {cases:,} cases, {lost} losses")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
