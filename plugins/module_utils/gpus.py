# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi says of the GPUs; None everywhere on a machine without one."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time

from . import gpu_health
from .errors import RingmasterError

TIMEOUT_S = 20.0
_CSV = "--format=csv,noheader,nounits"
# nvidia-smi's field -> ours, and whether it is text
_FIELDS = {
    "index": ("index", False),
    "uuid": ("uuid", True),
    "name": ("name", True),
    "driver_version": ("driver", True),
    "memory.used": ("memory_used_mib", False),
    "memory.total": ("memory_total_mib", False),
    "compute_cap": ("compute_capability", True),
    "temperature.gpu": ("temperature_c", False),
    "power.draw": ("power_w", False),
    "clocks.sm": ("sm_mhz", False),
}


def _run(arguments, timeout_s):
    """CompletedProcess of `nvidia-smi ARGUMENTS`, or None where there is none or it does not end in time."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _say(*arguments, timeout_s=TIMEOUT_S):
    """What `nvidia-smi ARGUMENTS` prints, or None."""
    done = _run(arguments, timeout_s)
    return done.stdout if done is not None and done.returncode == 0 else None


def _query(*arguments, timeout_s=TIMEOUT_S):
    text = _say(*arguments, _CSV, timeout_s=timeout_s)
    return None if text is None else _rows(text)


def _rows(text):
    return [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]


def _number(text):
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def read():
    """[{index, uuid, name, driver, memory_used_mib, memory_total_mib, compute_capability, temperature_c, power_w, sm_mhz}] or None."""
    rows = [row for row in _query(f"--query-gpu={','.join(_FIELDS)}") or () if len(row) == len(_FIELDS)]  # else it says something else
    if not rows:
        return None
    return [{name: field if text else _number(field) for (name, text), field in zip(_FIELDS.values(), row)} for row in rows]


def link():
    """How the GPUs reach each other: 'NVLink' (every pair), 'PCIe with P2P' or 'PCIe'; None: cannot be asked, or there is but one."""
    rows = [line.split() for line in (_say("topo", "-m") or "").splitlines() if re.match(r"GPU\d+\s", line)]
    if len(rows) < 2:
        return None
    pairs = {cell for row in rows for cell in row[1 : len(rows) + 1]} - {"X"}
    if all(re.fullmatch(r"NV\d+", cell) for cell in pairs):  # bridges between pairs alone leave the others to PCIe
        return "NVLink"
    return "PCIe with P2P" if re.search(r"\bOK\b", _say("topo", "-p2p", "r") or "") else "PCIe"


def memory_used_bytes(gpus):
    """{uuid: bytes} of what `read` gave."""
    return {gpu["uuid"]: int((gpu["memory_used_mib"] or 0) * (1 << 20)) for gpu in gpus or ()}


class MemoryWatch:
    """Memory in use, asked for in the background: nvidia-smi can take seconds, in which nobody must be blind."""

    INTERVAL_S = 30.0  # it costs a tenth of a second of CPU, and the stall time is ten times this

    def __init__(self):
        self._known = {}
        self._due = 0.0
        self._thread = None

    def poll(self):
        """{uuid: bytes} as of the last answer; {} without GPUs."""
        now = time.monotonic()
        if now >= self._due and (self._thread is None or not self._thread.is_alive()):
            self._due = now + self.INTERVAL_S
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()
        return self._known

    def _ask(self):
        self._known = memory_used_bytes(read())


def users(timeout_s=TIMEOUT_S):
    """[{pid, uuid, name, memory_mib}] of processes that compute on a GPU now; [] without GPUs.

    Inside a container the driver may show pids of the host: they are for a person to read, not to signal.
    """
    rows = _query("--query-compute-apps=pid,gpu_uuid,process_name,used_memory", timeout_s=timeout_s) or []
    return [{"pid": int(row[0]), "uuid": row[1], "name": row[2], "memory_mib": _number(row[3])} for row in rows if row[0].isdigit()]


def health(timeout_s=TIMEOUT_S, xids=()):
    """[{uuid, index, ..., throttle_reasons [str], xids, problems [str]}] (all names: gpu_health.FIELDS), or None without GPUs.

    Read-only: one call of nvidia-smi; another only when this one's driver is too old for a field, which is then done without. XIDS:
    of kernel_log.xids. Raises RingmasterError when nvidia-smi does not answer within TIMEOUT_S, or only with an error.
    """
    if shutil.which("nvidia-smi") is None:
        return None
    end, unknown = time.monotonic() + timeout_s, set()
    while True:
        asked = gpu_health.query(unknown)
        done = _run([f"--query-gpu={','.join(name for _field, name in asked)}", _CSV], max(0.1, end - time.monotonic()))
        if done is None:
            raise RingmasterError(
                f"nvidia-smi does not answer within {timeout_s:g} s.",
                "Look in the kernel log for Xid and NVRM lines (dmesg); with persistence mode off it may only be slow.",
            )
        if done.returncode == 0:
            return gpu_health.with_xids(gpu_health.parse(asked, _rows(done.stdout)), xids)
        said = f"{done.stdout}\n{done.stderr}".strip()
        new = set(gpu_health.rejected(said)) - unknown
        if not new:
            last = said.splitlines()[-1] if said else "nothing"
            raise RingmasterError(f"nvidia-smi fails (exit {done.returncode}): {last}", "Look in the kernel log (dmesg).")
        unknown |= new
