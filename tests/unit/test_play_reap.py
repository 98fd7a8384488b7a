# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""reap.yml where the inventory, or the way to a node, is not in order: told for each host, and nobody else's processes are looked at."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODES = {
    "here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
    "away": {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o BatchMode=yes -o ConnectTimeout=5"},
}
UNNAMED = "proxmox_node is here, and proxmox_vmid is not set"
HOSTS = {
    "without": ({"proxmox_node": "here"}, UNNAMED),
    "empty": ({"proxmox_node": "here", "proxmox_vmid": ""}, UNNAMED),
    "blank": ({"proxmox_node": "here", "proxmox_vmid": " "}, UNNAMED),
    "nothing": ({"proxmox_node": "here", "proxmox_vmid": None}, UNNAMED),
    "unknown": ({"proxmox_node": "here", "proxmox_vmid": 99999}, "This machine has no container '99999'"),
    "lost": ({"proxmox_node": "away", "proxmox_vmid": 101}, "away cannot be reached: "),
    "alone": ({**NODES["away"], "proxmox_vmid": 101}, "alone cannot be reached: "),
}


def play(tmp_path, name, *arguments):
    """What the playbook NAME says of HOSTS, words with one blank between; it has to fail."""
    hosts = {host: variables for host, (variables, _words) in HOSTS.items()}
    (tmp_path / "hosts.json").write_text(json.dumps({"proxmox_nodes": {"hosts": NODES}, "inference": {"hosts": hosts}}))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(tmp_path / "hosts.json"), name, *arguments]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"), "COLUMNS": "200"}
    environment["ANSIBLE_REMOTE_TEMP"] = str(tmp_path / "remote")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Finalization of task args" not in done.stdout + done.stderr
    return re.sub(r"\s+", " ", done.stdout)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return play(tmp_path_factory.mktemp("reap"), "reap.yml", "--check")


@pytest.mark.parametrize("host", HOSTS)
def test_the_table_tells_it(said, host):
    assert re.search(rf"{host}: (?:container\b[^:]*|the machine itself) failed: {re.escape(HOSTS[host][1])}", said)


def test_so_does_a_measurement_which_does_not_begin(tmp_path):
    text = play(tmp_path, "tune.yml", "-e", "nccl_channels=2", "-e", "tune_serial=100%", "--limit", "empty,lost")
    assert re.search(rf"empty - .* not measured reason: empty: {UNNAMED}", text)
    assert re.search("lost - .* not measured reason: lost: away cannot be reached to look for orphaned GPU workers", text)
