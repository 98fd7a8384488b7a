# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A slim bundle: a tree of packages for a host that has torch and CUDA's libraries, less what a plain decoder model can do without."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

from .bundle_lock import Pin

try:
    from packaging import utils
except ImportError:  # it comes with ansible-core; ansible-test's own environments are without
    utils = None

DATA = Path(__file__).parent / "data" / "bundle_slim.yml"
STRIP_FROM_BYTES = 1_000_000  # smaller ones are not worth a call
_HOST_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\s*==\s*|\s+)(\S+)")
_EDITABLE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s+@\s")


@lru_cache(maxsize=1)
def rules() -> dict[str, Any]:
    """{flags, packages: [{name, reason, but}], files: [{path, reason}]}; names and paths are shell patterns."""
    return yaml.safe_load(DATA.read_text(encoding="utf-8"))


def host_packages(text: str, where: str) -> dict[str, str]:
    """{name: version} of lines 'name version' or 'name==version'; of one that was installed from a file the version is ''."""
    found = {}
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line or line.startswith("-") or line.lower().split()[0] == "package":  # what `pip list` has above its columns
            continue
        match = _EDITABLE.match(line) or _HOST_LINE.match(line)
        if not match:
            raise RingmasterError(
                f"{where}: `{line[:60]}` is no package.", "Each line is `name version`, as of `pip list --format=freeze`."
            )
        found[utils.canonicalize_name(match[1])] = "" if match.re is _EDITABLE else match[2]
    return found


def select(
    pins: Iterable[Pin], host: Mapping[str, str], carry_anyway: Iterable[str], packages: Iterable[Mapping[str, Any]]
) -> tuple[list[Pin], dict[str, str]]:
    """(pins to carry, {name: why it is left out}). What the host has in another version is left out, too, unless CARRY_ANYWAY names it."""
    anyway = {utils.canonicalize_name(name) for name in carry_anyway}
    carried, left = [], {}
    for pin in pins:
        reason = next((row["reason"] for row in packages if _is_of(pin.name, row)), "")
        if pin.name in host and not (pin.name in anyway and host[pin.name] != pin.version):
            reason = f"the host has {host[pin.name] or 'it'}" + (f", the lock says {pin.version}" if host[pin.name] != pin.version else "")
        if reason:
            left[pin.name] = reason
        else:
            carried.append(pin)
    return carried, left


def _is_of(name: str, row: Mapping[str, Any]) -> bool:
    return fnmatch.fnmatchcase(name, row["name"]) and name not in row.get("but", ())


def add_wheel(wheel: Path, site: Path, leave: Iterable[str]) -> None:
    """Unpack WHEEL into SITE as a module path: no scripts, headers, data, nothing of the patterns LEAVE; its RECORD names what is there."""
    written, record = [], ""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = place(info.filename)
            if info.is_dir() or not path or any(fnmatch.fnmatchcase(path, pattern) for pattern in leave):
                continue
            if path.endswith(".dist-info/RECORD"):
                record = path
                continue
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            target.chmod(0o755 if info.external_attr >> 16 & 0o100 else 0o644)
            written.append(path)
    if record:
        text = "".join(f'"{path}",,\n' if "," in path else f"{path},,\n" for path in sorted([*written, record]))
        (site / record).parent.mkdir(parents=True, exist_ok=True)
        (site / record).write_text(text, encoding="utf-8")


def place(name: str) -> str:
    """Where a wheel's file goes below the tree, '' for one that has no place there."""
    pieces = PurePosixPath(name).parts
    if name.startswith("/") or ".." in pieces:
        raise RingmasterError(f"A wheel holds {name}.", "It would be written outside of its place; do not use that wheel.")
    if pieces and pieces[0].endswith(".data"):
        return "/".join(pieces[2:]) if pieces[1:2] in (("purelib",), ("platlib",)) else ""
    return "/".join(pieces)


def strip(site: Path, say: Callable[[str], None]) -> bool:
    """Take symbols out of large shared objects, where `strip` is there and they are this machine's; what auditwheel has moved stays."""
    program = shutil.which("strip")
    if not program:
        say("slim: no strip here (binutils), shared objects stay as they are")
        return False
    for path in sorted(site.rglob("*.so*")):
        if path.stat().st_size > STRIP_FROM_BYTES and not any(piece.endswith(".libs") for piece in path.parts):
            subprocess.run([program, "--strip-unneeded", path], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return True


def pack(site: Path, target: Path) -> int:
    """Write TARGET (.tar.xz) of the tree SITE, the same bytes for the same tree; returns the bytes in it."""
    program = shutil.which("xz")
    if not program:
        raise RingmasterError("The controller has no xz, which packs a slim bundle.", "Install it: apt install xz-utils.")
    total = 0
    # Blocks of a given size: the outcome does not depend on the number of threads, as long as there are two
    command = [program, "-6", f"--threads={max(2, os.cpu_count() or 2)}", "--block-size=32MiB", "--stdout"]
    with target.open("wb") as file, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file) as process:
        with tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(path for path in site.rglob("*") if path.is_file()):
                member = tarfile.TarInfo(str(path.relative_to(site)))
                member.size, member.mtime = path.stat().st_size, 0
                member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
                total += member.size
                with path.open("rb") as source:
                    archive.addfile(member, source)
        process.stdin.close()
    if process.returncode:
        raise RingmasterError(f"xz ended with {process.returncode} while it packed {target}.", "Look whether the disk is full.")
    return total
