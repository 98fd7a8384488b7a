# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long diagnose.yml looks at a host: with nothing there, with servers, and with all that can hang hanging.

    .venv/bin/python tests/bench/bench_diagnose.py        (about a minute; goal: under 5 s a host)

Servers are the lab's stand-ins. `look` is sglang_server_info, `nccl` nccl_info, `both` their sum: what a host is kept busy; `playbook`
the wall time of the whole ansible-playbook on this machine, with the start of Ansible itself.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit")]

import trial_lab  # noqa: E402 - found by the line above
from ansible_collections.ringmaster.gpu.plugins.module_utils import host_look, procfs, sockets  # noqa: E402
from ansible_collections.ringmaster.gpu.plugins.modules import nccl_info  # noqa: E402

MANY = 4
PLAY = ROOT / "diagnose.yml"
INVENTORY = f"""
inference:
  hosts:
    here:
      ansible_connection: local
      ansible_python_interpreter: {sys.executable}
      sglang_service: ""
"""
NOTHING = "- hosts: all\n  gather_facts: false\n"


def playbook(directory: str, text: str | None = None) -> float:
    """Wall seconds of diagnose.yml, or of the playbook TEXT."""
    inventory = Path(directory) / "hosts.yml"
    inventory.write_text(f"{INVENTORY}      ringmaster_state_dir: {directory}/state\n")
    play = PLAY if text is None else Path(directory) / "nothing.yml"
    if text is not None:
        play.write_text(text)
    begun = time.monotonic()
    command = [ROOT / ".venv" / "bin" / "ansible-playbook", "-i", str(inventory), str(play)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.monotonic() - begun


def row(name: str, lab: trial_lab.Lab, directory: str) -> None:
    begun = time.monotonic()
    found = host_look.look(lab.state)
    middle = time.monotonic()
    nccl_info.look(lab.python, 2.5)
    end = time.monotonic()
    figures = [middle - begun, end - middle, end - begun, playbook(directory)]
    verdicts = [f"{server['verdict']}/{server['state']}" for server in found["servers"]]
    seconds = "".join(f"{figure:9.2f}" for figure in figures)
    print(f"{name:<34}{seconds}  {len(verdicts)} servers: {', '.join(sorted(set(verdicts)))}")


def main() -> None:
    lab = trial_lab.Lab()
    servers = []

    def start(*flags: str) -> subprocess.Popen:
        command = [lab.python, "-m", "sglang.launch_server", "--model-path", str(lab.model), "--port", str(sockets.free_port()), *flags]
        servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True))
        return servers[-1]

    try:
        with tempfile.TemporaryDirectory() as directory:
            print(f"a play that does nothing: {playbook(directory, NOTHING):.2f} s; load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
            print(f"{'':<34}     look     nccl     both playbook")
            row("no server of ours", lab, directory)
            for _count in range(MANY):
                start("--tp-size", "2")
            time.sleep(4)
            row(f"{MANY} servers of 2 ranks", lab, directory)
            fake = Path(directory) / "nvidia-smi"
            fake.write_text("#!/bin/sh\nexec sleep 60\n")
            fake.chmod(0o755)
            os.environ["PATH"] = f"{directory}{os.pathsep}{os.environ['PATH']}"
            for server in servers[:2]:  # their ports accept, and nobody answers
                os.kill(server.pid, signal.SIGSTOP)
            with socket.create_server(("127.0.0.1", 0)) as mute:
                start("--port", str(mute.getsockname()[1]))
                time.sleep(3)
                row("nvidia-smi, ports and servers hang", lab, directory)
    finally:
        for server in servers:
            for process in [procfs.read(server.pid), *procfs.descendants(server.pid)]:
                if process is not None:
                    procfs.send_signal(process, signal.SIGKILL)
            server.wait()
        lab.remove()


if __name__ == "__main__":
    main()
