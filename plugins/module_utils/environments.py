# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang environments side by side below one directory, one of them in force.

    HOME/environments/NAME/    a virtual environment; its ringmaster.json is written last: without it the environment is half-built
    HOME/current               link to the one in force; HOME/previous to the one before
    HOME/bin/python            runs the Python of `current`: a running server keeps the environment that it was started with
    HOME/log/NAME.log          what the build said
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time

from . import environment_users, files
from .errors import RingmasterError

STAMP = "ringmaster.json"
BRIEF_S = 1.0  # that long others may have the lock, to look or to switch: no reason to refuse


def path(home, name):
    return os.path.join(home, "environments", name)


def python(home, name):
    return os.path.join(path(home, name), "bin", "python")


def log_path(home, name):
    return os.path.join(home, "log", f"{name}.log")


def launcher(home):
    return os.path.join(home, "bin", "python")


def check_name(name):
    """Raise RingmasterError unless NAME is a plain name: it becomes part of paths that are removed."""
    if not name or os.path.basename(name) != name or name.startswith("."):
        raise RingmasterError(f"{name!r} is no name of an environment.", "It is as 0.5.16-cu130-0a1b2c3d.")


def names(home):
    """Every environment below HOME, half-built ones too."""
    place = os.path.join(home, "environments")
    return sorted(os.listdir(place)) if os.path.isdir(place) else []


def linked(home, link="current"):
    """The environment that HOME's LINK names, whether or not it is there, or None."""
    try:
        return os.path.basename(os.readlink(os.path.join(home, link)))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise RingmasterError(f"{os.path.join(home, link)} is no link to an environment.", "Move it away, then run again.") from error
        raise files.explain(os.path.join(home, link), "read", error) from error


def stamp(home, name):
    return files.read_json(os.path.join(path(home, name), STAMP))


def records(environment):
    """A digest of what the package manager wrote down of each package: it changes when something is installed or removed."""
    digest = hashlib.sha256()
    for folder in sorted(_dist_infos(environment)):
        record = files.content(os.path.join(folder, "RECORD")) or b""
        digest.update(f"{os.path.basename(folder)} {hashlib.sha256(record).hexdigest()}\n".encode())
    return digest.hexdigest()


def _dist_infos(environment):
    library = os.path.join(environment, "lib")
    for version in _entries(library):
        site = os.path.join(library, version, "site-packages")
        yield from (os.path.join(site, name) for name in _entries(site) if name.endswith(".dist-info"))


def _entries(folder):
    return os.listdir(folder) if os.path.isdir(folder) else []


def starts(home, name):
    """Whether the environment's own Python can be run."""
    try:
        done = subprocess.run(
            [python(home, name), "-I", "-S", "-c", ""], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False, cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def fault(home, name, lock_sha256=None, prove=True):
    """Why the environment NAME cannot be used as it is, or None: it is whole. Its Python is started, unless it is only to be there."""
    if not os.path.isdir(path(home, name)):
        return "is not there"
    try:
        written = stamp(home, name)
    except RingmasterError:
        return "is half-built"
    if not written:
        return "is half-built"
    if lock_sha256 and written["lock_sha256"] != lock_sha256:
        return "was built from another lock"
    if written["records"] != records(path(home, name)):
        return "was changed after it was built (packages were installed or removed)"
    works = starts(home, name) if prove else os.access(python(home, name), os.X_OK)
    return None if works else "has a Python that does not start"


def users(home, name):
    """[{pid, command}] of the processes that run from the environment NAME."""
    folder = os.path.realpath(path(home, name))
    found = environment_users.users(folder) if os.path.isdir(folder) else []
    return [{"pid": pid, "command": command[:120]} for pid, command in found]


def size_bytes(folder):
    """Bytes that FOLDER takes on disk; what has several names inside it counts once."""
    seen, total = set(), 0
    for where, folders, found in os.walk(folder):
        for entry in (*folders, *found):
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(where, entry))
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
    return total


def listing(home, sizes=True):
    """[{name, whole, fault, current, previous, users [pid], versions, built, size_mib}] of every environment."""
    current, previous, there = linked(home), linked(home, "previous"), names(home)
    folders = {name: os.path.realpath(path(home, name)) for name in there if os.path.isdir(path(home, name))}
    in_use = environment_users.users_of(list(folders.values()))
    rows = []
    for name in there:
        wrong = fault(home, name, prove=False)
        written = (stamp(home, name) if wrong != "is half-built" else None) or {}
        rows.append(
            {
                "name": name,
                "whole": wrong is None,
                "fault": wrong,
                "current": name == current,
                "previous": name == previous,
                "users": [pid for pid, _command in in_use.get(folders.get(name), [])],
                "versions": written.get("versions", {}),
                "built": written.get("built"),
                "size_mib": round(size_bytes(path(home, name)) / 2**20) if sizes else None,
            }
        )
    return rows


@contextlib.contextmanager
def locked(home, what):
    """One change of HOME at a time, else RingmasterError. Yields the lock's descriptor: who inherits it keeps the lock, too."""
    files.make_directory(home)
    lock = os.path.join(home, ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise files.explain(lock, "open", error) from error
    try:
        _take(descriptor, home)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with contextlib.suppress(OSError):  # on a full disk the lock is held all the same, only who holds it cannot be told
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps({"what": what, "pid": os.getpid(), "since": since}).encode())
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor, home):
    end = time.monotonic() + BRIEF_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > end:
                said = f"Another change of {home} is going on: {_held(os.read(descriptor, 4096))}."
                raise RingmasterError(said, "Wait until it has ended, then run again.") from None
        time.sleep(0.05)


def holder(home):
    """What change of HOME is going on now, and who is at it, or None."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(home, ".lock"), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _held(file.read(4096))
    return None


def _held(text):
    with contextlib.suppress(ValueError, KeyError):
        return "{what}, pid {pid}, since {since}".format(**json.loads(text))
    return "by another process"


def switch(home, name):
    """Put the environment NAME in force for whatever starts from now on. The one that was becomes `previous`."""
    former = linked(home)
    if former == name:
        return
    if former and os.path.isdir(path(home, former)):
        _link(home, "previous", former)
    _link(home, "current", name)


def _link(home, link, name):
    files.replace_link(os.path.join("environments", name), os.path.join(home, link))


def refuse_removal(home, name):
    """Raise RingmasterError when the environment NAME must stay."""
    if name == linked(home):
        raise RingmasterError(f"{path(home, name)} is in force ({home}/current).", "Switch to another one first (sglang_version).")
    if found := users(home, name):
        who = "; ".join(f"pid {user['pid']}: {user['command'][:80]}" for user in found[:3])
        raise RingmasterError(f"{path(home, name)} is in use ({who}).", "Restart or stop that server first.")


def remove(home, name):
    """Remove the environment NAME, its stamp first: one that is cut off is half-built, not whole."""
    files.remove(os.path.join(path(home, name), STAMP))
    try:
        shutil.rmtree(path(home, name))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise files.explain(error.filename or path(home, name), "remove", error) from error
    if linked(home, "previous") == name:
        files.remove(os.path.join(home, "previous"))


def superfluous(home, keep):
    """Names of the environments that may go: neither in force nor in use, nor one of the KEEP newest (the one before counts as newest)."""
    rows = [row for row in listing(home, sizes=False) if not row["current"]]
    newest = sorted((row for row in rows if row["whole"]), key=lambda row: (row["previous"], row["built"] or ""), reverse=True)
    kept = {row["name"] for row in newest[:keep]}
    return [row["name"] for row in rows if row["name"] not in kept and not row["users"]]
