# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role proxmox_host without a node: its files as they come out. Scenario proxmox_host runs it; the driver is role cuda's."""

from __future__ import annotations

import os
import subprocess

from role_lab import ROOT, play, rendered

ROLE = ROOT / "roles/proxmox_host"


def nodes(tmp_path, failing=""):
    """(exit status, calls of nvidia-modprobe, errors) of the script that makes nodes, with a stand-in that fails for FAILING."""
    text = rendered(ROLE, "devices.sh.j2", tmp_path)
    program = tmp_path / "bin/nvidia-modprobe"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n[ "$*" != "{failing}" ]\n')
    program.chmod(0o755)
    (tmp_path / "calls").unlink(missing_ok=True)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", text, "sh", str(tmp_path / "proc")], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, (tmp_path / "calls").read_text().splitlines(), done.stderr


def test_nodes_of_all_gpus_and_one_dead_gpu_stops_none(tmp_path):
    first = ["-c=255", "-u -c=0", "-m"]
    assert nodes(tmp_path)[:2] == (0, first)  # no GPU
    for number, minor in ((1, "3"), (2, None), (3, "12"), (4, "0")):
        folder = tmp_path / f"proc/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: x\nIRQ: 7\n" + (f"Device Minor: \t {minor}\n" if minor else ""))
    status, calls, errors = nodes(tmp_path)
    assert (status, calls) == (0, [*first, "-c=3", "-c=12", "-c=0"])
    assert "0000:02:00.0" in errors
    status, calls, errors = nodes(tmp_path, failing="-c=12")
    assert (status, calls[-1]) == (0, "-c=0")
    assert "0000:03:00.0" in errors
    assert nodes(tmp_path, failing="-m")[:2] == (0, [*first, "-c=3", "-c=12", "-c=0"])
    assert nodes(tmp_path, failing="-c=255")[0] != 0  # no kernel module
    assert nodes(tmp_path, failing="-u -c=0")[0] != 0  # CUDA would not start


def test_a_misspelt_variable_is_refused(tmp_path):
    playbook = tmp_path / "play.yml"
    playbook.write_text("- hosts: localhost\n  gather_facts: false\n  roles: [ringmaster.gpu.proxmox_host]\n")
    assert "cuda_driver_version" in play(playbook, tmp_path, {"cuda_drivr_version": "580.1.1"}, rc=2)
