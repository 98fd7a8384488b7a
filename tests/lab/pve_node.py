# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The test node as a test sees it: its API by proxmoxer, pct, SSH, and what is left on the machine."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import container
import pve_guest

HERE = Path(__file__).resolve().parent


def pve(*argv):
    done = subprocess.run([sys.executable, HERE / "pve.py", *map(str, argv)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pct(*argv, **options):
    return subprocess.run([HERE / "pct", *map(str, argv)], capture_output=True, text=True, timeout=60, **options)


def inside(vmid, script):
    done = pct("exec", vmid, "--keep-env", "0", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def left(scenario, vmids):
    """What this machine still has of the scenario: records, files, control groups, stand-in devices."""
    names = [name for name, record in container.records().items() if record.get("scenario") == scenario]
    homes = [str(path) for path in container.CONTAINERS.glob(f"rm-test-{scenario}-*")]
    groups = [str(path) for vmid in vmids for path in pve_guest.CGROUPS.glob(f"**/lxc*/{vmid}")]
    nodes = [str(pve_guest.NODES / scenario)] if (pve_guest.NODES / scenario).exists() else []
    return names + homes + groups + nodes


class Node:
    """The test node's API as proxmoxer sees it, by identity."""

    def __init__(self, connection):
        self.connection = connection

    def api(self, who="root"):
        from proxmoxer import ProxmoxAPI

        given = self.connection[who]
        secret = {"password": given["api_password"]} if "api_password" in given else {
            "token_name": given["api_token_id"], "token_value": given["api_token_secret"],
        }  # fmt: skip
        api = ProxmoxAPI(
            given["api_host"], port=given["api_port"], user=given["api_user"], verify_ssl=given["ca_path"], timeout=60, **secret
        )
        return api.nodes(self.connection["node"])

    def ends(self, upid):
        """(exit status, log) of a task, once it has ended."""
        deadline = time.monotonic() + 120
        while (status := self.api().tasks(upid).status.get())["status"] == "running":
            assert time.monotonic() < deadline, f"{upid} still runs"
            time.sleep(0.1)
        return status["exitstatus"], [line["t"] for line in self.api().tasks(upid).log.get()]

    def done(self, upid):
        exit_status, log = self.ends(upid)
        assert exit_status == "OK", log

    def create(self, vmid, who="root", **options):
        wanted = {
            "vmid": vmid, "ostemplate": self.connection["templates"]["bookworm"], "hostname": f"host-{vmid}", "rootfs": "local-lvm:8",
            "net0": f"name=eth0,bridge=vmbr0,ip=10.77.0.{vmid + 100}/24", **options,
        }  # fmt: skip
        return self.api(who).lxc.post(**wanted)

    def container(self, vmid):
        return self.api().lxc(vmid)

    def state(self, vmid):
        return self.container(vmid).status.current.get()

    def forget(self, *vmids):
        for vmid in vmids:
            if vmid in [int(found["vmid"]) for found in self.api().lxc.get()]:
                self.done(self.container(vmid).delete(force=1))


def innermost_pid(pid):
    """The innermost pid of a process; "" when it is gone."""
    try:
        return (pid / "status").read_text().partition("NSpid:")[2].partition("\n")[0].split()[-1]
    except (OSError, IndexError):
        return ""


def ssh(node, address, command):
    options = [f"UserKnownHostsFile={node.connection['known_hosts']}", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes", "BatchMode=yes"]
    argv = ["ssh", "-F", "none", *(part for option in options for part in ("-o", option)), "-i", node.connection["identity_file"]]
    return subprocess.run([*argv, f"root@{address}", command], capture_output=True, text=True, timeout=30)


def until(true, limit_s=30):
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)
