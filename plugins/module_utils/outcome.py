# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Outcome and cause of a trial that did not go to its end. Each function returns {outcome, cause}; nothing is touched."""

from __future__ import annotations

import signal

from . import log_cause

NOTHING_STARTED = {"by": "itself", "drained": False, "exit": None, "seconds": 0.0, "left": [], "released_after_s": 0.0}


def cause(signature, summary, advice, evidence=()):
    """The `cause` of a trial result; evidence is [{rank, line}]."""
    return {"signature": signature, "summary": summary, "advice": advice, "evidence": list(evidence)}


def refused(summary, advice):
    """The port is somebody else's."""
    return {"outcome": "refused", "cause": cause("port", summary, advice)}


def hung(stall, reader, *, was_ready, log, stall_timeout_s):
    """STALL is a waiting.Hung."""
    where = "while it was measured" if was_ready else f"in phase {reader.phase}"
    summary = f"no progress for {stall.silent_s:.0f} s {where}; {stall.problem}"
    advice = f"Read {log}. A slower machine needs a larger tune_stall_timeout_s (now {stall_timeout_s:.0f})."
    return {"outcome": "hung", "cause": cause("stalled", summary, advice, reader.last_lines())}


def died(death, reader, *, launcher_exit, was_ready, kernel_lines=(), full_disk=None):
    """DEATH is a server.Died; LAUNCHER_EXIT the launcher's code, None while it lives; KERNEL_LINES see log_cause.cause.

    FULL_DISK: the directory of the server's log, when there is no room in it.
    """
    killed_role, exit_code = death.role, death.exit_code
    by_signal = launcher_exit is not None and launcher_exit < 0 and launcher_exit != -signal.SIGKILL  # itself it only kills by SIGKILL
    if death.role == "launcher" or by_signal or (was_ready and launcher_exit is not None):
        killed_role, exit_code = None, launcher_exit  # a serving launcher outlives a lost worker for seconds: it went first
    found = log_cause.cause(reader, exit_code=exit_code, killed_role=killed_role, kernel_lines=kernel_lines)
    if full_disk and found and found["signature"] == "silent":
        summary = f"{full_disk} has no room left, not even for the server's last words"
        found = cause("disk_full", summary, "The disk is full: free some space and run again.", reader.last_lines())
    stopped = was_ready and killed_role is None and (launcher_exit == 0 or found is None)
    if stopped:
        summary = "stopped from outside while it was measured: it finished its requests and ended"
        found = cause("stopped", summary, "Find out who did that (SIGTERM or SIGINT), and measure again.", reader.last_lines())
    return {"outcome": "killed" if was_ready and (killed_role or stopped) else "crashed", "cause": found}


def no_all_reduce(found, reader):
    """FOUND is what smoke.run says, READER reads its log."""
    known = log_cause.cause(reader, exit_code=1)
    named = known and known["signature"] != "silent"
    summary = f"two ranks cannot all-reduce, tried before the load: {known['summary'] if named else found['reason']}"
    advice = known["advice"] if named else "Check peer-to-peer access between the GPUs (PCIe access control, IOMMU)."
    return {
        "outcome": "hung" if found["outcome"] == "hung" else "crashed",
        "cause": cause("smoke", summary, advice, reader.last_lines()),
    }
