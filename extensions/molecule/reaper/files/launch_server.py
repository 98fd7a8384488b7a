# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launcher with two schedulers that hold /dev/nvidia0, for the reaper to look at: `python3 -m sglang.launch_server`."""

import os
import socket
import subprocess
import sys
import time

WORKER = "import sys, time; from sglang.procs import set_title; node = open('/dev/nvidia0'); set_title(sys.argv[1]); time.sleep(3600)"

if __name__ == "__main__":
    for rank in range(2):
        subprocess.Popen([sys.executable, "-c", WORKER, f"sglang::scheduler_TP{rank}"])
    listening = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
    time.sleep(3600)
