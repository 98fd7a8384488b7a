# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write, remember and put back files so that a crash at any moment leaves the old or the new one, whole."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import stat
import tempfile

from .errors import RingmasterError


def _sync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path, mode=0o755):
    """Create PATH and its parents; the last one gets MODE. Errors name the directory that could not be made."""
    try:
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            make_directory(parent)
        if not os.path.isdir(path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, mode)
            os.chmod(path, mode)
    except OSError as error:
        raise explain(path, "create", error) from error


def replace_link(target, path):
    """Make PATH a link to TARGET in one step: whoever looks finds the former one or this one."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(target, temporary)
        os.rename(temporary, path)
        _sync_directory(os.path.dirname(path))
    except OSError as error:
        raise explain(path, "switch", error) from error


def free_bytes(path):
    """Room for this user on the file system of PATH, which need not be there yet."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def plain(path, flags):
    """An opener for files in a directory that somebody else can write to: no link is followed, no pipe waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def write_atomic(path, data, *, mode, uid=None, gid=None):
    """Replace PATH, or the file it links to, by DATA (bytes) with MODE; owner as given, else as it was.

    Raises RingmasterError naming the path; then the former file is untouched and nothing is left beside it.
    """
    real = os.path.realpath(path)
    directory = os.path.dirname(real)
    temporary = None
    try:
        with contextlib.suppress(FileNotFoundError):
            former = os.stat(real)
            uid = former.st_uid if uid is None else uid
            gid = former.st_gid if gid is None else gid
        fd, temporary = tempfile.mkstemp(prefix=".ringmaster-", dir=directory)
        with os.fdopen(fd, "wb") as file:
            if uid is not None and (uid, gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, uid, -1 if gid is None else gid)
            os.fchmod(fd, mode)  # after chown, which clears setuid bits
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, real)
        temporary = None
        _sync_directory(directory)
    except OSError as error:
        raise explain(real, "write", error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def write_json(path, value, mode=0o600):
    write_atomic(path, (json.dumps(value, sort_keys=True) + "\n").encode(), mode=mode)


def read_json(path, default=None):
    """The value in PATH, or DEFAULT when there is no such file. A damaged file is an error, never a default."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return default
    except ValueError as error:
        remedy = "Restore it from a backup or remove it."
        raise RingmasterError(f"{path} is not the JSON that Ringmaster wrote: {error}.", remedy) from error
    except OSError as error:
        raise explain(path, "read", error) from error


def remove(path):
    """Remove the file PATH, if it is there, so that it stays removed after a power cut."""
    try:
        os.unlink(path)
        _sync_directory(os.path.dirname(path))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise explain(path, "remove", error) from error


def content(path):
    """The bytes of PATH, or None when there is no such file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain(path, "read", error) from error


def snapshot(path):
    """What PATH is now, as JSON: {path (real), content (base64) or None when absent, mode, uid, gid, mtime_ns}."""
    real = os.path.realpath(path)
    try:
        with open(real, "rb") as file:
            status = os.fstat(file.fileno())
            content = base64.b64encode(file.read()).decode()
    except FileNotFoundError:
        return {"path": real, "content": None}
    except OSError as error:
        raise explain(real, "read", error) from error
    return {
        "path": real,
        "content": content,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "mtime_ns": status.st_mtime_ns,
    }


def same(former):
    """Whether the file is, in bytes, mode and owner, what the snapshot FORMER says."""
    now = snapshot(former["path"])
    return all(now.get(key) == former.get(key) for key in ("content", "mode", "uid", "gid"))


def restore(former):
    """Make the file what the snapshot FORMER says. Returns whether anything had to be done."""
    if same(former):
        return False
    path = former["path"]
    if former["content"] is None:
        remove(path)
        return True
    make_directory(os.path.dirname(path))
    data = base64.b64decode(former["content"])
    try:
        write_atomic(path, data, mode=former["mode"], uid=former["uid"], gid=former["gid"])
    except RingmasterError as error:
        if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) or not os.path.exists(path):
            raise
        _overwrite(path, data, former)
    with contextlib.suppress(OSError, KeyError):
        os.utime(path, ns=(former["mtime_ns"], former["mtime_ns"]))
    return True


def _overwrite(path, data, former):
    """Put DATA over the file PATH itself, which needs no room for a second one on a full disk. Not atomic: the journal still has DATA."""
    try:
        with open(path, "r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            os.fchown(file.fileno(), former["uid"], former["gid"])
            os.fchmod(file.fileno(), former["mode"])
    except OSError as error:
        raise explain(path, "write", error) from error


def explain(path, action, error):
    """An OSError in a user's terms."""
    remedies = {
        errno.EACCES: f"Run the play with `become: true`, or choose a path that user {os.geteuid()} may write.",
        errno.EPERM: f"Run the play with `become: true`, or choose a path that user {os.geteuid()} may write.",
        errno.EROFS: "The file system is mounted read-only.",
        errno.ENOSPC: "The disk is full: free some space and run again; nothing was half-written.",
        errno.EDQUOT: "The disk quota is used up; nothing was half-written.",
        errno.ENOENT: "A directory above it is missing.",
    }
    return RingmasterError(f"Cannot {action} {path}: {os.strerror(error.errno or 0)}.", remedies.get(error.errno, ""))
