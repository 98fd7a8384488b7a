# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes as /proc shows them, and signals that can only reach the process that was meant."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import NamedTuple

_CLOCK_TICK = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded once: nothing may be loaded between fork and exec
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 4  # of the kernel's flags of a task


class Process(NamedTuple):
    """One line of /proc/PID/stat. `start` (clock ticks since boot) together with `pid` names a process for good."""

    pid: int
    comm: str
    state: str
    ppid: int
    session: int
    major_faults: int
    cpu_s: float
    start: int
    rss_bytes: int


def read(pid):
    """The Process with that PID, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # hidepid=1 lists what it does not show
        return None
    comm_end = text.rindex(")")  # the name may itself hold blanks and brackets
    fields = text[comm_end + 2 :].split()
    return Process(
        pid=pid,
        comm=text[text.index("(") + 1 : comm_end],
        state=fields[0],
        ppid=int(fields[1]),
        session=int(fields[3]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _CLOCK_TICK,
        start=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def scan():
    """All processes now, {pid: Process}."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read(int(name))
            if process is not None:
                table[process.pid] = process
    return table


def descendants(root_pid, table=None):
    """The Processes below ROOT_PID, parents before children, itself not among them."""
    children = {}
    for process in (scan() if table is None else table).values():
        children.setdefault(process.ppid, []).append(process)
    found, queue = [], [root_pid]
    while queue:
        for process in children.get(queue.pop(0), ()):
            found.append(process)
            queue.append(process.pid)
    return found


def children(pid):
    """Pids that the main thread of PID started; [] where the kernel does not tell. Costs one small file, not a scan."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_line(pid):
    """The arguments of PID as a list; [] when it is gone. A renamed process has its title as the first one."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [part.decode(errors="replace") for part in file.read().rstrip(b"\0").split(b"\0")]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def environment(pid):
    """The environment PID was started with, {name: value}; None when unreadable or blanked by a renamed process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    pairs = [item.decode(errors="replace").partition("=") for item in raw.split(b"\0") if b"=" in item]
    return {name: value for name, _sign, value in pairs} or None


def bytes_read(pid):
    """Bytes PID asked for by read(), from any file system; 0 when it is gone or not ours to look at."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        for line in file:
            if line.startswith("rchar:"):
                return int(line.split()[1])
    return 0


def is_alive(process):
    """Whether that very Process still runs (a zombie does not, nor does a later one with its pid)."""
    now = read(process.pid)
    return now is not None and now.start == process.start and now.state not in "ZX"


def exit_code(pid):
    """How PID, which has ended but is not yet collected, ended: negative for a signal; None when that cannot be seen."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return os.waitstatus_to_exitcode(int(fields[49]))
    return None


def is_exiting(pid):
    """Whether PID has begun to end: before its files are closed, and long before it can be collected; False when it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return bool(int(file.read().rpartition(")")[2].split()[6]) & _PF_EXITING)
    return False


def open_pidfd(process):
    """A descriptor that becomes readable when PROCESS ends; None where the kernel has none, or it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None
    if is_alive(process):  # compared after opening: from here on the descriptor means this one
        return descriptor
    os.close(descriptor)
    return None


def send_signal(process, signal_number):
    """Signal that very Process. Returns False when it is gone; a later process with its pid is never hit."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel without pidfd: the start time narrows the race to microseconds
        if not is_alive(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal_number)
            return True
        return False
    try:
        if not is_alive(process):  # compared after opening: from here on the descriptor means this one
            return False
        signal.pidfd_send_signal(pidfd, signal_number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def reap_orphans(except_pid=None, table=None):
    """Collect the exit of children of ours that ended (a subreaper gets other people's), except the one somebody waits for."""
    for process in (scan() if table is None else table).values():
        if process.ppid == os.getpid() and process.state == "Z" and process.pid != except_pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def kill_descendants(deadline_s, keep_for_wait=None):
    """KILL everything below this process until nothing is left. Returns the Processes that would not go (state D)."""
    end = time.monotonic() + deadline_s
    empty = 0
    while True:
        left = [process for process in descendants(os.getpid()) if process.state not in "ZX"]
        empty = 0 if left else empty + 1
        if empty == 2 or time.monotonic() > end:  # twice: a child born while /proc was read is seen the next time
            reap_orphans(keep_for_wait)
            return left
        for process in left:
            send_signal(process, signal.SIGKILL)
        reap_orphans(keep_for_wait)
        time.sleep(0.02)


def kill_marked(mark, deadline_s=5.0):
    """KILL every process whose environment holds the text MARK, until none is left or DEADLINE_S are over. Returns those hit."""
    end, hit = time.monotonic() + deadline_s, []
    while time.monotonic() < end:
        found = [process for process in scan().values() if process.state not in "ZX" and _marked(process.pid, mark.encode())]
        if not found:
            break
        hit += [process for process in found if send_signal(process, signal.SIGKILL)]
        time.sleep(0.02)
    return hit


def _marked(pid, mark):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:  # gone, or not ours to look at
        return False


def become_subreaper():
    """Orphans below this process become its children, so that none can leave the tree."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signal_number=signal.SIGKILL):
    """To be called in a child between fork and exec: it gets SIGNAL_NUMBER when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
