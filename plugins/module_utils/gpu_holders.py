# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes have a /dev/nvidia* node open, in whatever container: /proc/PID/fd of every process of the machine.

What it costs, measured with 5,000 processes of 20 open files each, 64 of them with 1,000 (tests/bench/bench_reap.py): 0.4 s of CPU, most
of it the kernel's, so the work is shared out to a few forked processes. Reading /proc/PID/maps of all would double that. A process that has
closed a node and still maps it is rare (CUDA keeps its nodes open), so `mapped` is asked only of processes that are suspects anyhow.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import re
import stat
from typing import NamedTuple

from . import procfs

# "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"; in a chroot something is in front, and " (deleted)" follows where the node is gone.
_NODE = re.compile(r"(?:^|.*/)(dev/nvidia[^ ]*)(?: \(deleted\))?$")
_GPU_NODE = re.compile(r"/dev/nvidia(\d+)$")
_HINT = "/nvidia"  # a plain search passes over almost every link far faster than the pattern
_SHARE = 500  # processes for which a fork pays
_SHARES = 4


class Holders(NamedTuple):
    """`nodes` {pid: ["/dev/nvidia0", ...]}; `hidden` [pid] of those whose open files may not be seen."""

    nodes: dict
    hidden: list


class Scan:
    """A scan that has begun: what the caller does until `result` runs beside it."""

    def __init__(self, pids=None):
        pids = user_processes() if pids is None else list(pids)
        shares = min(_SHARES, len(os.sched_getaffinity(0)), len(pids) // _SHARE)
        self._parts = [pids[share::shares] for share in range(shares)] if shares > 1 else [pids]
        self._forks = [_fork(part) for part in self._parts] if shares > 1 else [None]

    def result(self):
        """The Holders."""
        nodes, hidden = {}, []
        for part, fork in zip(self._parts, self._forks):
            found = _collect(fork) or _look(part)
            nodes.update(found[0])
            hidden += found[1]
        return Holders(nodes, sorted(hidden))


def scan(pids=None):
    """The Holders among PIDS (all processes when None), after one look."""
    return Scan(pids).result()


def user_processes():
    """Pids of all processes that are no threads of the kernel."""
    kernel = procfs.read(2)
    # In a container process 2 is anybody; only the kernel's has no memory. The kernel names its children in one small file.
    is_kernel = kernel is not None and kernel.comm == "kthreadd" and kernel.ppid == 0 and kernel.rss_bytes == 0
    skip = {2, *procfs.children(2)} if is_kernel else ()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid not in skip]


def mapped(pid):
    """The /dev/nvidia* nodes that PID maps into its memory, open or not."""
    found = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if _HINT in line:
                found.add(_node(line.rstrip("\n").split(None, 5)[-1]))
    return sorted(found - {None})


def gpu_minors(nodes):
    """Minor numbers of the GPUs among NODES: /dev/nvidia0 is one, /dev/nvidiactl none."""
    return sorted(int(match[1]) for match in map(_GPU_NODE.match, nodes) if match)


def live_threads(pid):
    """[{tid, name, state, waits_in}] of the threads of PID that have not ended, which a process whose leader has ended may have.

    `waits_in`: the kernel function it sleeps in, None where that cannot be seen.
    """
    found = []
    for tid in _listed(f"/proc/{pid}/task"):
        thread = _thread(pid, tid)
        if thread is not None and thread["state"] not in "ZX":
            found.append(thread)
    return found


def _thread(pid, tid):
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", encoding="utf-8", errors="replace") as file:
            head, _sign, tail = file.read().rpartition(")")
    except OSError:
        return None
    wait = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{tid}/wchan", encoding="ascii", errors="replace") as file:
        wait = file.read().strip()
    return {"tid": int(tid), "name": head.partition("(")[2], "state": tail.split()[0], "waits_in": None if wait in ("", "0") else wait}


def _look(pids):
    """({pid: [node]}, [hidden pid]) of PIDS."""
    nodes, hidden = {}, []
    for pid in pids:
        try:
            found, names = _open_nodes(f"/proc/{pid}/fd")
            if not names:  # a process whose leader has ended has no files, but its other threads may hold them
                tasks = _listed(f"/proc/{pid}/task")
                for tid in tasks if len(tasks) > 1 else ():
                    with contextlib.suppress(FileNotFoundError):
                        found |= _open_nodes(f"/proc/{pid}/task/{tid}/fd")[0]
        except PermissionError:
            hidden.append(pid)
        except OSError:  # gone
            continue
        else:
            if found:
                nodes[pid] = sorted(found)
    return nodes, hidden


def _open_nodes(folder):
    """(nodes open in FOLDER, how many files are open). Raises PermissionError when that may not be seen, OSError when it is gone."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    found, refused = set(), None
    readlink = os.readlink  # this line and the loop are run for each open file of the machine
    try:
        names = os.listdir(directory)
        for name in names:
            try:
                link = readlink(name, dir_fd=directory)
            except PermissionError as error:
                refused = error
                break
            except OSError:  # closed meanwhile
                continue
            if _HINT in link and _node(link) and _is_device(name, directory):
                found.add(_node(link))
    finally:
        os.close(directory)
    if refused:
        raise refused
    return found, len(names)


def _is_device(name, directory):
    try:
        return stat.S_ISCHR(os.stat(name, dir_fd=directory).st_mode)
    except OSError:
        return False


def _node(link):
    match = _NODE.match(link)
    return f"/{match[1]}" if match else None


def _listed(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


# --- sharing the work out ---------------------------------------------------------------------------------------------


def _fork(pids):
    """(pid, descriptor) of a child that looks at PIDS and writes what it found; None when there can be none."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as out:
                marshal.dump(_look(pids), out)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def _collect(fork):
    """What the child found, or None when it has not said."""
    if fork is None:
        return None
    child, reading = fork
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    try:
        return marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return None
