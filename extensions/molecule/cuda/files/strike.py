#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`strike.py LAB COMMAND...`: runs COMMAND; when dpkg is amid its work in both containers, kills it in one and cuts the other's power."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, sys.argv[1])

import container

KILLED, CUT = "rm-test-cuda-debian12", "rm-test-cuda-debian13"


def inside(name: str, command: str) -> int:
    return subprocess.run(["lxc-attach", "-P", container.CONTAINERS, "-n", name, "--", "sh", "-c", command], check=False).returncode


sockets = tempfile.mkdtemp(prefix="cp-")  # a connection of its own, which notices that the other side is gone
noticing = {"ANSIBLE_SSH_CONTROL_PATH_DIR": sockets, "ANSIBLE_SSH_EXTRA_ARGS": "-o ServerAliveInterval=3 -o ServerAliveCountMax=3"}
run = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **noticing})
deadline = time.monotonic() + 300
while not all(inside(name, "test -e /run/reached") == 0 for name in (KILLED, CUT)):
    if run.poll() is not None or time.monotonic() > deadline:
        run.kill()
        sys.exit(f"dpkg was not seen at work:\n{run.communicate()[0]}")
    time.sleep(0.2)
container.kill(CUT)
inside(KILLED, "rm -f /run/hang /run/reached; kill -9 $(pidof apt-get dpkg)")
container.start(CUT)
container.wait(CUT, container.records()[CUT], 60)
said = run.communicate(timeout=300)[0]
print(f"{said}\nended with {run.returncode}")
