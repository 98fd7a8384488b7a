# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a running server's output goes, and a LogReader over a bounded part of it. Nothing is written but an unnamed file in memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from typing import NamedTuple

from . import procfs, server_log

HEAD_BYTES = 512 * 1024  # the start: its phases
TAIL_BYTES = 1024 * 1024  # the end: what happens now
JOURNAL_LINES = 3000
_STAMP = re.compile(rb"^(\d+\.\d+) \S+ [^:\n]*?: ?", re.MULTILINE)


class Output(NamedTuple):
    """`kind`: file, journal, or unknown. `path`: for a person. `source`: what to open, or the match for journalctl. `note`: why unknown."""

    kind: str
    path: str | None = None
    source: str | None = None
    note: str | None = None


class Log(NamedTuple):
    """`reader`: a LogReader that has read it, or None. `age_s`: seconds since it last grew, `bytes`: its size, None when not known."""

    output: Output
    reader: server_log.LogReader | None
    age_s: float | None
    bytes: int | None


def of_process(pid):
    """The Output of PID: what its standard error is, else its standard output."""
    links = [link for link in (_link(pid, 2), _link(pid, 1)) if link]
    if not links:
        return Output("unknown", note=f"the files that process {pid} has open cannot be seen: run the play with `become: true`")
    for number in (2, 1):
        path = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.stat(path).st_mode):
                return Output("file", _link(pid, number), path)
    environment = procfs.environment(pid) or {}
    if links[0].startswith("socket:") and environment.get("INVOCATION_ID"):
        invocation = environment["INVOCATION_ID"]
        return Output("journal", f"journalctl _SYSTEMD_INVOCATION_ID={invocation}", f"_SYSTEMD_INVOCATION_ID={invocation}")
    if links[0].startswith("pipe:"):
        return _behind_pipe(links[0])
    return Output("unknown", note=f"its output goes to {links[0]}, which cannot be read back")


def _link(pid, number):
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}")
    return None


def _behind_pipe(link):
    """The file that the reader of a pipe writes to, as in `... | tee server.log`."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        if _link(name, 0) != link:
            continue
        program = os.path.basename((procfs.command_line(int(name)) or ["?"])[0])
        with contextlib.suppress(OSError):
            for number in sorted(set(os.listdir(f"/proc/{name}/fd")) - {"2"}, key=int):  # its own complaints are not the log
                path = f"/proc/{name}/fd/{number}"
                if stat.S_ISREG(os.stat(path).st_mode) and _is_written(name, number):
                    return Output("file", _link(name, number), path)
        return Output("unknown", note=f"its output goes through a pipe to {program!r}, which writes no file")
    return Output("unknown", note="its output goes into a pipe whose reader cannot be seen")


def _is_written(pid, number):
    with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    return flags & os.O_ACCMODE != os.O_RDONLY


def of_unit(properties, text):
    """The Output of the last start of a unit, which need not run: PROPERTIES of `systemctl show`, which names no file, and TEXT of
    `systemctl cat`, which does."""
    for name in ("StandardError", "StandardOutput"):
        if properties.get(name, "").partition(":")[0] in ("file", "append", "truncate"):
            values = [line.partition("=")[2].strip() for line in text.splitlines() if line.strip().startswith(f"{name}=")]
            path = values[-1].partition(":")[2] if values else ""
            if path and "%" not in path:
                return Output("file", path, path)
            return Output("unknown", note=f"its {name} goes to a file whose name cannot be told: {path}")
    invocation = properties.get("InvocationID")
    if invocation:
        return Output("journal", f"journalctl _SYSTEMD_INVOCATION_ID={invocation}", f"_SYSTEMD_INVOCATION_ID={invocation}")
    return Output("unknown", note="the unit was not started since boot")


def read(output, *, timeout_s):
    """The Log of OUTPUT: of a long one only the beginning and the end."""
    try:
        if output.kind == "file":
            return _of_file(output)
        if output.kind == "journal":
            return _of_journal(output, timeout_s)
    except OSError as error:
        return Log(output._replace(kind="unknown", note=f"{output.path} cannot be read: {error.strerror}"), None, None, None)
    return Log(output, None, None, None)


def _of_file(output):
    with open(output.source, "rb") as file:
        status = os.fstat(file.fileno())
        age_s = max(0.0, time.time() - status.st_mtime)
        if status.st_size <= HEAD_BYTES + TAIL_BYTES:
            return Log(output, server_log.whole(output.source), age_s, status.st_size)
        head = file.read(HEAD_BYTES)
        file.seek(status.st_size - TAIL_BYTES)
        tail = file.read(TAIL_BYTES)
    both = head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]
    return Log(output, _reader(both), age_s, status.st_size)


def _of_journal(output, timeout_s):
    if shutil.which("journalctl") is None:
        return Log(output._replace(kind="unknown", note="there is no journalctl"), None, None, None)
    command = ["journalctl", "--quiet", "--no-pager", "--all", "--output=short-unix", f"--lines={JOURNAL_LINES}", output.source]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Log(output._replace(kind="unknown", note=f"journalctl did not end within {timeout_s:g} s"), None, None, None)
    stamps = _STAMP.findall(done.stdout)
    if not stamps:
        return Log(output._replace(kind="unknown", note="the journal has no line of it that we may read"), None, None, None)
    return Log(output, _reader(_STAMP.sub(b"", done.stdout)), max(0.0, time.time() - float(stamps[-1])), None)


def _reader(data):
    """A LogReader that has read DATA."""
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a full disk is when one diagnoses
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(data)
        file.flush()
        return server_log.whole(f"/proc/self/fd/{file.fileno()}")
