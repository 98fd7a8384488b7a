# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at the processes that hold GPUs or belong to SGLang, on this machine and in its containers: what `gpu_workers` judges.
Changes nothing."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from typing import NamedTuple

from . import containers, gpu_holders, gpu_workers, procfs, server_trees
from .errors import RingmasterError

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # the kernel's number for the one that the machine was started in
_STUCK_LOOKS, _STUCK_PAUSE_S = 3, 0.3
_LISTEN = "0A"


class Look(NamedTuple):
    """`workers` [gpu_workers.Worker] of the container, oldest first; `view` what they were judged by, of the whole machine; `hidden` [pid]
    of processes of that container whose open files cannot be seen; `outside` whether the machine itself is a container."""

    workers: list
    view: gpu_workers.View
    hidden: list
    outside: bool


def look(container=None, known=()):
    """A Look at CONTAINER: its name, "" for what is in none, None for everything. KNOWN: pids of which the driver says that they use a GPU,
    which counts also where their nodes have other names."""
    outside = containers.root(containers.read(1))
    pids = gpu_holders.user_processes()
    scan = gpu_holders.Scan(pids)  # goes on beside the next lines
    table, words = {}, {}
    _add(pids, table, words)
    holders = scan.result()
    _add(set(holders.nodes) - set(table), table, words)
    _find_parents(table, words)
    nodes = {**dict.fromkeys(known, []), **holders.nodes}
    for pid, process in table.items():
        if not nodes.get(pid) and (pid in nodes or gpu_workers.role_of(process, words.get(pid))):
            mapped = gpu_holders.mapped(pid)
            if mapped:
                nodes[pid] = mapped
    view = _view(table, words, nodes, outside)

    def wanted(place):
        return container is None or (place.kind != containers.UNCLEAR and (place.name or "") == container)

    workers = gpu_workers.judge(view, wanted)
    # Some sandboxes hide the machine's first process from everybody; it holds no GPU.
    hidden = [pid for pid in holders.hidden if pid != 1 and pid in table and wanted(view.place(pid))]
    return Look(workers, view, hidden, not is_machine())


def is_machine():
    """Whether this is the machine itself, where every process and its true pid can be seen, and no container."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    return False


def seen(found):
    """{complete, why}: whether all processes that matter could be seen, and if not, why."""
    if not os.path.exists("/proc/1"):
        return {"complete": False, "why": "/proc hides the processes of other users (hidepid): run as root (become: true)"}
    if found.hidden:
        remedy = "run as root (become: true)" if os.geteuid() else "the kernel refuses it here, as it does inside a sandbox"
        return {"complete": False, "why": f"the open files of some processes ({len(found.hidden)}) cannot be seen: {remedy}"}
    return {"complete": True, "why": ""}


def check_container(container, found, lxc_paths=containers.LXC_PATHS):
    """Raises RingmasterError when this machine has no CONTAINER, running or not. FOUND: the Look at it."""
    if not container or any(worker.place.name == container for worker in found.workers):
        return
    configured = containers.configured(lxc_paths)
    if configured.get(container, container) is None:
        return
    running = {found.view.place(pid).name for pid in found.view.table} - {None}
    if container in running:
        return
    if container in configured:
        raise RingmasterError(
            f"Container {container} is on Proxmox node {configured[container]}, not on this one.", "Set proxmox_node to that node."
        )
    here = sorted(running | {name for name, node in configured.items() if node is None})
    raise RingmasterError(
        f"This machine has no container {container!r}. It has: {', '.join(here) or 'none'}.",
        "Give the VMID on Proxmox, else the name of the LXC container (lxc_paths: where LXC keeps those that do not run).",
    )


def told(worker, view, memory):
    """What a result says of WORKER. MEMORY {pid: MiB of all its GPUs} of those that the driver knows."""
    process = worker.process
    pid = process.pid
    parent = view.table.get(process.ppid)
    return {
        "pid": pid,
        "pids_inside": _inner_pids(pid),
        "class": worker.group,
        "reason": worker.reason,
        "advice": worker.advice,
        "role": worker.role,
        "title": gpu_workers.title(process, view.words.get(pid)),
        "program": gpu_workers.program(process, view.words.get(pid)),
        "state": process.state,
        "server": worker.server,
        "parent": {"pid": parent.pid, "name": parent.comm} if parent else None,
        "container": worker.place.name,
        "container_kind": worker.place.kind,
        "unit": worker.place.unit,
        "user": server_trees.origin(process)["user"],
        "memory_mib": memory.get(pid),
        "nodes": worker.nodes,
        "threads": worker.threads,
        "started": _started(process),
    }


def _inner_pids(pid):
    """Pids of PID in the containers it is in, the outermost first; [] for one in none."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[2:]]
    return []


def _started(process):
    moment = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=server_trees.age_s(process))
    return moment.isoformat(timespec="seconds")


# --- reading ----------------------------------------------------------------------------------------------------------


def _add(pids, table, words):
    for pid in pids:
        process = procfs.read(pid)
        if process is not None:
            table[pid] = process
            if process.state not in "ZX":
                words[pid] = procfs.command_line(pid)


def _find_parents(table, words):
    """/proc is not read in one moment: look again at parents that came meanwhile, and at children of those that are gone."""
    for _again in range(3):
        children = [process for process in table.values() if process.ppid and process.ppid not in table]
        if not children:
            return
        _add({process.ppid for process in children}, table, words)
        for process in children:
            if process.ppid not in table:
                table.pop(process.pid)
                _add([process.pid], table, words)


def _view(table, words, nodes, outside):
    places, stuck = {}, []
    has_cgroups = bool(containers.read("self"))

    def place(pid):
        if pid not in places:
            text = containers.read(pid)
            # What cannot be read, or is gone, is in no known place, least of all on the machine itself.
            places[pid] = containers.place(text, outside) if text or not has_cgroups else containers.NOWHERE
        return places[pid]

    def is_stuck(pid):
        if not stuck:  # all that are in state D at once, at the first question
            stuck.append(_watch([one for one in table.values() if one.state == "D"]))
        return pid in stuck[0]

    return gpu_workers.View(
        table=table,
        words=words,
        nodes=nodes,
        place=place,
        is_init=lambda pid: pid == 1 or _inner_pids(pid)[-1:] == [1],
        runs_python=lambda pid: _runs_python(pid, words),
        is_stuck=is_stuck,
        listens=lambda launcher: _listens(launcher, table, words),
        threads=gpu_holders.live_threads,
    )


def _watch(processes):
    """Pids of those of PROCESSES that stay in state D and do not move: one that only reads a disk does."""
    first = {process.pid: (process, procfs.bytes_read(process.pid)) for process in processes}
    for _again in range(_STUCK_LOOKS):
        time.sleep(_STUCK_PAUSE_S if first else 0.0)
        for pid, (former, had_read) in list(first.items()):
            now = procfs.read(pid)
            moved = now is None or now[2:] != former[2:] or procfs.bytes_read(pid) != had_read
            if moved:
                del first[pid]
    return set(first)


def _runs_python(pid, words):
    names = [(words.get(pid) or [""])[0]]
    with contextlib.suppress(OSError):
        names.append(os.readlink(f"/proc/{pid}/exe"))
    if any(os.path.basename(name).startswith(("python", "pypy", "ipython", "jupyter")) for name in names):
        return True
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return any("/libpython" in line for line in file)
    return False


def _listens(launcher, table, words):
    """Whether a process of the server that is no worker listens on a TCP port: workers do so among themselves long before it serves."""
    if not os.access(f"/proc/{launcher}/fd", os.R_OK):
        return None
    serving, queue = [], [launcher]
    children = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    while queue:
        serving.append(queue.pop())
        queue += [child.pid for child in children.get(serving[-1], ()) if not gpu_workers.role_of(child, words.get(child.pid))]
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(launcher)}
    return any(link in wanted for pid in serving for link in _links(pid)) if wanted else False


def _listening_inodes(pid):
    """Of the TCP sockets that listen on any port in the network namespace of PID."""
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
            found += [fields[9] for fields in map(str.split, list(file)[1:]) if fields[3] == _LISTEN]
    return found


def _links(pid):
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")
