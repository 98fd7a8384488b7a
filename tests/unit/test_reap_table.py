# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What reap.yml shows of what gpu_worker has found and done."""

from __future__ import annotations

from ansible_collections.ringmaster.gpu.plugins.plugin_utils import reap_table


def worker(pid, group, title, role="scheduler", **more):
    return {"pid": pid, "class": group, "title": title, "role": role, "program": "python3 train.py", "memory_mib": 97887.0,
            "reason": f"reason of {pid}", "advice": None, **more}  # fmt: skip


def reaped(pid, title, ended_by="TERM"):
    return {"pid": pid, "title": title, "signals": ["TERM"], "ended_by": ended_by}


def host(name="gpu1", problem=None, **found):
    return {"host": name, "place": "container 101 on pve1", "problem": problem, "found": found or None}


def show(*hosts, **how):
    return reap_table.report(hosts, encoding="ascii", **how)


FOUND = {
    "workers": [
        worker(11, "serving", "sglang::scheduler_TP0"),
        worker(12, "orphaned", "sglang::scheduler_TP1"),
        worker(13, "foreign", "python3", role=None),
        worker(14, "unkillable", "sglang::scheduler_TP2", advice="nvidia-smi --gpu-reset"),
    ],
    "reaped": [reaped(12, "sglang::scheduler_TP1")],
    "left": [{"pid": pid, "title": "x", "why": "left", "advice": None} for pid in (11, 13)],
    "released_after_s": 1.25,
}


def line(text, pid):
    return next(line for line in text.splitlines() if f" {pid} " in line)


def test_each_process_has_a_row_that_says_what_was_done():
    text = show(host(**FOUND))
    assert line(text, 11).endswith("left alone")
    assert line(text, 12).endswith("ended (TERM)")
    assert line(text, 13).endswith("left alone")
    assert "train.py" in line(text, 13)
    assert line(text, 14).endswith("still there")
    assert "  advice: nvidia-smi --gpu-reset" in text
    assert "reason of 11" not in text  # its row says all
    assert "reason of 12" in text
    assert "  done:   1 of 4 processes ended" in text
    assert "  memory: back after 1.2 s" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_check_mode_says_would():
    text = show(host(**FOUND), only_say=True)
    assert line(text, 12).endswith("would be ended")
    assert "1 of 4 processes would be ended" in text


def test_what_would_not_go_is_still_there():
    stubborn = {**FOUND, "reaped": [reaped(12, "sglang::scheduler_TP1", ended_by=None)]}
    text = show(host(problem="pid 12 did not end", **stubborn))
    assert line(text, 12).endswith("still there")
    assert "  failed: pid 12 did not end" in text
    assert "done:" not in text


def test_nothing_and_nobody():
    text = show(host(workers=[], reaped=[]), host("gpu2", problem="cannot be reached"))
    assert "gpu1: container 101 on pve1\n  done:   nothing to end" in text
    assert "gpu2: container 101 on pve1\n  failed: cannot be reached" in text


def test_wedged_gpus_notes_and_what_could_not_be_seen():
    gpu = {"index": 3, "memory_used_mib": 624.0, "advice": "Reset it."}
    seen = {"complete": False, "why": "run it as root"}
    text = show(host(workers=[], reaped=[], wedged=[gpu], notes=["a note"], seen=seen))
    assert "  wedged: GPU 3: 624 MiB that no process has. Reset it." in text
    assert "  note:   a note" in text
    assert "  unseen: run it as root" in text
