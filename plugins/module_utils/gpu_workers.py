# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each process that holds a GPU, or belongs to SGLang, is: pure, from tables of processes, commands, cgroups and open nodes.

serving, loading: of a live server, with or without its port open. orphaned: an SGLang worker, known by the name that SGLang gives it, that
no live launcher has started or shares a systemd unit with, and that no other live program runs; the only class that may be reaped.
unkillable: an orphan in state D, which no signal ends. defunct: its first thread has ended. foreign: everybody else.

Who started a worker is told by its parent, which is another process once the starter is gone: process 1 of its container, or one that
adopts. A worker whose parent shares its session was started by that program, whatever it is, except by one of those that adopt; so was one
that leads a session of its own below a Python program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from . import procfs, server_trees
from .containers import Place
from .server import ROLES

SERVING, LOADING, ORPHANED, DEFUNCT, UNKILLABLE, FOREIGN = "serving", "loading", "orphaned", "defunct", "unkillable", "foreign"
CLASSES = (SERVING, LOADING, ORPHANED, DEFUNCT, UNKILLABLE, FOREIGN)
LAUNCHER = "launcher"
_ROLES = (*ROLES, ("sglang::tokenizer_worker", "tokenizer worker"))
_COMM_BYTES = 15  # what the kernel keeps of a name
# Programs that become the parent of processes which they have not started, also where they share a session with them.
_ADOPTERS = (
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "s6-svscan",
    "runsvdir",
    "containerd-shim",
    "containerd-shim-runc-v2",
    "conmon",
)
_PYTHON_ADOPTERS = ("supervisord", "circusd")
# Who else is known to open GPUs, by the kernel's name: why, and whether that takes memory of them.
_OTHERS = {
    "nvidia-persiste": ("it keeps the driver loaded", False),
    "nv-hostengine": ("it measures the GPUs (DCGM)", False),
    "dcgm-exporter": ("it measures the GPUs (DCGM)", False),
    "dcgmi": ("it measures the GPUs (DCGM)", False),
    "nvidia-smi": ("it shows the GPUs", False),
    "nvtop": ("it shows the GPUs", False),
    "nvitop": ("it shows the GPUs", False),
    "gpustat": ("it shows the GPUs", False),
    "nvidia-cuda-mps": ("it shares the GPUs out (MPS)", True),
    "Xorg": ("it draws on the GPU", True),
    "Xwayland": ("it draws on the GPU", True),
}
_SUPERVISOR = re.compile(r"(?:.*/)?ringmaster-[0-9a-f]+\.pyz")
_SPAWNED = "from multiprocessing.spawn import spawn_main"
RESET = "nvidia-smi --gpu-reset -i INDEX once nothing uses them, or reboot the node"
_ADVICE = {
    UNKILLABLE: f"No signal ends it: it waits inside the kernel, as a rule in the driver. If it stays, reset its GPUs ({RESET}).",
    DEFUNCT: f"Its threads hold what it had open until they end. Look what they wait for; if they wait in the driver: {RESET}.",
}


class View(NamedTuple):
    """What one look saw. The functions cost something, and are asked about few processes only.

    table {pid: Process}; words {pid: its arguments} of those that live; nodes {pid: [/dev/nvidia*]}. place(pid): its Place.
    is_init(pid): whether it is process 1 of its container or of the machine. is_stuck(pid): whether it stays in state D and does not move,
    as one does that only reads a disk. runs_python(pid): whether it is, or has inside, a Python
    interpreter. listens(launcher): whether its server has a TCP port open, None where that is hidden. threads(pid): of
    gpu_holders.live_threads.
    """

    table: dict
    words: dict
    nodes: dict
    place: Callable
    is_init: Callable
    is_stuck: Callable
    runs_python: Callable
    listens: Callable
    threads: Callable


class Worker(NamedTuple):
    """One process and what it is. `group`: one of CLASSES. `server`: pid of the launcher it belongs to, None without one. `role`:
    launcher, scheduler, ..., None for what is none of SGLang's. `threads`: of a defunct one."""

    process: procfs.Process
    group: str
    reason: str
    role: str | None
    place: Place
    server: int | None
    nodes: list
    threads: list

    @property
    def key(self):
        """What names a process for good."""
        return self.process.pid, self.process.start

    @property
    def advice(self):
        """What a person can do where the reaper can do nothing; None where there is nothing to do."""
        return None if self.group == DEFUNCT and not self.threads else _ADVICE.get(self.group)


def judge(view, wanted=lambda place: True):
    """[Worker], oldest first, of the processes in a Place that WANTED(place) accepts: holders, members and launchers of SGLang."""
    launchers = {pid for pid, words in view.words.items() if server_trees.is_launcher(words)}
    members = {pid for pid, process in view.table.items() if role_of(process, view.words.get(pid))}
    found = []
    for pid in launchers | members | {pid for pid in view.nodes if pid in view.table}:
        place = view.place(pid)
        if wanted(place):
            found.append(_worker(pid, place, launchers, view))
    return sorted(found, key=lambda worker: (worker.process.start, worker.process.pid))


def role_of(process, words):
    """The role that PROCESS has in SGLang by its title, or by the 15 bytes of it that the kernel keeps; None for others."""
    title = (words or [""])[0]
    return next((role for prefix, role in _ROLES if title.startswith(prefix) or process.comm.startswith(prefix[:_COMM_BYTES])), None)


def tree(view, launcher):
    """{pid: Process} of the launcher and all that it or its workers have started, in its container."""
    place = view.place(launcher)
    below = [view.table[launcher], *procfs.descendants(launcher, view.table)]
    return {process.pid: process for process in below if view.place(process.pid)[:2] == place[:2]}


def title(process, words):
    """The name that SGLang has given PROCESS, else the kernel's."""
    return words[0] if words and words[0].startswith("sglang::") else process.comm


def takes_memory(process):
    """Whether PROCESS, which has a GPU open, may have memory of it."""
    return _OTHERS.get(process.comm, ("", True))[1]


def program(process, words):
    """What PROCESS runs in a few words, without arguments, which may hold secrets."""
    if not words or not words[0]:
        return process.comm
    name = os.path.basename(words[0]) or process.comm
    if not name.startswith(("python", "pypy")):
        return name.split(" ")[0][:60]
    if words[1:2] == ["-m"]:
        return " ".join([name, *words[1:3]])[:60]
    return " ".join([name, *(os.path.basename(word) for word in words[1:2] if not word.startswith("-"))])[:60]


# --- one process ------------------------------------------------------------------------------------------------------


def _worker(pid, place, launchers, view):
    process, words = view.table[pid], view.words.get(pid)
    role = LAUNCHER if pid in launchers else role_of(process, words)
    threads = []
    if process.state in "ZX":
        threads = view.threads(pid)
        group, reason, server = DEFUNCT, _ended(process, threads, view), None
    else:
        group, reason, server = _group(process, place, launchers, view)
    return Worker(process, group, reason, role, place, server, view.nodes.get(pid, []), threads)


def _group(process, place, launchers, view):
    """(class, reason, pid of the launcher or None) of one that lives."""
    chain, lost = _chain(process, view)
    own = [one.pid for one in chain if one.pid in launchers]
    if own:
        return _of_server(own[-1], "", view)
    supervisor = next((one for one in chain if _is_supervisor(view.words.get(one.pid))), None)
    if supervisor is not None:
        return LOADING, f"Ringmaster's supervisor, pid {supervisor.pid}, runs it", None
    workers = [one for one in chain if role_of(one, view.words.get(one.pid))]
    if not workers:
        return FOREIGN, _stranger(process, view.words.get(process.pid)), None
    worker = workers[-1]
    if chain[-1] is worker:  # an orphan has a parent, even if only process 1
        return FOREIGN, f"its parent, pid {worker.ppid}, cannot be seen" if lost else "its parent is outside of this container", None
    parent = view.table[worker.ppid]
    if not _adopted(worker, parent, view):
        return FOREIGN, f"it works for another program that lives: {_called(parent, view)}", None
    fellow = next((pid for pid in sorted(launchers) if place.cell is not None and view.place(pid).cell == place.cell), None)
    if fellow is not None:
        return _of_server(fellow, f"no launcher is its parent, but there is one in its unit {place.unit}; ", view)
    whose = "" if worker is process else f"started by the orphan pid {worker.pid}; "
    gone = f"its launcher is gone, its parent is {_called(parent, view)}"
    if process.state == "D" and view.is_stuck(process.pid):
        return UNKILLABLE, f"{whose}{gone}; it waits in the kernel (state D) and does not move", None
    return ORPHANED, f"{whose}{gone}", None


def _chain(process, view):
    """([the process, its parent, ...], whether the last one's parent could not be seen)."""
    chain, seen = [process], {process.pid}
    while chain[-1].ppid and chain[-1].ppid not in seen:
        parent = view.table.get(chain[-1].ppid)
        if parent is None:
            return chain, True
        chain.append(parent)
        seen.add(parent.pid)
    return chain, False


def _adopted(worker, parent, view):
    """Whether PARENT has become the parent of WORKER only because the one that had started it is gone."""
    if parent.state in "ZX":  # it has threads that live, or WORKER would have another parent
        return False
    words = view.words.get(parent.pid) or []
    if view.runs_python(parent.pid):
        names = {parent.comm, *map(os.path.basename, words[1:2])}
        return bool(names.intersection(_PYTHON_ADOPTERS)) or worker.session not in (parent.session, worker.pid)
    names = {parent.comm, *map(os.path.basename, words[:1])}
    return bool(names.intersection(_ADOPTERS)) or view.is_init(parent.pid) or parent.session != worker.session


def _of_server(launcher, note, view):
    listens = view.listens(launcher)
    if listens is None:
        return LOADING, f"{note}its launcher, pid {launcher}, runs; whether it has a port open cannot be seen", launcher
    state = "has a port open" if listens else "has no port open yet"
    return (SERVING if listens else LOADING), f"{note}its launcher, pid {launcher}, {state}", launcher


def _is_supervisor(words):
    return any(_SUPERVISOR.fullmatch(word) for word in (words or [])[1:5])


def _stranger(process, words):
    state = ", and waits in the kernel (state D)" if process.state == "D" else ""
    if process.comm in _OTHERS:
        return f"{_OTHERS[process.comm][0]}{state}"
    if _SPAWNED in " ".join(words or []):
        return f"a Python worker without a name of SGLang's: it may be nobody's or anybody's{state}"
    return f"no worker of SGLang: {program(process, words)}{state}"


def _ended(process, threads, view):
    if threads:
        doing = ", ".join(f"{one['name']} in state {one['state']} ({one['waits_in'] or 'running'})" for one in threads[:4])
        more = f" and {len(threads) - 4} more" if len(threads) > 4 else ""
        return f"its first thread has ended, {len(threads)} of its threads live: {doing}{more}"
    parent = view.table.get(process.ppid)
    return f"it has ended and holds nothing; {_called(parent, view) if parent else 'its parent'} has not collected it"


def _called(process, view):
    return f"pid {process.pid} ({program(process, view.words.get(process.pid))})"
