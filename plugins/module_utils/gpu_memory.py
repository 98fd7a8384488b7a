# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of the GPUs: how much is in use and by whom, whether that of ended processes is back, and which GPU keeps some for nobody."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import NamedTuple

from . import gpu_devices, gpu_holders, gpu_worker_look, gpu_workers, gpus, parallel
from .release import NOISE_BYTES, NOISE_SHARE

# A GPU that nobody uses has a few MiB in use with the newer drivers, up to some 250 MiB with older ones that count their own reserve.
IDLE_FOOTPRINT_MIB = 300
SAMPLES = 3
SAMPLE_OVER_S = 10.0
_FIELDS = ("index", "memory.used", "memory.total", "utilization.gpu", "uuid")
ADVICE = "It keeps memory that no process holds: {reset}. If it comes again, see dmesg for Xid and NVRM lines."


class Memory(NamedTuple):
    """`gpus` [{index, uuid, memory_used_mib, memory_total_mib, utilization_percent}], [] without any. `problem`: why nvidia-smi does not
    answer, or not tell who uses them. `users` [{pid, uuid, name, memory_mib}] of the processes that compute, by pids of the machine."""

    gpus: list
    users: list
    problem: str | None

    def by_pid(self, uuid=None):
        """{pid: MiB} of all GPUs, or of that one; None where the driver does not say how much."""
        found = {}
        for user in self.users:
            if uuid in (None, user["uuid"]):
                one, other = found.get(user["pid"], 0), user["memory_mib"]
                found[user["pid"]] = None if one is None or other is None else one + other
        return found


def read(timeout_s=gpus.TIMEOUT_S):
    """The Memory now. Ends within TIMEOUT_S, also where a wedged driver holds nvidia-smi itself and no signal ends that."""
    if shutil.which("nvidia-smi") is None:
        return Memory([], [], None)
    patience_s = timeout_s + 1  # users() gives an empty list when its time is over, which is to be ours first
    found = parallel.together({"gpus": lambda: _query(timeout_s), "users": lambda: gpus.users(patience_s)}, timeout_s)
    rows, users = found["gpus"], found["users"]
    if not isinstance(rows, str):
        why = f"exit {rows.returncode}" if isinstance(rows, subprocess.CalledProcessError) else f"no answer within {timeout_s:g} s"
        return Memory([], [], f"nvidia-smi does not tell the memory of the GPUs ({why})")
    if not isinstance(users, list):
        return Memory(parse(rows), [], f"nvidia-smi does not tell who uses the GPUs: {users}")
    # In a container the driver shows either no processes or pids of the machine, which are others here.
    return Memory(parse(rows), [user for user in users if user["pid"] > 0 and gpu_worker_look.is_machine()], None)


def _query(timeout_s):
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True, stdin=subprocess.DEVNULL)
    return done.stdout


def parse(text):
    """`gpus` of a Memory, of nvidia-smi's lines "index, used, total, utilisation, uuid"."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 4 and fields[0].isdigit():
            used, total, percent = map(_number, fields[1:4])
            found.append(
                {
                    "index": int(fields[0]),
                    "uuid": fields[4] if len(fields) > 4 else None,
                    "memory_used_mib": used,
                    "memory_total_mib": total,
                    "utilization_percent": percent,
                }
            )
    return found


def _number(text):
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


# --- memory of processes that are gone --------------------------------------------------------------------------------


def held(before, after, pids):
    """{index of a GPU: MiB} still in use that PIDS had: what others have taken meanwhile is theirs. BEFORE, AFTER: Memory."""
    found = {}
    former = {gpu["index"]: gpu["memory_used_mib"] for gpu in before.gpus}
    for gpu in after.gpus:
        used, used_then = gpu["memory_used_mib"], former.get(gpu["index"])
        then, now = before.by_pid(gpu["uuid"]), after.by_pid(gpu["uuid"])
        still = sum(now[pid] or 0 for pid in pids if pid in now)
        freed = sum(then[pid] or 0 for pid in pids if pid in then)
        if None not in (used, used_then) and freed:
            others = sum(now[pid] or 0 for pid in now if pid not in pids) - sum(then[pid] or 0 for pid in then if pid not in pids)
            excess = used - (used_then - freed) - max(0, others)
            still = max(still, excess if excess > NOISE_SHARE * used_then + NOISE_BYTES / (1 << 20) else 0)
        if still or any(pid in now for pid in pids):
            found[gpu["index"]] = round(still)
    return found


def wait_until_back(before, pids, timeout_s):
    """(seconds until nothing that PIDS had is in use any more, None when that was not seen within TIMEOUT_S or there is no nvidia-smi;
    held then; Memory then)."""
    if not before.gpus:
        return None, {}, before
    begun = time.monotonic()
    while True:
        now = read()
        missing = held(before, now, pids)
        waited_s = time.monotonic() - begun
        if not missing and not now.problem:
            return round(waited_s, 2), {}, now
        if waited_s > timeout_s:
            return None, missing, now
        time.sleep(0.5)


# --- memory without a process -----------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """`memory` a Memory, `busy` numbers of GPUs that a process has open of which the driver does not tell what it uses."""

    memory: Memory
    busy: set


def sample(found, memory):
    """The Sample that FOUND, a Look at everything, and MEMORY, read after it, make."""
    counted = set(memory.by_pid())
    minors = set()
    for pid, nodes in found.view.nodes.items():
        process = found.view.table.get(pid)
        if pid not in counted and (process is None or gpu_workers.takes_memory(process)):
            minors.update(gpu_holders.gpu_minors(nodes))
    return Sample(memory, {_index(minor, memory.gpus) for minor in minors})


def _index(minor, rows):
    """The index that nvidia-smi gives the GPU with that device MINOR: often the same, but it can differ."""
    drivers = gpu_devices.look()
    for bus_id, text in drivers.information.items():
        gpu = gpu_devices.read_gpu(bus_id, text, drivers.nodes)
        if gpu["minor"] == minor:
            return next((row["index"] for row in rows if row["uuid"] and row["uuid"] == gpu["uuid"]), minor)
    return minor


def suspects(seen):
    """Of a Sample the GPUs (rows of Memory.gpus) with more memory in use than an idle one has, and nobody who has it."""
    return [
        gpu
        for gpu in (() if seen.memory.problem else seen.memory.gpus)
        if (gpu["memory_used_mib"] or 0) > IDLE_FOOTPRINT_MIB and gpu["index"] not in seen.busy and not seen.memory.by_pid(gpu["uuid"])
    ]


def wedged(memory, over_s=SAMPLE_OVER_S, look=gpu_worker_look.look, read_memory=read):
    """([row of Memory.gpus with samples_mib and advice], note): GPUs that keep memory for nobody in each of three samples over OVER_S; why
    that could not be judged, or None.

    MEMORY is the first sample; only when it is suspicious are LOOK and READ_MEMORY asked at all.
    """
    if not suspects(Sample(memory, set())):
        return [], memory.problem
    found = look()
    why = "a container does not see the processes of others" if found.outside else gpu_worker_look.seen(found)["why"]
    if why:
        return [], f"whether memory of a GPU is kept without a process cannot be judged: {why}"
    seen = [{gpu["index"]: gpu for gpu in suspects(sample(found, memory))}]
    while seen[-1] and len(seen) < SAMPLES:
        time.sleep(over_s / (SAMPLES - 1))
        now = {gpu["index"]: gpu for gpu in suspects(sample(look(), read_memory()))}
        seen.append({index: gpu for index, gpu in now.items() if index in seen[-1]})
    return [
        {
            **gpu,
            "samples_mib": [one[index]["memory_used_mib"] for one in seen],
            "advice": ADVICE.format(reset=gpu_workers.RESET.replace("INDEX", str(index))),
        }
        for index, gpu in sorted(seen[-1].items())
    ], None
