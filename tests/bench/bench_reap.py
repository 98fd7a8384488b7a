#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long it takes to find who holds GPU nodes, beside `fuser -v` on the same nodes, among thousands of processes. As root.

    .venv/bin/python tests/bench/bench_reap.py [--processes 5000] [--files 20] [--large 64] [--large-files 1000] [--rounds 5]

Needs fuser (Debian's package psmisc, which this script does not install), and about 1 GiB of memory for 1,000 processes.

Wanted for 5,000 processes of 20 open files, 64 of them with 1,000: 0.5 s at most, and twice the time of fuser at most, module start apart.
`scan` is gpu_holders.scan alone, which answers what fuser answers; `look` adds commands, cgroups and classes. The first round is cold: the
kernel has not yet made its entries for those files. fuser's turn is first in every other round, so that nobody is always second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOLDERS = 8
CROWD = """
import os, resource, signal, sys
count, files, large, large_files, holders = map(int, sys.argv[1:6])
limit = max(files, large_files) + 16
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, max(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
for number in range(count):
    if os.fork() == 0:
        own = len(os.listdir("/proc/self/fd")) - 1
        if number % (count // holders) == 0:
            os.open(sys.argv[6], os.O_RDONLY)
            own += 1
        for _more in range((large_files if number < large else files) - own):
            os.open("/dev/null", os.O_RDONLY)
        signal.pause()
os.write(1, b"ready")
signal.pause()
"""
TIMED = """
import json, os, sys, time
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_holders, gpu_worker_look
begun, cpu = time.perf_counter(), sum(os.times()[:4])
if sys.argv[1] == "scan":
    found = gpu_holders.scan().nodes
else:
    found = gpu_worker_look.look().view.nodes
print(json.dumps([time.perf_counter() - begun, sum(os.times()[:4]) - cpu, sorted(found)]))
"""


def ours(what):
    """(seconds, CPU seconds, pids of holders) of one scan or look, in an interpreter of its own as a module has it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    done = subprocess.run([sys.executable, "-c", TIMED, what], env=environment, capture_output=True, text=True, check=True)
    seconds, cpu_s, pids = json.loads(done.stdout)
    return seconds, cpu_s, set(pids)


def theirs(node):
    begun, before = time.perf_counter(), os.times()
    done = subprocess.run(["fuser", "-v", node], capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begun, os.times()
    return seconds, sum(after[2:4]) - sum(before[2:4]), {int(word) for word in done.stdout.split()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("processes", 5000), ("files", 20), ("large", 64), ("large-files", 1000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("fuser") is None:
        sys.exit("bench_reap: wants root, and fuser (apt-get install psmisc)")
    with tempfile.TemporaryDirectory() as folder:
        node = os.path.join(folder, "dev", "nvidia0")
        os.mkdir(os.path.dirname(node))
        os.mknod(node, 0o20600, os.makedev(1, 3))
        numbers = [str(number) for number in (asked.processes, asked.files, asked.large, asked.large_files, HOLDERS)]
        crowd = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", CROWD, *numbers, node],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert crowd.stdout.read(5) == b"ready", "the processes could not be made"
            time.sleep(3.0)  # until the last of them has opened its files
            measure(asked.rounds, node)
        finally:
            os.killpg(crowd.pid, signal.SIGKILL)  # a group of our own making
            crowd.wait()


def measure(rounds, node):
    print(f"{'':8} {'scan':>16} {'look':>16} {'fuser -v':>16} {'scan/fuser':>11}   (in brackets: CPU)")
    rows = []
    for number in range(rounds):
        if number % 2:
            fuser, scan = theirs(node), ours("scan")
        else:
            scan, fuser = ours("scan"), theirs(node)
        look = ours("look")
        assert scan[2] == look[2] == fuser[2], f"not the same holders: {sorted(scan[2])}, {sorted(look[2])}, {sorted(fuser[2])}"
        assert len(scan[2]) == HOLDERS
        rows.append([*scan[:2], *look[:2], *fuser[:2], scan[0] / fuser[0]])
        show("cold" if number == 0 else f"round {number + 1}", rows[-1])
    show("median", [statistics.median(column) for column in zip(*rows, strict=True)])
    most_s, most_ratio = max(row[0] for row in rows), max(row[-1] for row in rows)
    print(f"wanted: scan 0.5 s at most (most {most_s:.3f} s), scan/fuser 2 at most (most {most_ratio:.2f})")


def show(name, row):
    pairs = " ".join(f"{seconds:7.3f} ({cpu_s:.2f}) s" for seconds, cpu_s in zip(row[:-1:2], row[1::2], strict=True))
    print(f"{name:8} {pairs} {row[-1]:11.2f}", flush=True)


if __name__ == "__main__":
    main()
