# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lock file says: names, versions and checksums of an environment's packages. Pure text.

A lock is what `uv pip compile --universal --generate-hashes` writes, which pip reads too. Ringmaster's own have two more lines, which a
user's own may lack: `# python: >=3.10, <3.14` and `# disk: 9000 MiB`. A third, `# no-deps: REASON`, is for a lock that overrides what its
packages ask for (another NCCL than torch's): it is installed as it stands.
"""

from __future__ import annotations

import hashlib
import re

from .errors import RingmasterError

# Options that say where packages are, which pip and uv read from a lock as they stand.
SOURCES = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f", "--no-index", "--trusted-host")
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\*=,]+)(?![^\s;\\])", re.M)
_OTHER = re.compile(rf"\s*(#|$)|({'|'.join((*SOURCES, '--only-binary'))})[\s=]|--no-index$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_COMPARISON = re.compile(r"\s*(>=|<=|==|<|>|!=)\s*(\d+(?:\.\d+)*)\s*")
_UV_WHEEL = r"uv-{version}-py3-none-manylinux[a-z0-9_.]*_{machine}\.whl"


def normal(name):
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text):
    """{sha256, versions {name: [version, ...]}, python (a range, may be ""), disk_mib (0: not told), no_deps} of a lock's TEXT.

    A name has several versions where they depend on the interpreter. Raises RingmasterError for what is no lock.
    """
    versions = {}
    for name, version in _PIN.findall(text):
        versions.setdefault(normal(name), []).append(version)
    lines = re.sub(r"\\\r?\n", " ", text).splitlines()  # as pip and uv join them
    loose = [line for line in lines if not (_PIN.match(line) or _OTHER.match(line))]
    if loose or not versions:
        found = f"has the line {loose[0][:80]!r}" if loose else "names no package"
        remedy = "Each package is a line NAME==VERSION with its checksums: `uv pip compile --universal --generate-hashes`."
        raise RingmasterError(f"The lock file {found}.", remedy)
    if missing := [name for name, hashes in _hashes(text).items() if not hashes]:
        raise RingmasterError(f"The lock file has no checksum for {missing[0]}.", "Write it with `uv pip compile --generate-hashes`.")
    python, disk = re.search(r"^# python: *(.+)$", text, re.M), re.search(r"^# disk: *(\d+) MiB", text, re.M)
    allows(python[1] if python else "", "3")  # refuses what it cannot read
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "versions": versions,
        "python": python[1].strip() if python else "",
        "disk_mib": int(disk[1]) if disk else 0,
        "no_deps": bool(re.search(r"^# no-deps: *\S", text, re.M)),
    }


def _hashes(text):
    """{package as in the lock: checksums}."""
    found, starts = {}, list(_PIN.finditer(text))
    for at, pin in enumerate(starts):
        end = starts[at + 1].start() if at + 1 < len(starts) else len(text)
        found[f"{pin[1]} {pin[2]}"] = _HASH.findall(text[pin.start() : end])
    return found


def environment_name(label, sha256):
    """The directory of an environment: what it is, and which lock exactly it was built from."""
    return f"{label}-{sha256[:8]}"


def allows(python_range, version):
    """Whether an interpreter's VERSION, such as "3.11.2", is in PYTHON_RANGE, such as ">=3.10, <3.14". An empty range allows all."""
    have, verdicts = _numbers(version), []
    for part in filter(str.strip, python_range.split(",")):
        match = _COMPARISON.fullmatch(part)
        if not match:
            raise RingmasterError(f"The lock file's line `# python: {python_range}` is not understood.", "Write it as >=3.10, <3.14.")
        sign, wanted = match[1], _numbers(match[2])
        here = have[: max(len(wanted), 2)] if sign in ("==", "!=", "<=", ">") else have
        signs = {">=": here >= wanted, "<=": here <= wanted, "==": here == wanted, "!=": here != wanted, "<": here < wanted}
        verdicts.append(signs.get(sign, here > wanted))
    return all(verdicts)


def _numbers(version):
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def choose_uv(names, lock_text, machine):
    """(file name of uv's wheel among NAMES for MACHINE, or None; its version), by uv's own lock."""
    version = parse(lock_text)["versions"]["uv"][0]
    pattern = re.compile(_UV_WHEEL.format(version=re.escape(version), machine=re.escape(machine)))
    return next((name for name in sorted(names) if pattern.fullmatch(name)), None), version


def check_uv(data, lock_text, name):
    """Raise RingmasterError unless DATA, the wheel NAME, is one of uv's lock."""
    digest = hashlib.sha256(data).hexdigest()
    if digest not in _HASH.findall(lock_text):
        what = f"{name} has the checksum {digest}, which its lock does not have."
        raise RingmasterError(what, "Something altered it on its way: look there.")


def differences(lock, installed):
    """[sentences]: where what is INSTALLED {name: version} is not what the LOCK (of `parse`) says."""
    found = []
    for name, version in sorted((normal(name), version) for name, version in installed.items()):
        wanted = lock["versions"].get(name)
        if wanted is None:
            found.append(f"{name} {version} is not in the lock")
        elif version not in wanted:
            found.append(f"{name} is {version}, not {' or '.join(wanted)}")
    if "sglang" in lock["versions"] and "sglang" not in map(normal, installed):
        found.append("sglang is missing")
    return found
