# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SGLang servers that run on this machine, whoever started them, found by what their processes are."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from typing import NamedTuple

from . import containers, procfs
from .server import ROLES

_CLOCK_TICK = os.sysconf("SC_CLK_TCK")
CONTROLLER = "data parallel controller"
_COMM_BYTES = 15  # what the kernel keeps of a name


class Tree(NamedTuple):
    """One server. `kind`: "server" (a launcher and what is below it), "embedded" (workers of another Python program) or "orphans"
    (workers whose launcher is gone). `root`: the launcher, the program, or the oldest orphan. `members` {title: Process} of the live
    workers, `dead` [(role, pid)] of those that have ended and are not yet collected."""

    kind: str
    root: procfs.Process
    processes: list
    members: dict
    dead: list
    command: list

    def schedulers(self):
        return {title: process for title, process in self.members.items() if title.startswith("sglang::scheduler")}


_PYTHON_OPTION = re.compile(r"-[a-zA-Z]*?([mcWX])(.*)", re.DOTALL)  # those with a value, which may be joined on, others before it


def is_launcher(words):
    """Whether the argument list WORDS starts an SGLang server by itself, not through a shell or a container tool."""
    if not words or not os.path.basename(words[0]).startswith(("python", "pypy")):
        return False
    rest = iter(words[1:])
    for word in rest:
        option = _PYTHON_OPTION.match(word)
        if option:
            value = option[2] or next(rest, "")
            if option[1] in "mc":
                return (option[1], value) == ("m", "sglang.launch_server")
        elif not word.startswith("-"):
            script = os.path.basename(word)
            return (script == "sglang" and next(rest, "") == "serve") or word.endswith("/sglang/launch_server.py")
        elif word == "-":
            return False
    return False


def find(table=None, words_of=procfs.command_line):
    """[Tree], oldest first. TABLE {pid: Process} and WORDS_OF(pid) default to this machine's."""
    table = procfs.scan() if table is None else table
    words = {pid: words_of(pid) for pid, process in table.items() if process.state not in "ZX"}
    launchers = {pid for pid in words if is_launcher(words[pid])}
    trees, taken = [], set()
    for pid in sorted(launchers, key=lambda pid: table[pid].start):
        if any(ancestor in launchers for ancestor in _ancestors(pid, table)):
            continue  # a copy that a launcher forked
        trees.append(_tree("server", table[pid], procfs.descendants(pid, table), words))
        taken.update(process.pid for process in trees[-1].processes)
    groups = {}
    for pid in sorted(words, key=lambda pid: table[pid].start):
        if pid not in taken and _role(words[pid]) and not _role(words.get(table[pid].ppid)):
            groups.setdefault(_group(table[pid], table, words), []).append(table[pid])
    for (kind, key), workers in groups.items():
        below = [process for worker in workers for process in (worker, *procfs.descendants(worker.pid, table))]
        trees.append(_tree(kind, table[key] if kind == "embedded" else workers[0], below, words))
    return sorted(trees, key=lambda tree: tree.root.start)


def _ancestors(pid, table):
    while pid in table and table[pid].ppid != pid:
        pid = table[pid].ppid
        yield pid


def _group(worker, table, words):
    """Whose worker that is: of a live Python program in its session, or of a launcher that is gone and had that session."""
    parent = table.get(worker.ppid)
    program = os.path.basename((words.get(worker.ppid) or [""])[0])
    if parent is not None and parent.pid != 1 and parent.session == worker.session and program.startswith(("python", "ipython", "jupyter")):
        return "embedded", parent.pid
    return "orphans", worker.session


def _tree(kind, root, below, words):
    unique = {process.pid: process for process in [root, *below]}
    live = [process for process in unique.values() if process.state not in "ZX"]
    members = {}
    for process in sorted(live, key=lambda process: process.start):
        title = (words.get(process.pid) or [""])[0]
        if _role([title]):  # a forked child shows its parent's title, too: the elder is the member
            members.setdefault(title, process)
    # A child that a worker forked for a moment has its name, too: only the launcher and its controller start workers.
    ended = [process for process in unique.values() if process.state in "ZX" and _role(words.get(process.ppid)) in (None, CONTROLLER)]
    dead = [(role, process.pid) for process in ended for role in _role_of_comm(process.comm)]
    return Tree(kind, root, live, members, dead, words.get(root.pid, []))


def _role(words):
    title = (words or [""])[0]
    return next((role for prefix, role in ROLES if title.startswith(prefix)), None)


def _role_of_comm(comm):
    return [role for prefix, role in ROLES if comm.startswith(prefix[:_COMM_BYTES])][:1]


def age_s(process):
    """Seconds since PROCESS was started."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / _CLOCK_TICK)


def namespace(pid, kind):
    """What tells apart the namespaces (KIND: net, mnt, pid) of processes; None when that cannot be seen."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    return None


def origin(process):
    """Where PROCESS comes from: {user, parent (its name), unit (of systemd), container}; None for what it has not or cannot be seen."""
    found = {"user": None, "parent": None, "unit": None, "container": None}
    with contextlib.suppress(OSError):
        uid = os.stat(f"/proc/{process.pid}").st_uid
        found["user"] = str(uid)
        with contextlib.suppress(KeyError):
            found["user"] = pwd.getpwuid(uid).pw_name
    parent = procfs.read(process.ppid)
    found["parent"] = parent.comm if parent else None
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/cgroup", encoding="utf-8") as file:
        found.update(of_cgroups(file.read()))
    return found


def of_cgroups(text):
    """{unit, container} by the TEXT of /proc/PID/cgroup, either version. A unit inside a container is none of this machine."""
    found = containers.place(text)
    is_service = found.name is None and (found.unit or "").endswith(".service")
    return {"unit": found.unit if is_service else None, "container": found.name}
