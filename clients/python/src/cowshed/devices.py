# SPDX-License-Identifier: Apache-2.0
"""Brings an NBD export to this host: as a file (nbdfuse) or as a device of the kernel (nbd-client).

A file is mounted over a regular file, which is made for it if it is missing. The nbdfuse that
serves it is found again by a note in a directory of the user's, named after the path.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_POLL_SECONDS = 0.02
_BEGIN_SECONDS = 20.0
_END_SECONDS = 20.0


class DeviceError(OSError):
    """What this host lacks or refuses."""


@dataclass(frozen=True)
class Mounted:
    """A file that nbdfuse serves."""

    path: str
    pid: int
    created: bool  # the file was made for it

    @property
    def running(self) -> bool:
        """Whether its nbdfuse lives, and is no other process of that number."""
        try:
            return b"nbdfuse" in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False


def lacking_for_files() -> str:
    """What this host lacks to bring exports up as files; empty: nothing."""
    if shutil.which("nbdfuse") is None:
        return "nbdfuse is not installed (Debian: apt install libnbd-bin fuse3)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is missing or not ours to open: files can not be mounted here"
    return ""


def mount_file(path: str, uri: str, *, read_only: bool) -> Mounted:
    """Serves `uri` as the file `path`, by an nbdfuse that outlives us. Returns once it is there."""
    if lacking := lacking_for_files():
        raise DeviceError(lacking)
    path = os.path.realpath(path)
    if is_mounted(path):
        raise DeviceError(f"{path} is a mount point already")
    created = _prepare(path)
    note = _note(path)
    pid_file = note.with_suffix(".pid")
    pid_file.unlink(missing_ok=True)
    log = note.with_suffix(".log")
    command = ["nbdfuse", "-P", str(pid_file), *(["-r"] if read_only else []), path, uri]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _until(lambda: pid_file.exists() or child.poll() is not None, _BEGIN_SECONDS)
        if child.poll() is not None or not pid_file.exists():
            child.kill()
            said = log.read_text(errors="replace").strip() or f"it ended with {child.wait()}"
            raise DeviceError(f"nbdfuse could not attach: {said}")
    except DeviceError:
        if created:
            os.unlink(path)
        raise
    mounted = Mounted(path, child.pid, created)
    note.write_text(json.dumps(asdict(mounted)))
    return mounted


def find_mounted(path: str) -> Mounted | None:
    """The file at `path` that nbdfuse serves, if mount_file made it."""
    path = os.path.realpath(path)
    try:
        return Mounted(**json.loads(_note(path).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def unmount_file(path: str, *, force: bool = False) -> None:
    """Flushes and unmounts a file, and waits until its nbdfuse has gone.

    Args:
        force: also while programs have it open.
    """
    path = os.path.realpath(path)
    mounted = find_mounted(path)
    if is_mounted(path):
        _flush(path, force)
        _unmount(path, force)
    elif mounted is None:
        raise DeviceError(f"{path} is no attached file")
    if mounted is None:
        return
    if force and mounted.running:
        os.kill(mounted.pid, signal.SIGTERM)
    process = mounted
    if not _until(lambda: not process.running, _END_SECONDS):
        raise DeviceError(f"nbdfuse (pid {mounted.pid}) of {path} has not ended")
    if mounted.created and os.path.isfile(path) and os.stat(path).st_size == 0:
        os.unlink(path)
    for suffix in (".json", ".pid", ".log"):
        _note(path).with_suffix(suffix).unlink(missing_ok=True)


def is_mounted(path: str) -> bool:
    """Whether something is mounted at `path` itself."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        return any(_unescaped(line.split()[4]) == path for line in mounts)


def connect_device(device: str, uri: str, *, read_only: bool) -> str:
    """Brings `uri` up as a device of the kernel; `device` empty: the first that is free."""
    program = _program("nbd-client", "nbd-client")
    if not os.path.isdir("/sys/block/nbd0"):
        raise DeviceError("this kernel has no nbd (modprobe nbd): use --file, or the URI itself")
    device = device or _free_device()
    place = urlsplit(uri)
    if place.scheme == "nbds":
        raise DeviceError("nbd-client is given no certificates here: use the URI itself")
    if place.scheme == "nbd+unix":
        where = ["-unix", unquote(place.query.removeprefix("socket="))]
    else:
        where = [str(place.hostname), str(place.port)]
    export = unquote(place.path.removeprefix("/"))
    command = [program, *where, device, "-N", export, *(["-R"] if read_only else [])]
    _run(command, f"nbd-client could not bring up {device}")
    return device


def disconnect_device(device: str) -> None:
    """Flushes a device of the kernel and gives it up."""
    _flush(device, force=False)
    _run([_program("nbd-client", "nbd-client"), "-d", device], f"{device} could not be given up")


def is_device(path: str) -> bool:
    """Whether `path` is a block device."""
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError:
        return False


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DeviceError(f"{name} is not installed (Debian: apt install {package})")
    return found


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"status {done.returncode}"
        raise DeviceError(f"{problem}: {said}")


def _free_device() -> str:
    numbers = range(len([entry for entry in os.listdir("/sys/block") if entry.startswith("nbd")]))
    for number in numbers:
        if not os.path.exists(f"/sys/block/nbd{number}/pid"):
            return f"/dev/nbd{number}"
    raise DeviceError("every nbd device of this kernel is in use")


def _prepare(path: str) -> bool:
    """A regular, empty file to mount over. Returns whether it was made."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    except FileExistsError:
        pass
    if not os.path.isfile(path) or os.path.getsize(path) != 0:
        raise DeviceError(f"{path} exists and is no empty file: it would be hidden")
    return False


def _flush(path: str, force: bool) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not force:
            raise DeviceError(f"{path} could not be flushed: {error.strerror}") from error


def _unmount(path: str, force: bool) -> None:
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is not None:
        command = [program, "-u", *(["-z"] if force else []), path]
    else:
        command = [_program("umount", "mount"), *(["-l"] if force else []), path]
    _run(command, f"{path} could not be unmounted")


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _note(path: str) -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/cowshed-{os.getuid()}"
    directory = Path(base) / "cow-attach"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise DeviceError(f"{directory} belongs to somebody else")
    return directory / f"{hashlib.sha256(path.encode()).hexdigest()[:24]}.json"


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
