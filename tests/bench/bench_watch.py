#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What watching a starting server costs, and how soon ready and dead are noticed: on the lab's stand-in, as a whole plan.

    .venv/bin/python tests/bench/bench_watch.py [--rounds 5] [--load-s 20]

ready: from the first completion that a prober of this script got (it asks every 20 ms) to the trial's `ready`; wanted: 2.5 s at most.
dead: from the KILL of a member to the trial's `died`; wanted: 1 s at most. cost: CPU time of the supervisor between two moments of a load,
and its largest resident memory; wanted: 1 % of a core and 30 MB.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit")]

from ansible_collections.ringmaster.gpu.plugins.module_utils import http_client, loadgen, procfs  # noqa: E402
from trial_lab import Lab  # noqa: E402

MEMBERS = ("launcher", "sglang::scheduler_TP1", "sglang::detokenizer")


def memory_mb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1000


def cost(lab, load_s):
    run = lab.begin(lab.plan(smoke=False, outputs=False))
    run.until("progress", phase="weights")
    begun, before = time.monotonic(), procfs.read(run.begun["pid"]).cpu_s
    time.sleep(load_s * 0.6)
    after = procfs.read(run.begun["pid"])
    assert not [event for event in run.events if event["kind"] == "ready"]
    print(f"  waiting: {100 * (after.cpu_s - before) / (time.monotonic() - begun):.2f} % of a core, {memory_mb(after.pid):.1f} MB at most")
    run.decide(command="abort", who="bench")


def ready_after_s(lab):
    run = lab.begin(lab.plan(smoke=False, outputs=False))
    first = []

    def ask():
        while not first:
            try:
                loadgen.complete(f"http://127.0.0.1:{lab.port}", timeout_s=2.0)
                first.append(time.time())
            except (OSError, ValueError, http_client.HttpError):
                time.sleep(0.02)

    threading.Thread(target=ask, daemon=True).start()
    moment = run.until("ready")["t"]
    run.release()
    return moment - first[0]


def noticed_after_s(lab, member, at):
    run = lab.begin(lab.plan(smoke=False, outputs=False, workloads=[{"name": "long", "concurrency": 1, "input_len": 16, "output_len": 4000,
                                                                     "requests": 1, "warmup_requests": 0}]))  # fmt: skip
    run.until(at)
    time.sleep(0.5 if at == "ready" else 0.0)
    found = run.servers()
    while member not in found:
        time.sleep(0.02)
        found = run.servers()
    moment = time.time()
    procfs.send_signal(found[member], signal.SIGKILL)
    died = run.until("died")["t"]
    run.release()
    return died - moment


def tell(name, values):
    print(f"  {name:42}  median {statistics.median(values):5.2f} s   most {max(values):5.2f} s", flush=True)


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--load-s", type=float, default=20.0)
    given = asked.parse_args()
    lab = Lab()
    try:
        model = json.loads((lab.model / "lab.json").read_text())
        (lab.model / "lab.json").write_text(json.dumps({**model, "load_s": given.load_s}))
        cost(lab, given.load_s)
        lab.settle()
        (lab.model / "lab.json").write_text(json.dumps(model))
        tell("ready", [ready_after_s(lab) for _round in range(given.rounds)])
        for at in ("progress", "ready"):
            for member in MEMBERS:
                tell(f"dead: {member}, at {at}", [noticed_after_s(lab, member, at) for _round in range(given.rounds)])
    finally:
        lab.settle()
        lab.remove()


if __name__ == "__main__":
    main()
