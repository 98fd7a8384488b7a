# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says: whom its OOM killer chose, and errors of GPUs (Xid). From /dev/kmsg and cgroup counters, where they are readable.

Formats: Documentation/ABI/testing/dev-kmsg, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux; NVIDIA's Xid guide.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from datetime import datetime, timezone

_RECORD_BYTES = 8192  # a shorter read of a longer record fails
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO: only there do the kernel log's numbers mean what ours mean
_VICTIM = re.compile(r"Killed process (\d+)|^oom-kill:.*\bpid=(\d+)")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)[^)]*\): (?P<xid>\d+)(?:, ?(?P<text>.*))?")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Made when a server starts, of its PID; asked after a death."""

    def __init__(self, pid):
        self._counter = counter_path(_text(f"/proc/{pid}/cgroup"), _text("/proc/self/mountinfo"))
        self._killed = self._count()
        self._log = _open(os.SEEK_END)

    def lines(self, pids):
        """Proofs that the OOM killer chose one of PIDS since the start: kernel log lines that name one, else one line that the counter of
        the server's cgroup grew; [] when nothing is proven or readable. Further calls look on from there."""
        found = [text for _at, text in _read(self._log) if oom_victim(text) in pids] if _pids_are_ours() else []
        before, self._killed = self._killed, self._count()
        if not found and before is not None and self._killed is not None and self._killed > before:
            found = [f"{self._counter}: oom_kill grew from {before} to {self._killed}"]
        return found

    def _count(self):
        found = _COUNTER.search(_text(self._counter)) if self._counter else None
        return int(found[1]) if found else None

    def close(self):
        if self._log is not None:
            os.close(self._log)
            self._log = None


def readable():
    """Whether the kernel log can be read here: without, no Xid means nothing."""
    log = _open(os.SEEK_END)
    if log is not None:
        os.close(log)
    return log is not None


def xids(now_s=None):
    """GPU errors in the kernel log, oldest first: [{at (ISO 8601, UTC), pci, xid, text}]; [] also where it cannot be read.

    now_s: seconds since the epoch of this moment, for tests. The log is a ring: old ones may be gone.
    """
    return parse_xids(records(), boot_s=(time.time() if now_s is None else now_s) - time.monotonic())


def records():
    """(seconds since boot, text) of all that the kernel log still has, oldest first; nothing where it cannot be read."""
    log = _open(os.SEEK_SET)
    try:
        yield from _read(log)
    finally:
        if log is not None:
            os.close(log)


def parse_xids(found_records, *, boot_s):
    """xids() of (seconds since boot, text) and the moment of booting."""
    found = []
    for at_s, text in found_records:
        match = _XID.search(text)
        if match:
            at = datetime.fromtimestamp(boot_s + at_s, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
            found.append({"at": at, "pci": match["pci"].lower(), "xid": int(match["xid"]), "text": (match["text"] or "").strip()})
    return found


def parse_record(data):
    """One read of /dev/kmsg as (seconds since boot, text), or None. It is "priority,number,microseconds,flags;text" and further lines."""
    head, separator, rest = data.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not fields[2].isdigit():
        return None
    text = rest.partition("\n")[0]
    return int(fields[2]) / 1e6, _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def oom_victim(text):
    """The PID that this kernel log line says the OOM killer chose, or None."""
    found = _VICTIM.search(text)
    return int(found[1] or found[2]) if found else None


def counter_path(cgroups, mounts):
    """The file with the OOM kills of a process's own memory cgroup, or None: from its /proc/PID/cgroup and a /proc/self/mountinfo.

    Version 1 counts in memory.oom_control, version 2 in memory.events. On a host with both the controller is in version 1.
    """
    paths = {}  # "memory" for version 1, "" for version 2
    for line in cgroups.splitlines():
        _number, controllers, path = line.split(":", 2)
        paths.update((name, path) for name in controllers.split(",") if name in ("memory", ""))
    for version, file_name in (("memory", "memory.oom_control"), ("", "memory.events")):
        if version not in paths:
            continue
        for line in mounts.splitlines():
            fields, _separator, kind = line.partition(" - ")
            root, point = fields.split()[3:5]
            kind, _source, options = kind.split(" ", 2)
            if kind == ("cgroup" if version else "cgroup2") and (not version or version in options.split(",")):
                path = paths[version]
                inside = path[len(root) :] if root != "/" and (path + "/").startswith(root + "/") else path
                return os.path.normpath(f"{point}/{inside}/{file_name}")
    return None


def _pids_are_ours():
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _open(whence):
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.lseek(log, 0, whence)
    except OSError:  # a device that only looks like one
        os.close(log)
        return None
    return log


def _read(log):
    """(seconds since boot, text) of all records up to now."""
    while log is not None:
        try:
            data = os.read(log, _RECORD_BYTES)
        except BrokenPipeError:  # overwritten before it was read; the next read goes on
            continue
        except OSError:  # EAGAIN: no more
            return
        record = parse_record(data)
        if not data:
            return
        if record:
            yield record


def _text(path):
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
