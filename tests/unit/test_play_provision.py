# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""provision.yml on an inventory that asks for what cannot be: said in the first play, and nothing is changed on any host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
TREE = ROOT / "extensions/molecule/proxmox_host/files/pci_tree.py"  # two Blackwell GPUs, SM 12.0
RIGHT = {"sglang_version": "0.5.16", "cuda_version": "13.0", "cuda_driver_version": "580.105.08"}
# host: (what is asked of it, what the refusal says)
ASKED = {
    "fusion": ({**RIGHT, "sglang_flags": {"enable-flashinfer-allreduce-fusion": True}}, "[9, 10]"),
    "toolkit": ({**RIGHT, "cuda_version": "12.6"}, "12.8"),
    "driver": ({"cuda_version": "13.0", "cuda_driver_version": "570.124.06"}, "570.124.06"),
    "torch": ({"sglang_version": "0.5.16", "cuda_driver_version": "570.124.06"}, "built for CUDA 13.0"),
}


@pytest.fixture(scope="module")
def sysfs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pci") / "sys"
    subprocess.run([sys.executable, TREE, folder], check=True)
    return folder


def provision(folder, hosts, sysfs, nodes=None, option="--check"):
    """(exit status, all that was said with one blank between words)."""
    inventory = {"inference": {"hosts": hosts, "vars": {"cuda_sys": str(sysfs)}}, **({"proxmox_nodes": {"hosts": nodes}} if nodes else {})}
    (folder / "hosts.json").write_text(json.dumps(inventory))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.json"), "provision.yml", option]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCAL_TEMP": str(folder / "local")}
    environment["ANSIBLE_REMOTE_TEMP"] = str(folder / "remote")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.fixture(scope="module")
def said(tmp_path_factory, sysfs):
    """What one run says of ASKED and of a host that is in order."""
    hosts = {name: {**LOCAL, **asked} for name, (asked, _words) in ASKED.items()}
    status, text = provision(tmp_path_factory.mktemp("asked"), {**hosts, "right": {**LOCAL, **RIGHT}}, sysfs)
    assert status != 0
    assert "TASK [It goes together]" in text
    return text


@pytest.mark.parametrize("host", ASKED)
def test_what_cannot_be_is_refused(said, host):
    failure = said[said.index(f"fatal: [{host}]") :]
    assert ASKED[host][1] in failure[: failure.index("Nothing was changed.")]


def test_then_nothing_is_done_on_any_host(said):
    assert "fatal: [right]" not in said
    assert "PLAY [Provision the" not in said


@pytest.mark.parametrize(
    ("asked", "words"), [({}, "there is nothing to provision"), ({"cuda_verison": "12.8"}, "did you mean cuda_version")]
)
def test_what_is_no_request(tmp_path, sysfs, asked, words):
    status, said = provision(tmp_path, {"gpu1": {**LOCAL, **asked}, "gpu2": LOCAL}, sysfs)
    assert status != 0
    assert words in said
    assert "PLAY [Provision the" not in said


def test_no_node_is_no_matter_for_a_warning(tmp_path, sysfs):
    status, said = provision(tmp_path, {"gpu1": LOCAL}, sysfs, option="--list-hosts")
    assert (status, said.count("pattern: ['inference'] hosts (1): gpu1")) == (0, 2)
    assert "WARNING" not in said
    assert "(proxmox_nodes): Provision the nodes TAGS: [] pattern: ['proxmox_nodes'] hosts (1): pve1" in (
        provision(tmp_path, {"gpu1": LOCAL}, sysfs, nodes={"pve1": LOCAL}, option="--list-hosts")[1]
    )


AWAY = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o BatchMode=yes -o ConnectTimeout=5"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"sglang_flags": {"tp-sise": 2}, "sglang_lock": "no.txt"}, ["did you mean --tp-size?", "sglang_lock: there is no file no.txt"]),
        ({"sglang_source": "onlin"}, ["sglang_source must be one of: online, bundle, got: onlin"]),
        ({"sglang_source": "bundle", "bundle_dir": "BUNDLE"}, ["The bundle b1 has SGLang 0.5.23 for CUDA 13.0"]),
    ],
)
def test_what_sglang_cannot_be_is_told_without_the_host(tmp_path, sysfs, asked, words):
    row = {"path": "sglang/lock.txt", "bytes": 1, "sha256": "0" * 64}
    manifest = {"format": 1, "name": "b1", "profile": "full", "machine": "x86_64", "python": "3.12", "files": [row], "parts": []}
    sglang = {"version": "0.5.23", "cuda": "13.0", "lock": "sglang/lock.txt"}
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "cuda": None, "sglang": sglang}))
    asked = {name: str(tmp_path) if value == "BUNDLE" else value for name, value in asked.items()}
    hosts = {"gpu1": {**AWAY, "sglang_version": "0.5.16", **asked}, "gpu2": {**LOCAL, **RIGHT}}
    status, said = provision(tmp_path, hosts, sysfs)
    assert status != 0
    assert all(word in said for word in words)
    assert "argument_spec_data" not in said
    assert "Finalization" not in said
    assert re.search("gpu1 : ok=[0-9]+ changed=0 unreachable=0", said)
    assert "TASK [It goes together]" not in said
    assert "PLAY [Provision the" not in said


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cuda_version": 12.1}, "cuda_version"),
        ({"cuda_driver_version": "580"}, "Give a whole version in quotes"),
        ({"cuda_version": "12.8", "cuda_toolkit_packages": "cuda-compiler-12-8"}, "cuda_toolkit_packages is text, not a list"),
        ({"cuda_version": "12.8", "cuda_repository_url": "nvidia", "cuda_repository_key": "no.asc"}, "there is no file no.asc"),
    ],
)
def test_what_cuda_cannot_be_is_told_without_the_host(tmp_path, sysfs, asked, words):
    status, said = provision(tmp_path, {"gpu1": {**AWAY, **asked}, "gpu2": {**LOCAL, **RIGHT}}, sysfs)
    assert status != 0
    assert words in said
    assert re.search("gpu1 : ok=[0-9]+ changed=0 unreachable=0", said)
    assert "PLAY [Provision the" not in said


def test_a_container_s_driver_is_its_nodes(tmp_path, sysfs):
    hosts = {"gpu1": {"proxmox_node": "pve1", "proxmox_vmid": 101, "cuda_version": "13.0"}}
    status, said = provision(tmp_path, hosts, sysfs, {"pve1": {**LOCAL, "cuda_driver_version": "570.124.06"}})
    assert status != 0
    assert "570.124.06" in said
    assert "PLAY [Provision the" not in said


def test_who_cannot_be_asked_is_no_refusal(tmp_path, sysfs):
    status, said = provision(tmp_path, {"gpu1": {**AWAY, "cuda_version": "13.0"}}, sysfs)
    assert status != 0
    assert "PLAY [Provision the hosts]" in said
    assert re.search("gpu1 : ok=[0-9]+ changed=0 unreachable=1", said)
