# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules as Ansible runs them: packed, in a process of their own, with their documentation, defaults, environment and secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pve_lab import SECRETS, WHOLE, calls, login, writes

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = Path(sys.executable).parent / "ansible"
TOKEN, OTHER = SECRETS


def ansible(tmp_path, *words, python=sys.executable, **variables):
    """(exit status, all that was printed, the module's answer) of an ad-hoc call on this machine."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_PYTHON_INTERPRETER": python,
        "ANSIBLE_HOME": str(tmp_path / "home"),
        **variables,
    }
    command = [str(ANSIBLE), "localhost", "-i", "localhost,", "-c", "local", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    printed = done.stdout + done.stderr
    found = re.search(r"=> (\{.*?^\})", done.stdout, re.DOTALL | re.MULTILINE)
    return done.returncode, printed, json.loads(found.group(1)) if found else {}


def module(name, options):
    return ["-m", f"ringmaster.gpu.{name}", "-a", json.dumps(options)]


def test_created_changed_looked_at_and_removed(lab, pve, tmp_path):
    options = {**login(pve, lab.ca), **WHOLE, "state": "started", "password": "geheim!"}
    code, printed, foretold = ansible(tmp_path, *module("proxmox_container", options), "--check", "--diff", "-vvv")
    assert (code, foretold["changed"], foretold["status"]) == (0, True, "running"), printed
    difference = [line for line in printed.splitlines() if line.startswith("+")]
    assert "+dev0: /dev/nvidia0,mode=0666" in difference
    assert "geheim" not in printed
    assert "secret" not in re.sub(r"VALUE_SPECIFIED_IN_NO_LOG_PARAMETER|api_token_secret", "", printed)
    assert writes(pve) == []
    code, printed, done = ansible(tmp_path, *module("proxmox_container", options), "--diff")
    assert (code, done["status"]) == (0, "running"), printed
    assert [line for line in printed.splitlines() if line.startswith("+")] == difference
    pve.requests.clear()
    code, printed, again = ansible(tmp_path, *module("proxmox_container", options))
    assert (code, again["changed"]) == (0, False), printed
    assert writes(pve) == []
    code, printed, found = ansible(tmp_path, *module("proxmox_container_info", {**login(pve, lab.ca), "addresses": True}))
    assert [(row["vmid"], row["addresses"]) for row in found["containers"]] == [(101, ["192.0.2.21/24"])], printed
    more = {**login(pve, lab.ca), "vmid": 101, "state": "absent"}
    code, printed, failed = ansible(tmp_path, *module("proxmox_container", more))
    assert code != 0
    assert "force: true" in failed["msg"]
    code, printed, gone = ansible(tmp_path, *module("proxmox_container", {**more, "force": True}))
    assert (code, gone["status"]) == (0, "absent"), printed


def test_options_of_the_api_from_the_environment(lab, pve, tmp_path):
    pve.add_ct(101)
    environment = {
        "PROXMOX_HOST": "127.0.0.1",
        "PROXMOX_PORT": str(pve.port),
        "PROXMOX_USER": "ansible@pve",
        "PROXMOX_TOKEN_ID": "fleet",
        "PROXMOX_TOKEN_SECRET": SECRETS[OTHER],
        "PROXMOX_CA_PATH": lab.ca,
        "PROXMOX_VALIDATE_CERTS": "true",
        "PROXMOX_API_TIMEOUT": "7",
    }
    code, printed, done = ansible(tmp_path, *module("proxmox_container", {"vmid": 101, "memory": 1024}), **environment)
    assert (code, done["changed"]) == (0, True), printed
    assert pve.ct(101).config["memory"] == 1024
    code, printed, failed = ansible(tmp_path, *module("proxmox_container", {"vmid": 101}), **{**environment, "PROXMOX_CA_PATH": ""})
    assert code != 0
    assert "is not trusted" in failed["msg"]


def test_options_of_the_api_from_module_defaults(lab, pve, tmp_path):
    """group/ringmaster.gpu.proxmox gives them to both modules."""
    pve.add_ct(101)
    play = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "module_defaults": {"group/ringmaster.gpu.proxmox": login(pve, lab.ca, TOKEN)},
            "tasks": [
                {"ringmaster.gpu.proxmox_container": {"vmid": 101, "memory": 1024}},
                {"ringmaster.gpu.proxmox_container_info": {}, "register": "found"},
                {"ansible.builtin.assert": {"that": "found.containers[0].config.memory == 1024"}},
                {
                    "block": [{"ringmaster.gpu.proxmox_container": {"vmid": 101, "devices": [{"path": "/dev/nvidia0"}]}}],
                    "rescue": [{"ansible.builtin.assert": {"that": "'is root@pam!ansible' in ansible_failed_result.msg"}}],
                },
            ],
        }
    ]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    command = [str(ANSIBLE.with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", "play.yml"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    environment.update(ANSIBLE_LOCAL_TEMP=str(tmp_path / "local"), ANSIBLE_REMOTE_TEMP=str(tmp_path / "remote"))
    environment.update(ANSIBLE_PYTHON_INTERPRETER=sys.executable, ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default")
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the identity in use is root@pam!ansible" in re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert SECRETS[TOKEN] not in done.stdout + done.stderr
    assert [path for _method, path, _arguments in writes(pve)] == ["/nodes/pve1/lxc/101/config"]


def test_faults_are_messages_and_not_tracebacks(lab, pve, tmp_path):
    pve.add_ct(101)
    pve.fail("PUT", "/config", 500, "CT is locked (backup)")
    for options, words in (
        ({"vmid": 101, "memory": 1024}, "is locked: backup"),
        ({"vmid": 101, "extra": {"lxc.idmap": "u 0 1 2"}}, "/etc/pve/lxc/101.conf"),
        ({"vmid": 7}, "numbers containers from 100 on"),
        ({"vmid": 101, "timeout_s": 0}, "timeout_s is 0"),
        ({"vmid": 101, "api_password": "geheim!"}, "does not accept root@pam"),
    ):
        code, printed, failed = ansible(tmp_path, *module("proxmox_container", {**login(pve, lab.ca), **options}), "-vvv")
        assert code != 0
        assert words in failed["msg"]
        assert "Traceback" not in printed
        assert "geheim" not in printed


def other_pythons():
    return {f"3.{minor}": next(iter(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")), None) for minor in (9, 13)}


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_a_python_of_a_target_without_proxmoxer(lab, pve, tmp_path, version):
    """It is imported in every Python that is supported, and says what is missing."""
    python = other_pythons()[version]
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    if subprocess.run([python, "-c", "import proxmoxer"], capture_output=True, check=False).returncode == 0:
        pytest.skip(f"Python {version} has proxmoxer")
    for name in ("proxmox_container", "proxmox_container_info"):
        code, printed, failed = ansible(tmp_path, *module(name, {**login(pve, lab.ca), "vmid": 101}), python=str(python))
        assert code != 0
        assert "Failed to import the required Python library (proxmoxer)" in failed["msg"], printed
    assert calls(pve, "GET") == []
