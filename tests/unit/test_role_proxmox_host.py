# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role proxmox_host without a node: its documentation, its files as they come out, and what it refuses. Scenario proxmox_host runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/proxmox_host"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
# What a compute-only driver of 580 to 595 from NVIDIA's repository for Debian consists of, and what lies beside it there.
DRIVER = [
    "firmware-nvidia-gsp", "libcuda1", "libcudadebugger1", "libnvidia-allocator1", "libnvidia-cfg1", "libnvidia-gpucomp",
    "libnvidia-ml1", "libnvidia-nvvm4", "libnvidia-nvvm704", "libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler1",
    "libnvidia-sandboxutils", "libnvidia-tileiras", "nvidia-driver-cuda", "nvidia-open", "nvidia-kernel-dkms",
    "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-modprobe", "nvidia-opencl-icd", "nvidia-persistenced",
    "cuda-drivers", "cuda-drivers-580", "nvidia-fabricmanager", "nvidia-driver-libs", "nvidia-smi", "libnvidia-opticalflow1",
    "libnvidia-encode1", "libnvcuvid1",
]  # fmt: skip
BESIDE = [
    "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container1", "libnvidia-container-tools",
    "cuda-toolkit-12-8", "libcublas-12-8", "libnvidia-egl-wayland21", "libcuda1-extra", "pve-nvidia-vgpu-helper",
    "cuda-cudart-12-8",
]  # fmt: skip


def rendered(name, tmp_path, **variables):
    """A template of the role as Ansible renders it."""
    playbook, out = tmp_path / "render.yml", tmp_path / "out"
    task = {"ansible.builtin.template": {"src": str(ROLE / "templates" / name), "dest": str(out)}}
    files = [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")]
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars_files": files, "tasks": [task]}]))
    run(playbook, tmp_path, variables)
    return out.read_text()


def run(playbook, tmp_path, variables, rc=0):
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", str(playbook)]
    variables = {"ansible_python_interpreter": sys.executable, **variables}
    environment = {
        **os.environ,
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "tmp"),
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run([*command, "-e", json.dumps(variables)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_unattended_upgrades_leave_the_driver_and_nothing_else(tmp_path):
    text = rendered("unattended.conf.j2", tmp_path)
    patterns = re.findall(r'^    "(.*)";$', text, flags=re.MULTILINE)
    assert len(patterns) == len(DEFAULTS["proxmox_host_driver_members"])
    caught = [name for name in DRIVER + BESIDE if any(re.match(pattern, name) for pattern in patterns)]
    assert caught == DRIVER
    if shutil.which("apt-config"):
        dump = subprocess.run(["apt-config", "-c", tmp_path / "out", "dump"], capture_output=True, text=True, check=True).stdout
        assert set(re.findall('Unattended-Upgrade::Package-Blacklist:: "(.*)";', dump)) >= set(patterns)


def test_the_pin_is_of_one_version_or_of_what_was_found(tmp_path):
    text = rendered("preferences.j2", tmp_path, proxmox_host_driver_version="580.105.08")
    assert "Pin: version 580.105.08-*\nPin-Priority: 1001\n" in text
    assert text.count("Pin:") == 1
    assert "Pin: version 580.105.08-2\n" in rendered("preferences.j2", tmp_path, proxmox_host_driver_version="580.105.08-2")
    found = [{"name": "libcuda1:amd64", "version": "550.163.01-2"}, {"name": "nvidia-smi", "version": "550.163.01-2"},
             {"name": "nvidia-settings", "version": "535.1-1"}]  # fmt: skip
    text = rendered("preferences.j2", tmp_path, __proxmox_host_set=found)
    assert "Package: libcuda1 nvidia-smi\nPin: version 550.163.01-2\n" in text
    assert "Package: nvidia-settings\nPin: version 535.1-1\n" in text


@pytest.mark.parametrize(
    ("kernel", "headers"),
    [
        ("6.8.12-4-pve", "proxmox-headers-6.8.12-4-pve | pve-headers-6.8.12-4-pve"),
        ("6.1.0-39-amd64", "linux-headers-6.1.0-39-amd64"),
    ],
)
def test_headers_of_the_kernel_that_runs(tmp_path, kernel, headers):
    files = [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")]
    playbook = tmp_path / "show.yml"
    tasks = [{"ansible.builtin.debug": {"var": "_proxmox_host_headers"}}]
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars_files": files, "tasks": tasks}]))
    assert f"_proxmox_host_headers: {headers}\n" in run(playbook, tmp_path, {"_proxmox_host_kernel": kernel})


def nodes(tmp_path, failing=""):
    """(exit status, calls of nvidia-modprobe, errors) of the script that makes nodes, with a stand-in that fails for FAILING."""
    text = rendered("devices.sh.j2", tmp_path)
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


WRONG = [
    ({"proxmox_host_driver_version": "580"}, "Give a whole version in quotes"),
    ({"proxmox_host_driver_version": "latest"}, "Give a whole version in quotes"),
    ({"proxmox_host_driver_version": "580.1.1", "proxmox_host_driver_branch": 590}, "not of proxmox_host_driver_branch 590"),
    ({"proxmox_host_driver_packages": {"open": []}}, "proprietary"),
    ({"proxmox_host_kernel_module": "closed"}, "proxmox_host_kernel_module"),
    ({"proxmox_host_repository_url": "file:/r"}, "proxmox_host_repository_key must be the path"),
    ({"proxmox_host_repository_url": "file:/r", "proxmox_host_repository_key": "key.txt"}, "found: 'key.txt'"),
]


def test_what_is_wrong_is_refused_before_anything_is_looked_at(tmp_path):
    tasks = [
        {
            "block": [{"ansible.builtin.include_role": {"name": "ringmaster.gpu.proxmox_host"}, "vars": variables}],
            "rescue": [{"ansible.builtin.debug": {"msg": f"refused {number}"}}],
        }
        for number, (variables, _words) in enumerate(WRONG)
    ]
    playbook = tmp_path / "play.yml"
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    output = run(playbook, tmp_path, {})
    parts = re.split(r"msg: refused \d", output)
    assert len(parts) == len(WRONG) + 1, output
    for (_variables, words), part in zip(WRONG, parts, strict=False):
        assert words in " ".join(part.split())
    assert "Traceback" not in output
    assert "Look at PCI Express" not in output


def test_a_misspelt_variable_is_refused(tmp_path):
    playbook = tmp_path / "play.yml"
    playbook.write_text("- hosts: localhost\n  gather_facts: false\n  roles: [ringmaster.gpu.proxmox_host]\n")
    assert "proxmox_host_driver_version" in run(playbook, tmp_path, {"proxmox_host_drivr_version": "580.1.1"}, rc=2)
