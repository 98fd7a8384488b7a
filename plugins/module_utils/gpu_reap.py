# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends the orphaned GPU workers of one container, and nothing else: TERM, then KILL, then the memory of the GPUs must be back.

A process is signalled only while it is the very same one (pid and start time, through a pidfd) and a fresh look has found it to be still
what made it a target. With force, the container's live servers, too: TERM goes to the launcher, which ends its workers, and KILL to what
is left of them afterwards.
"""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

from . import containers, gpu_holders, gpu_memory, gpu_worker_look, gpu_workers, procfs
from .errors import RingmasterError

KILL_TIMEOUT_S = 15.0  # the driver can take seconds to clear the memory of a process that ends
_ROUNDS = 4  # a server that is ended by force can leave orphans of its own
_TERM_ROUNDS = 2  # what begets others when it gets TERM is not asked for ever
_CONFIRM_S = 0.3  # a server that is just ending has workers without a launcher, too, for a moment
_POLL_S = 0.05
_NOT_PERMITTED = "this user may not signal it"


class Target(NamedTuple):
    """A process to be ended. `server`: key of the launcher that it belongs to, None for an orphan; `worker`: what it was found as, None for
    a helper of a server that holds no GPU."""

    process: procfs.Process
    server: tuple | None
    worker: gpu_workers.Worker | None

    @property
    def key(self):
        return self.process.pid, self.process.start

    @property
    def gets_term(self):
        """Workers of a server get none: their launcher lets requests end, and then ends them."""
        return self.server in (None, self.key)


def targets(found, servers=()):
    """{key: Target} of a Look, launchers first: its orphans, and all that belongs to the live SERVERS (keys of launchers)."""
    chosen = {}
    known = {worker.key: worker for worker in found.workers}
    pids = {pid: (pid, start) for pid, start in servers if (pid, start) in known}
    for pid, server in pids.items():
        for process in gpu_workers.tree(found.view, pid).values():
            key = (process.pid, process.start)
            if process.state not in "ZX":
                chosen[key] = Target(process, server, known.get(key))
    for worker in found.workers:
        if worker.group == gpu_workers.ORPHANED:
            chosen[worker.key] = Target(worker.process, None, worker)
        elif worker.server in pids:
            chosen.setdefault(worker.key, Target(worker.process, pids[worker.server], worker))
    return chosen


def live_servers(found):
    """Keys of the launchers of a Look that run."""
    return {worker.key for worker in found.workers if worker.role == gpu_workers.LAUNCHER and worker.server == worker.process.pid}


def reap(
    container,
    *,
    force=False,
    term_timeout_s=5.0,
    release_timeout_s=20.0,
    wedged_over_s=gpu_memory.SAMPLE_OVER_S,
    only_say=False,
    lxc_paths=containers.LXC_PATHS,
):
    """Reap in CONTAINER ("" for the processes in none). With ONLY_SAY nothing is signalled, and the result says what would be.

    Returns {changed, msg, workers [gpu_worker_look.told, of before], reaped [{pid, title, class, container, signals [TERM, KILL], ended_by,
    ended_after_s}], left [{pid, title, class, why, advice}], gpus [{index, uuid, memory_before_mib, memory_after_mib, held_mib}],
    released_after_s, wedged, notes, seen, failure (RingmasterError or None), diff {before, after}}. Raises RingmasterError when there is no
    such container.
    """
    before = after = gpu_memory.read()
    first = last = gpu_worker_look.look(container, before.by_pid())
    gpu_worker_look.check_container(container, first, lxc_paths)
    told = [gpu_worker_look.told(worker, first.view, before.by_pid()) for worker in first.workers]
    servers = live_servers(first) if force else set()
    entries, released_s, held = {}, None, {}
    if only_say:
        entries = {key: _entry(target, first) for key, target in targets(first, servers).items()}
    elif targets(first, servers):
        last = _end(container, first, servers, term_timeout_s, entries)
        released_s, held, after = gpu_memory.wait_until_back(before, {pid for pid, _start in entries}, release_timeout_s)
    left = _left(last, {} if only_say else entries, entries)
    wedged, note = gpu_memory.wedged(after, wedged_over_s)
    result = {
        "changed": bool(entries) if only_say else any(entry["signals"] for entry in entries.values()),
        "workers": told,
        "reaped": list(entries.values()),
        "left": left,
        "gpus": _gpus(before, after, held),
        "released_after_s": released_s,
        "wedged": wedged,
        "notes": [*([note] if note else []), *_restarts(entries, first)],
        "seen": gpu_worker_look.seen(last),
        "diff": _difference(first, told, {key for key, entry in entries.items() if only_say or entry["ended_by"]}),
    }
    where = f"container {container}" if container else "this machine"
    return {**result, "msg": _message(where, result, only_say), "failure": _failure(where, result)}


# --- ending -----------------------------------------------------------------------------------------------------------


def _end(container, first, servers, term_timeout_s, entries):
    """End what `targets` names, and what that leaves orphaned; ENTRIES {key: entry} says how each fared. Returns the last Look."""
    last = first
    for number in range(_ROUNDS):
        earlier = targets(last, servers)
        time.sleep(_CONFIRM_S)
        last = gpu_worker_look.look(container)
        new = {key: target for key, target in targets(last, servers).items() if key not in entries}
        chosen = {key: target for key, target in new.items() if key in earlier}
        if not new:
            break
        entries.update((key, _entry(target, last)) for key, target in chosen.items())
        if number < _TERM_ROUNDS:
            _signal([target for target in chosen.values() if target.gets_term], signal.SIGTERM, entries)
            _await(chosen, term_timeout_s, "TERM", entries)
        again = gpu_worker_look.look(container)
        stubborn = {key: target for key, target in chosen.items() if _is_still(target, again, servers, entries)}
        _signal(stubborn.values(), signal.SIGKILL, entries)
        _await(stubborn, KILL_TIMEOUT_S, "KILL", entries)
        if chosen:
            last, servers = gpu_worker_look.look(container), ()  # only what was live in the beginning is ended by force
    return last


def _is_still(target, found, servers, entries):
    """Whether TARGET, which TERM has not ended, is by a fresh Look still what made it one."""
    if entries[target.key]["ended_by"] or target.process.state in "ZX":
        return False
    now = next((worker for worker in found.workers if worker.key == target.key), None)
    if target.server is None:
        # What an orphan had started stays its own when the orphan has gone first, and nothing tells it from a stranger any more.
        classes = (gpu_workers.ORPHANED,) if target.worker.role else (gpu_workers.ORPHANED, gpu_workers.FOREIGN)
        return now is not None and now.group in classes and now.process.state != "D"
    # Of a server that was to be ended anything is, whether its launcher still runs or not, unless it is another server's now.
    return now is None or now.server is None or any(now.server == pid for pid, _start in servers)


def _signal(chosen, number, entries):
    for target in chosen:
        try:
            if procfs.send_signal(target.process, number):
                entries[target.key]["signals"].append(signal.Signals(number).name[3:])
        except PermissionError:
            entries[target.key]["why"] = _NOT_PERMITTED


def _await(chosen, timeout_s, by, entries):
    """Until all of CHOSEN that may be signalled are gone, at most TIMEOUT_S; those that went were ended BY that signal."""
    begun = time.monotonic()
    waiting = {key: target for key, target in chosen.items() if not entries[key]["ended_by"] and not entries[key]["why"]}
    while waiting:
        for key, target in list(waiting.items()):
            if _is_gone(target.process):
                by_whom = by if entries[key]["signals"] or target.server else "itself"
                entries[key].update(ended_by=by_whom, ended_after_s=round(time.monotonic() - begun, 2))
                del waiting[key]
        if time.monotonic() - begun > timeout_s:
            return
        time.sleep(_POLL_S)


def _is_gone(process):
    now = procfs.read(process.pid)
    return now is None or now.start != process.start or (now.state in "ZX" and not gpu_holders.live_threads(process.pid))


def _entry(target, found):
    words = found.view.words.get(target.process.pid)
    return {
        "pid": target.process.pid,
        "title": gpu_workers.title(target.process, words),
        "class": target.worker.group if target.worker else "helper",
        "container": found.view.place(target.process.pid).name,
        "signals": [],
        "ended_by": None,
        "ended_after_s": None,
        "why": None,
    }


# --- what is told -----------------------------------------------------------------------------------------------------


def _left(found, entries, gone):
    """[{pid, title, class, why, advice}] of what is there after all, by the last Look; GONE: keys of those that went or would."""
    rows = []
    for worker in found.workers:
        entry = entries.get(worker.key)
        if worker.key not in gone or (entry and not entry["ended_by"]):
            rows.append(_row(worker.process, found, worker, entry))
    known = {worker.key for worker in found.workers}
    for key, entry in entries.items():
        process = procfs.read(entry["pid"])
        if key not in known and not entry["ended_by"] and process is not None and process.start == key[1]:
            rows.append(_row(process, found, None, entry))
    return rows


def _row(process, found, worker, entry):
    title = gpu_workers.title(process, found.view.words.get(process.pid))
    row = {"pid": process.pid, "title": title, "class": worker.group if worker else entry["class"], "why": None, "advice": None}
    if entry and entry["why"]:
        return {**row, "why": entry["why"], "advice": "Run as root (become: true)."}
    if worker:
        return {**row, "why": worker.reason, "advice": worker.advice}
    return {**row, "why": f"it is in state {process.state} after {' and '.join(entry['signals']) or 'no signal'}"}


def _gpus(before, after, held):
    now = {gpu["index"]: gpu["memory_used_mib"] for gpu in after.gpus}
    return [
        {
            "index": gpu["index"],
            "uuid": gpu["uuid"],
            "memory_before_mib": gpu["memory_used_mib"],
            "memory_after_mib": now.get(gpu["index"]),
            "held_mib": held.get(gpu["index"], 0),
        }
        for gpu in before.gpus
    ]


def _restarts(entries, found):
    """Units that may start again what was ended in them."""
    units = {worker.place.unit for worker in found.workers if worker.key in entries and worker.server and worker.place.cell}
    return [f"{unit} may start its server again: stop the unit to keep it down" for unit in sorted(units)]


def _difference(found, told, ended):
    lines = [
        (worker.key, f"{row['pid']} {row['title']} {row['class']} {' '.join(row['nodes'])}".rstrip() + "\n")
        for worker, row in zip(found.workers, told)
    ]
    return {"before": "".join(line for _key, line in lines), "after": "".join(line for key, line in lines if key not in ended)}


def _message(where, result, only_say):
    reaped = [entry for entry in result["reaped"] if only_say or entry["ended_by"]]
    wedged = "".join(f"; GPU {gpu['index']} keeps {gpu['memory_used_mib']:g} MiB for nobody (wedged)" for gpu in result["wedged"])
    if not reaped:
        return f"{where}: no GPU worker to reap{wedged}"
    names = ", ".join(f"pid {entry['pid']} {entry['title']}" + ("" if only_say else f" ({entry['ended_by']})") for entry in reaped)
    back = "" if result["released_after_s"] is None else f"; their memory was back after {result['released_after_s']:g} s"
    return f"{where}: {'would end' if only_say else 'ended'} {_count(reaped, 'process', 'es')}: {names}{back}{wedged}"


def _count(rows, noun, plural="s"):
    return f"{len(rows)} {noun}{'' if len(rows) == 1 else plural}"


def _failure(where, result):
    """The RingmasterError of what should be gone and is not, or None."""
    tried = {entry["pid"] for entry in result["reaped"] if not entry["ended_by"] and (entry["signals"] or entry["why"])}
    bad = [row for row in result["left"] if row["pid"] in tried or row["class"] in (gpu_workers.UNKILLABLE, gpu_workers.ORPHANED)]
    if bad:
        names = "; ".join(f"pid {row['pid']} {row['title']}, {row['class']}: {row['why']}" for row in bad)
        remedies = list(dict.fromkeys(row["advice"] for row in bad if row["advice"]))
        return RingmasterError(
            f"{where}: {_count(bad, 'GPU worker')} could not be ended: {names}.", " ".join(remedies) or "Look at it again."
        )
    held = ", ".join(f"GPU {gpu['index']}: {gpu['held_mib']} MiB" for gpu in result["gpus"] if gpu["held_mib"])
    if held:
        what = f"{where}: the processes have ended, but memory that they had is still in use ({held})."
        return RingmasterError(what, f"See wedged, and dmesg for Xid and NVRM lines. To reset a GPU: {gpu_workers.RESET}.")
    return None
