# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role proxmox_container in check mode, on a fake API: what it would make, and what it refuses. Scenario proxmox runs it for real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pve_lab import TEMPLATE, Lab, login, served, writes

ROOT = Path(__file__).resolve().parents[2]
UUID = "GPU-11111111-1111-1111-1111-111111111111"
WITHOUT_BRIDGE = [{"name": "eth0", "ip": "192.0.2.21/24"}]
# host: (its variables, what is said of it)
HOSTS = {
    "right": ({}, "+dev0: /dev/nvidia0,mode=0666 +dev1: /dev/nvidiactl,mode=0666 +dev2: /dev/nvidia-uvm,mode=0666"),
    "unquoted": ({"proxmox_container_gpu_mode": 0o666}, "mode=0666"),  # what YAML makes of 0666
    "decimal": ({"proxmox_container_gpu_mode": 666}, "no octal number from 0000 to 0777. Write it with quotes"),
    "sexagesimal": ({"proxmox_container_gpus": 2460.0}, "A PCI bus id needs quotes in YAML"),  # what YAML makes of 41:00.0
    "nowhere": ({"proxmox_node": None}, "proxmox_container_node is '', which is no host of the inventory"),
    "small": ({"proxmox_vmid": 99}, "proxmox_container_vmid is '99'"),
    "unreachable": ({"proxmox_container_networks": WITHOUT_BRIDGE}, "has none with a bridge"),
    "negative": ({"proxmox_container_shm_gib": -4}, "proxmox_container_shm_gib is -4"),
    "begun": ({"proxmox_vmid": 250}, "Container 250 on node pve1 is locked: create"),
    "stranger": ({"proxmox_vmid": 251}, "container 251 of pve1 is called database, not stranger"),
    "grown": ({"proxmox_vmid": 252}, " rootfs: tank:vm-252-disk-0,size=64G"),  # what a new one would get is no matter
    "double": ({"proxmox_vmid": "0260"}, "double: twin has proxmox_vmid 0260 on pve1, too"),
    "twin": ({"proxmox_vmid": 260, "proxmox_node": "pve1.example.net"}, "twin: double has proxmox_vmid 260 on pve1.example.net, too"),
    "here": ({"proxmox_vmid": 270, "proxmox_node": "pve3.a.example"}, "proxmox_container_node is 'pve3.a.example', which is no host"),
    "there": ({"proxmox_vmid": 270, "proxmox_node": "pve3.b.example"}, "proxmox_container_node is 'pve3.b.example', which is no host"),
    "twofold": (
        {"proxmox_api_token_id": "root@pam!a", "proxmox_api_token_secret": "b"},
        "Both proxmox_api_password and proxmox_api_token_id are given",
    ),
    "bare": (
        {"proxmox_container_template": "local:vztmpl/none.tar.zst"},
        f"proxmox_container_template: there is no template local:vztmpl/none.tar.zst on node pve1, but {TEMPLATE}",
    ),
    "keyless": (
        {"proxmox_container_driver_repository_url": "file:/r", "proxmox_container_driver_repository_key": "k.asc"},
        "sought beside the playbook",
    ),
    "away": ({"proxmox_node": "pve2", "proxmox_container_gpus": None}, "its node pve2 cannot be reached"),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(all that a run on HOSTS has said, words with one blank between; what it wrote to the API)."""
    folder = tmp_path_factory.mktemp("role")
    lab = Lab(str(folder))
    with served(lab) as pve:
        pve.add_ct(250, defaults=False, lock="create")
        pve.add_ct(251, name="database")
        pve.add_ct(252, name="grown", config={"rootfs": "tank:vm-252-disk-0,size=64G", "unprivileged": 0})
        said = run(folder, inventory(folder, login(pve, lab.ca)))
        wrote = writes(pve)
    lab.close()
    return said, wrote


def inventory(folder, api):
    gpu = folder / "nvidia" / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text(f"GPU UUID: {UUID}\nDevice Minor: 0\n")
    (folder / "nvidia" / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    (folder / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (folder / "dev" / name).symlink_to("/dev/null")
    common = {
        **{f"proxmox_{name}": api[name] for name in ("api_host", "api_port", "api_user", "api_password")},
        "proxmox_api_ca_path": api["ca_path"],
        "proxmox_node": "pve1",
        "proxmox_container_template": TEMPLATE,
        "proxmox_container_networks": [{"name": "eth0", "bridge": "vmbr0", "ip": "192.0.2.21/24"}],
        "proxmox_container_mounts": [{"source": str(folder), "target": "/models"}],
        "proxmox_container_gpus": [UUID],
        "proxmox_container_nvidia_proc": str(folder / "nvidia"),
        "proxmox_container_nvidia_dev": str(folder / "dev"),
    }
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    away = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o BatchMode=yes -o ConnectTimeout=5"}
    hosts = {host: {"proxmox_vmid": 201 + number, **HOSTS[host][0]} for number, host in enumerate(HOSTS)}
    return {
        "all": {"hosts": {"localhost": local, "pve1": local, "pve2": away}},
        "inference": {"hosts": hosts, "vars": common},
    }


def run(folder, hosts):
    (folder / "hosts.json").write_text(json.dumps(hosts))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.json"), "provision.yml"]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCAL_TEMP": str(folder / "local")}
    environment.update(ANSIBLE_REMOTE_TEMP=str(folder / "remote"), ANSIBLE_FORKS="2")
    command += ["--limit", "inference", "--check", "--diff"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.mark.parametrize("host", HOSTS)
def test_said(ran, host):
    said, _wrote = ran
    assert HOSTS[host][1] in said, said[-3000:]
    right = re.search(rf" {host} : ok=\d+ changed=(\d+) unreachable=0 failed=(\d+)", said).groups()
    assert right == (("1", "0") if host in ("right", "unquoted", "grown") else ("0", "1"))


def test_nothing_is_written(ran):
    assert ran[1] == []
