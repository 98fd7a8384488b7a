# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of a bundle: fetched by apt, and a flat repository made of them."""

from __future__ import annotations

import email.utils
import gzip
import hashlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

from .bundle_apt import World

_AR_TIME = slice(24, 36)  # of the first member's header: when the package was built


def fetch(world: World, wanted: list[str], folder: Path, say: Callable[[str], None]) -> int:
    """Make FOLDER a repository of WANTED and what they need; returns how many files came anew."""
    specs = world.choose(wanted)
    debs = world.fetches(specs)
    unsigned = [deb.name for deb in debs if not deb.sha256]
    if unsigned:
        raise RingmasterError(f"The repository has no SHA256 of {unsigned[0]}.", "Use a repository with checksums.")
    folder.mkdir(parents=True, exist_ok=True)
    by_sum = {bundle_files.sha256(str(path)): path for path in folder.glob("*.deb")}
    for deb in debs:  # what an earlier run has brought: apt finds it in its archives
        if deb.sha256 in by_sum and not (world.archives / deb.name).exists():
            by_sum[deb.sha256].rename(world.archives / deb.name)
    for path in folder.iterdir():
        path.unlink()
    missing = [deb for deb in debs if not (world.archives / deb.name).exists()]
    say(f"packages: {len(debs)}, {bundle_files.size(sum(deb.bytes for deb in debs))}; {len(missing)} to fetch")
    bundle_files.want_room(str(folder), sum(deb.bytes for deb in missing), "bundle_dir")
    if missing:
        world.download(specs)
    for deb in debs:
        path = world.archives / deb.name
        if not path.exists() or bundle_files.sha256(str(path)) != deb.sha256:
            path.unlink(missing_ok=True)
            raise RingmasterError(f"{deb.name} has not the checksum that its repository says.", "Run again: it is fetched again.")
        path.rename(folder / _file_name(path))
    publish(folder)
    return len(missing)


def _file_name(deb: Path) -> str:
    """NAME_VERSION_ARCHITECTURE.deb without the epoch: no colon, which a URI would have to escape."""
    name, version, rest = deb.name.split("_", 2)
    return "_".join([name, version.rpartition("%3a")[2], rest])


def publish(folder: Path) -> None:
    """Write the index of all packages in FOLDER. Unsigned: who uses it knows the checksum of each file from the manifest."""
    stanzas, newest, architectures = [], 0, set()
    for deb in sorted(folder.glob("*.deb")):
        control = _control(deb)
        architectures |= set(re.findall(r"(?m)^Architecture: *(\S+)", control))
        with deb.open("rb") as file:
            newest = max(newest, int(file.read(64)[_AR_TIME].strip() or 0))
        row = bundle_files.row(str(folder), deb.name)
        stanzas.append(f"{control}\nFilename: ./{deb.name}\nSize: {row['bytes']}\nSHA256: {row['sha256']}\n")
    index = "\n".join(stanzas).encode()
    written = {"Packages": index, "Packages.gz": gzip.compress(index, mtime=0)}
    lines = ["Origin: Ringmaster", "Label: Ringmaster bundle", f"Architectures: {' '.join(sorted(architectures - {'all'})) or 'all'}"]
    lines += [f"Date: {email.utils.formatdate(newest, usegmt=True)}", "SHA256:"]  # of the content, so that the same gives the same
    for name, data in written.items():
        (folder / name).write_bytes(data)
        lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
    (folder / "Release").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _control(deb: Path) -> str:
    done = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RingmasterError(f"{deb.name} is no package: {done.stderr.strip()}", "Run again: it is fetched again.")
    return done.stdout.rstrip("\n")
