# SPDX-License-Identifier: Apache-2.0
"""docs/attach.md does what it says: its blocks of `sh` are run as they stand, section by section,
and every line of the `text` that follows must be among what they print."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nbd_support import (
    PYTHON_DIR,
    TOOL_ENVIRONMENT,
    TOOL_SECONDS_MAX,
    NbdServer,
    fuse_is_missing,
    loop_is_missing,
    needs,
)

PAGE = Path(__file__).resolve().parents[2] / "docs/attach.md"
RUN_DIRECTORY = "/run/cowshed"  # as the page calls it

pytestmark = needs("nbdinfo", "nbdcopy", "nbdsh", "nbdfuse", "qemu-img", "qemu-io", "sqlite3")

# What a section takes for granted.
GIVEN = {
    "A virtual machine's disk": (
        "truncate -s 8M raw; printf data | dd of=raw bs=1M seek=2 conv=notrunc status=none;"
        "qemu-img convert -f raw -O qcow2 raw debian.qcow2"
    ),
    "A container's root file system": (
        "mkdir -p rootfs; for f in $(command -v sh cat) $(ldd $(command -v sh cat) |"
        " grep -o '/[^ :]*' | sort -u); do mkdir -p rootfs/$(dirname $f);"
        " cp -L $f rootfs/$f; done; [ -e rootfs/bin/sh ] ||"
        " { mkdir -p rootfs/bin && cp -L $(command -v sh) rootfs/bin/sh; }"
    ),
}
FILE_SECTIONS = {"A container's root file system", "A database"}
LOOP_SECTIONS = {"A container's root file system"}


def unshare_is_missing() -> str:
    """Why there are no mount namespaces here, as in a chroot that is no mount; empty if there are."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return tried.stderr.strip()


@dataclass
class Section:
    """A section's commands, and what they must print."""

    title: str
    script: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)


def sections(page: str) -> list[Section]:
    """Those that have something to run."""
    found: list[Section] = []
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        one = Section(part.partition("\n")[0])
        for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL):
            if language == "sh":
                one.script.append(body)
            elif language == "text":
                one.printed += body.splitlines()
        if one.script:
            found.append(one)
    return found


SETTING, *RECIPES = sections(PAGE.read_text())


def environment(bin_directory: Path) -> dict[str, str]:
    """One with `cow` in the path."""
    bin_directory.mkdir()
    cow = bin_directory / "cow"
    cow.write_text(f'#!/bin/sh\nexec {sys.executable} -m cowshed "$@"\n')
    cow.chmod(0o755)
    path = f"{bin_directory}:{TOOL_ENVIRONMENT['PATH']}"
    return {**TOOL_ENVIRONMENT, "PATH": path, "PYTHONPATH": str(PYTHON_DIR)}


@pytest.fixture
def mounts_end(own_server: NbdServer, tmp_path: Path) -> Iterator[None]:
    """Unmounts what a script that fails in the middle leaves, the latest first, while its server
    lives: a loop device on the file of a dead one would stay, and stop whoever looks through all."""
    yield
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([one for one in mounts if one.startswith(f"{tmp_path}/")]):
        subprocess.run(["umount", mount], check=True)


@pytest.mark.usefixtures("mounts_end")
@pytest.mark.parametrize("recipe", RECIPES, ids=[one.title for one in RECIPES])
def test_recipe_works_as_written(
    own_server: NbdServer, recipe: Section, tmp_path: Path
) -> None:
    missing = ""
    if recipe.title in FILE_SECTIONS:
        missing = fuse_is_missing()
    if recipe.title in LOOP_SECTIONS:
        missing = missing or loop_is_missing() or unshare_is_missing()
    if missing:
        pytest.skip(missing)
    directory = tmp_path / "run"
    directory.mkdir()
    given = GIVEN.get(recipe.title, "")
    script = "\n".join(["set -euo pipefail", given, *SETTING.script, *recipe.script])
    done = subprocess.run(
        ["bash", "-c", script.replace(RUN_DIRECTORY, str(own_server.directory))],
        cwd=directory,
        env=environment(tmp_path / "bin"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    printed = {" ".join(line.split()) for line in done.stdout.splitlines()}
    for line in recipe.printed:
        assert " ".join(line.split()) in printed, f"{line!r} is not in\n{done.stdout}"


def test_page_has_a_recipe_for_each_use() -> None:
    titles = {recipe.title for recipe in RECIPES}
    assert titles >= {*GIVEN, *FILE_SECTIONS, "A backup and its increments"}
