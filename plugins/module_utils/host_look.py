# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host in one look: its servers, its GPUs and who holds their memory, what Ringmaster does there, and one verdict."""

from __future__ import annotations

import os
import time

from . import diagnosis, gpus, kernel_log, parallel, server_absent, server_look, units


def look(state, *, unit=None, stall_timeout_s=300.0, timeout_s=2.5, probe_timeout_s=None):
    """{verdict, certainty, why, servers, gpus, gpu_problem, gpu_memory, ringmaster, last_trial, notes, seconds}. Changes nothing.

    servers: of server_look.look, the one that speaks for the host first. gpus: of gpus.health, None without GPUs or where nvidia-smi does
    not answer (gpu_problem says so). gpu_memory: [{pid, uuid, index, memory_mib, name, server}], `server` the pid of the launcher it
    belongs to. ringmaster: of server_absent.running. Ends within TIMEOUT_S and a second, whatever hangs, and PROBE_TIMEOUT_S if given.
    """
    begun = time.monotonic()
    jobs = {
        "servers": lambda: server_look.look(
            state, unit=unit, stall_timeout_s=stall_timeout_s, timeout_s=timeout_s, probe_timeout_s=probe_timeout_s
        ),
        "gpus": lambda: gpus.health(timeout_s, kernel_log.xids()),
        "users": lambda: gpus.users(timeout_s),
        "ringmaster": lambda: server_absent.running(state),
        "trial": lambda: server_absent.last_trial(state),
    }
    found = parallel.together(jobs, timeout_s + (probe_timeout_s or 0.0) + 0.75)
    if isinstance(found["servers"], Exception):
        raise found["servers"]
    servers = found["servers"]
    first = servers.pop(diagnosis.host_verdict(servers))
    health = found["gpus"]
    return {
        **{name: first[name] for name in ("verdict", "certainty", "why")},
        "servers": [first, *servers],
        "gpus": health if isinstance(health, list) else None,
        "gpu_problem": str(health) if isinstance(health, Exception) else None,
        "gpu_memory": memory(found["users"], health, servers=[first, *servers]),
        "ringmaster": found["ringmaster"] if isinstance(found["ringmaster"], dict) else {"problem": str(found["ringmaster"])},
        "last_trial": found["trial"] if isinstance(found["trial"], dict) else None,
        "notes": _notes(unit, health),
        "seconds": round(time.monotonic() - begun, 2),
    }


def memory(users, health, *, servers):
    """USERS (of gpus.users) with the GPU's index and the server that each belongs to. In a container their pids may be the host's."""
    index = {gpu["uuid"]: gpu["index"] for gpu in health if gpu["uuid"]} if isinstance(health, list) else {}
    owner = {pid: server["pid"] for server in servers for pid in server["pids"]}
    rows = users if isinstance(users, list) else []
    return [{**row, "index": index.get(row["uuid"]), "server": owner.get(row["pid"])} for row in rows]


def _notes(unit, health):
    notes = []
    if os.geteuid() != 0:
        notes.append("not root: servers of other users, their logs and environment, and the unit cannot be seen; run with become: true")
    elif unit and not units.available():
        notes.append(f"sglang_service is {unit}, but systemd does not run this machine")
    if health and not kernel_log.readable():
        notes.append("the kernel log cannot be read here, as in a container: GPU errors (Xid) are not known")
    return notes
