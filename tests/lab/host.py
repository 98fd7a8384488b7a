# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the test harness needs of its host: commands, locks, mounts, ids, the bridge. Linux, root, standard library."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Containers and their addresses are a matter of the whole machine, so this place is fixed; images can live elsewhere.
STATE = Path("/var/lib/ringmaster-test")
CACHE = Path(os.environ.get("RINGMASTER_TEST_CACHE") or "/var/cache/ringmaster-test")
BRIDGE = "rmtest0"
NETWORK = "10.77.0"
# Fixed: by itself a bridge takes the lowest address of its ports. A container that starts or ends would change it, and whoever was about
# to answer over it would be heard some 14 s later.
BRIDGE_ADDRESS = "02:00:0a:4d:00:01"
ID_BASE, ID_COUNT = 100000, 65536
PACKAGES = ("lxc", "debootstrap", "debian-archive-keyring", "uidmap", "openssh-client", "iproute2")


class LabError(Exception):
    """The harness cannot go on; the text says why and what to do."""


def run(*command: str | Path, check: bool = True, timeout_s: float | None = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, its output captured; raises LabError with the end of that output when it fails and `check` is set."""
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(
            argv, check=False, timeout=timeout_s, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed: run `tests/lab/lxc.py install` as root") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(argv)}` did not end within {timeout_s:g} s") from None
    if check and done.returncode:
        raise LabError(f"`{' '.join(argv)}` ended with {done.returncode}:\n{done.stdout[-2000:].rstrip()}")
    return done


def say(text: str) -> None:
    """Progress, on stderr: stdout carries the answer."""
    print(text, file=sys.stderr, flush=True)


def require_root() -> None:
    if os.geteuid():
        raise LabError("containers need root: run this as root, or use `make lint unit`, which need none")


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the machine-wide lock of that name; it goes with the process, so a crash leaves none behind."""
    folder = STATE / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def state() -> Iterator[dict[str, Any]]:
    """{containers: {name: record}, last: byte of the address given last}, under the lock; written back when the block ends well."""
    path = STATE / "state.json"
    with locked("state"):
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"containers": {}, "last": 10}
        yield kept
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(path)


def mounts_below(folder: Path) -> list[str]:
    """Mount points at or below `folder`, the deepest first."""
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    root = str(folder)
    return sorted((p for p in points if p == root or p.startswith(root + "/")), key=len, reverse=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder; what is mounted in it is unmounted first, and nothing is removed while a mount stays."""
    for point in mounts_below(folder):
        run("umount", point, check=False)
    if left := mounts_below(folder):
        raise LabError(f"still mounted: {', '.join(left)}. Unmount it, then run this again")
    if folder.exists():
        shutil.rmtree(folder)


def ensure_id_range() -> None:
    """Let root hand the range to containers: newuidmap and newgidmap insist on it where they are installed."""
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        entry = f"root:{ID_BASE}:{ID_COUNT}"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if entry not in text.splitlines():
            with open(path, "a", encoding="utf-8") as out:
                out.write(("" if not text or text.endswith("\n") else "\n") + entry + "\n")


def ensure_bridge() -> None:
    """A bridge of our own: no address translation, no route out."""
    if run("ip", "link", "show", BRIDGE, check=False).returncode:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "address", BRIDGE_ADDRESS)
    run("ip", "address", "replace", f"{NETWORK}.1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def install() -> list[str]:
    """Install what is missing of PACKAGES with apt; returns the names of what was."""
    require_root()
    if not shutil.which("apt-get"):
        raise LabError(f"no apt-get here (the containers want Debian or Ubuntu); install these by hand: {', '.join(PACKAGES)}")
    known = run("dpkg-query", "-W", "-f", "${Package} ${Status}\n", *PACKAGES, check=False).stdout
    missing = [name for name in PACKAGES if f"{name} install ok installed" not in known.splitlines()]
    if missing:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        with locked("apt"):
            run("apt-get", "update", "-qq", env=quiet, timeout_s=600)
            run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, env=quiet, timeout_s=900)
    return missing
