# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""inventory/proxmox on community.proxmox's plugin, against an API over HTTPS: two nodes, containers, a virtual machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pve_lab import reroute

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventory" / "proxmox"
TOKEN = ("ringmaster@pve", "ci", "00000000-1111-2222-3333-444444444444")


def net(address, name="eth0"):
    return f"name={name},bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip={address},type=veth"


def guest(vmid, node, status="running", **config):
    return {"vmid": vmid, "node": node, "status": status, "config": config}


CONTROL = {"dev3": "/dev/nvidia-uvm,mode=0666", "dev4": "path=/dev/nvidiactl,gid=44", "dev5": "/dev/nvidia-caps/nvidia-cap1"}
TWO = {"dev0": "/dev/nvidia10,gid=44", "dev1": "path=/dev/nvidia2,mode=0660", **CONTROL}
GUESTS = {
    "gpu-a": guest(101, "pve1", tags="inference;llm", net0=net("10.0.0.11/24"), **TWO),
    "gpu-b": guest(102, "pve2", tags="inference", net0=net("dhcp"), net1=net("10.0.1.12/24", "eth1"), dev0="/dev/nvidia0"),
    "gpu-c": guest(103, "pve2", "stopped", tags="inference", net0=net("10.0.0.13/24"), dev0="/dev/nvidia1"),
    "nameless": guest(104, "pve1", tags="inference", net0=net("dhcp")),
    "database": guest(105, "pve1", net0=net("10.0.0.15/24")),
    "docker": guest(106, "pve2", tags="inference", net0=net("dhcp")),
}


@pytest.fixture(scope="session")
def collections():
    """Where community.proxmox is, fetched once."""
    done = subprocess.run([sys.executable, ROOT / "tests/lab/community_proxmox"], capture_output=True, text=True, timeout=600)
    if done.returncode == 75 and os.environ.get("CI") != "true":
        pytest.skip(f"PyPI cannot be reached: {done.stderr.strip().splitlines()[-1:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def cluster(fakepve):
    """The API with GUESTS and a virtual machine; the token may look and nothing else."""
    interfaces = fakepve._lxc_interfaces

    async def leased(user, values):
        """As DHCP and Docker leave them in 106."""
        rows = [{"name": name, "hwaddr": "", "inet": inet} for name, inet in (("docker0", "172.17.0.1/16"), ("eth0", "10.0.0.16/24"))]
        return rows if values["vmid"] == 106 else await interfaces(user, values)

    reroute(fakepve, "GET", "/lxc/{vmid}/interfaces", leased)
    fakepve.nodes = {"pve1": {"online": True}, "pve2": {"online": True}}
    for name, given in GUESTS.items():
        fakepve.add_ct(name=name, **given)
    fakepve.add_vm(
        200, "vm-a", node="pve1", status="running", config={"tags": "inference", "net0": "virtio=BC:24:11:00:00:02,bridge=vmbr0"}
    )
    user, token, secret = TOKEN
    for holder in (user, f"{user}!{token}"):
        fakepve.grant(holder, "/vms", "VM.Audit")
    fakepve.apitokens[f"{user}!{token}"] = secret
    return fakepve


@pytest.fixture
def ansible(cluster, fakepve_cafile, collections):
    """Run one of ansible's programs with that inventory; changes: of the environment."""

    def run(program, *argv, **changes):
        given = {
            "PROXMOX_HOST": cluster.host, "PROXMOX_PORT": str(cluster.port), "PROXMOX_USER": TOKEN[0], "PROXMOX_TOKEN_ID": TOKEN[1],
            "PROXMOX_TOKEN_SECRET": TOKEN[2], "REQUESTS_CA_BUNDLE": fakepve_cafile, "ANSIBLE_COLLECTIONS_PATH": collections,
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        }  # fmt: skip
        command = [Path(sys.executable).with_name(program), "-i", INVENTORY, *argv]
        done = subprocess.run(command, env={**os.environ, **given, **changes}, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert TOKEN[2] not in done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def listed(ansible):
    done = ansible("ansible-inventory", "--list")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, object_hook=lambda found: found.get("__ansible_unsafe", found))


def members(listed, group):
    return sorted(listed.get(group, {}).get("hosts", []))


def test_groups(listed):
    """Running containers with the tag; no virtual machine, nothing stopped, nothing without the tag."""
    assert members(listed, "inference") == ["docker", "gpu-a", "gpu-b", "nameless"]
    assert members(listed, "inference_stopped") == ["gpu-c"]
    assert members(listed, "proxmox_nodes") == ["pve1", "pve2"]


@pytest.mark.parametrize(
    ("name", "node", "vmid", "gpus", "address"),
    [
        ("gpu-a", "pve1", 101, ["/dev/nvidia2", "/dev/nvidia10"], "10.0.0.11"),
        ("gpu-b", "pve2", 102, ["/dev/nvidia0"], "10.0.1.12"),
        ("nameless", "pve1", 104, [], None),
        ("docker", "pve2", 106, [], "10.0.0.16"),
    ],
)
def test_an_inference_host_knows_node_vmid_gpus_and_address(listed, name, node, vmid, gpus, address):
    known = listed["_meta"]["hostvars"][name]
    assert (known["proxmox_node"], known["proxmox_vmid"], known["proxmox_gpu_devices"]) == (node, vmid, gpus)
    assert known.get("ansible_host") == address
    assert known["sglang_service"] == "sglang"
    assert node in members(listed, "proxmox_nodes")


def test_nodes_are_reached_as_the_static_file_says(listed):
    known = listed["_meta"]["hostvars"]
    assert {node: known[node]["ansible_host"] for node in ("pve1", "pve2")} == {"pve1": "pve1.example.net", "pve2": "pve2.example.net"}
    assert "proxmox_node" not in known["pve1"]


def test_only_reads(listed, cluster):
    assert {method for method, _path, _body in cluster.requests} == {"GET"}


def test_a_task_finds_its_node(ansible, tmp_path):
    """As tune's reaper does."""
    play = {
        "hosts": "inference", "gather_facts": False,
        "tasks": [{"ansible.builtin.ping": {"data": "{{ proxmox_node }} {{ proxmox_vmid }}"}, "delegate_to": "{{ proxmox_node }}"}],
    }  # fmt: skip
    (tmp_path / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    local = ["-e", "ansible_connection=local", "-e", f"ansible_python_interpreter={sys.executable}"]
    done = ansible("ansible-playbook", str(tmp_path / "play.yml"), *local)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^ok: \[(\S+) -> (\w+)", done.stdout, re.MULTILINE)
    assert sorted(found) == [("docker", "pve2"), ("gpu-a", "pve1"), ("gpu-b", "pve2"), ("nameless", "pve1")]


@pytest.mark.parametrize("host", ["{}:{}", "https://{}:{}/"])
def test_the_host_may_bring_its_port(ansible, cluster, host):
    done = ansible("ansible-inventory", "--list", PROXMOX_HOST=host.format(cluster.host, cluster.port), PROXMOX_PORT="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"PROXMOX_TOKEN_SECRET": "wrong"}, ""),
        ({"REQUESTS_CA_BUNDLE": ""}, ""),
        ({"PROXMOX_PORT": "1"}, "port=1"),
        ({"PROXMOX_HOST": "::1", "PROXMOX_PORT": "1"}, "host='::1', port=1"),
        ({"PROXMOX_HOST": "[::1]:1"}, "host='::1', port=1"),
    ],
    ids=["secret", "certificate", "port", "address", "both"],
)
def test_an_api_that_cannot_be_asked_is_an_error(ansible, changes, said):
    done = ansible("ansible-inventory", "--list", **changes)
    assert done.returncode != 0
    assert "inference.proxmox.yml" in done.stderr
    assert said in " ".join(done.stderr.split())
