# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Proxmox VE says when it refuses, and what a user is told."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import pve_errors

FACTS = {
    "identity": "root@pam!ansible",
    "host": "https://pve1:8006",
    "node": "pve1",
    "vmid": "101",
    "call": "PUT /nodes/pve1/lxc/101/config",
}
TOLD = [
    (
        401,
        "authentication failure",
        "https://pve1:8006 does not accept root@pam!ansible",
        "api_token_secret.*expired.*user token list root@pam",
    ),
    (
        403,
        "Permission check failed (/vms/101, VM.Config.Disk)",
        "lacks the privilege VM.Config.Disk on /vms/101",
        "acl modify /vms/101 --tokens",
    ),
    (
        403,
        "Permission check failed (/storage/local, Datastore.AllocateSpace|Datastore.Audit)",
        "lacks the privilege Datastore.AllocateSpace.Datastore.Audit on /storage/local",
        "acl modify /storage/local",
    ),
    (403, "Permission check failed (/, Sys.Modify for modifying tag 'x')", "lacks the privilege Sys.Modify on /", "acl modify /"),
    (
        403,
        "Permission check failed (configuring device passthrough is only allowed for root@pam)",
        "from root@pam alone, not from root@pam!ansible",
        "a token of root is not root",
    ),
    (403, "Permission check failed", "lacks a privilege for PUT", "VM.Allocate on /vms/101 or on the pool"),
    (403, "Permission check failed (pool 'x' does not exist)", "pool 'x' does not exist", "Make the pool"),
    (500, "CT is locked (backup)", "Container 101 is locked: backup", "Wait until that has ended.*pct unlock 101"),
    (500, "CT is locked (snapshot-delete)", "locked: snapshot-delete", "pct unlock"),
    (500, "can't lock file '/run/lock/lxc/pve-config-101.lock' - got timeout", "Another task holds", "tasks --source active --vmid 101"),
    (500, "cluster not ready - no quorum?", "lost its quorum", "pvecm status"),
    (500, "CT 101 already exists on node 'pve2'", "VMID 101 is taken", "nextid.*VM.Audit on /vms/101"),
    (500, "VM 101 already exists on node 'pve2'", "VMID 101 is taken", "nextid"),
    (None, "unable to create CT 101 - Could not reserve ID 101, already taken", "VMID 101 is taken", "nextid"),
    (
        None,
        "unable to create CT 101 - command 'lvcreate ...' failed: insufficient free space (3 extents)",
        "storage is full",
        "smaller size_gib",
    ),
    (None, "unable to create CT 101 - write: No space left on device", "storage is full", "Make room"),
    (500, "storage 'x' does not exist", "Storage x cannot be used on node pve1", "pvesm status"),
    (500, "storage 'x' is not online", "Storage x cannot be used", "pvesm status"),
    (500, "storage 'x' is not available on node 'pve1'", "Storage x cannot be used", "pvesm status"),
    (500, "storage 'x' does not allow content type 'rootdir' (Container)", "Storage x does not hold containers", "rootdir"),
    (
        None,
        "unable to create CT 101 - volume 'local:vztmpl/x.tar.zst' does not exist",
        "no template local:vztmpl/x.tar.zst",
        "pveam update",
    ),
    (500, "unable to parse volume ID 'debian-12'", "debian-12 is no volume", "pveam list STORAGE"),
    (500, "unable to parse directory volume name 'x.tar'", "no template x.tar", "pveam"),
    (500, "Device /dev/nvidia9 does not exist", "no device /dev/nvidia9", "nvidia-modprobe -u -c0"),
    (None, "Could not get mode or device ID of /dev/nvidia-uvm", "no device /dev/nvidia-uvm", "Load its driver"),
    (500, "bridge 'vmbr9' does not exist", "no bridge vmbr9", "bridge"),
    (500, "can't remove CT 101 - protection mode enabled", "is protected", "extra: {protection: false}"),
    (500, "unable to destroy CT 101 - container is running", "is running", "force: true"),
    (None, "container did not stop", "did not shut down in time", "timeout_s"),
    (500, "hostname lookup 'pve9' failed - failed to get address info", "no node pve9", "pvesh get /nodes"),
    (595, "No route to host", "https://pve1:8006 cannot reach node pve1", "maintenance"),
    (596, "", "cannot reach node pve1", "maintenance"),
    (503, "Service Unavailable", "before https://pve1:8006 answers PUT /nodes/.*It says: 503", "api_port .8006."),
    (502, "Bad Gateway", "before https://pve1:8006 answers", "pveproxy running"),
    (500, "Configuration file 'nodes/pve1/lxc/101.conf' does not exist", "no container 101 on node pve1", "run again"),
    (501, "Method 'GET /x' not implemented", "does not know PUT", "8.2 or newer"),
    (500, "detected modified configuration - file changed by other user? Try again.", "Somebody else keeps changing", "Run again"),
    (
        500,
        "something that nobody foresaw",
        "PUT /nodes/pve1/lxc/101/config failed. Proxmox VE says: 500 something that nobody foresaw.",
        "",
    ),
]


@pytest.mark.parametrize(("status", "text", "what", "remedy"), TOLD)
def test_told(status, text, what, remedy):
    error = pve_errors.explain(text, status=status, **FACTS)
    assert text in error.what
    pytest.raises(pve_errors.PveError, _raise, error).match(f"(?s){what.replace('(', '.').replace(')', '.')}.*{remedy.replace('{', '.')}")


def _raise(error):
    raise error


def test_a_refused_parameter_is_named():
    error = pve_errors.explain(
        "Parameter verification failed.", status=400, fields={"dev0": "value does not match the regex pattern\n"}, **FACTS
    )
    assert "400 Parameter verification failed. dev0: value does not match the regex pattern" in str(error)
    error = pve_errors.explain(
        "Parameter verification failed.", status=400, fields={"dev0": "property is not defined in schema ..."}, **FACTS
    )
    assert "8.2 or newer" in error.remedy


def test_a_lost_path_of_no_node_does_not_name_one():
    error = pve_errors.explain("Connection refused", status=595, **{**FACTS, "node": "", "call": "GET /nodes"})
    assert error.what.startswith("https://pve1:8006 cannot reach what carries out GET /nodes. Proxmox VE says: 595")
    assert "pvedaemon" in error.remedy
    assert error.passing
    assert not error.unanswered


def test_a_ticket_that_is_not_accepted():
    error = pve_errors.explain("authentication failure", status=401, **{**FACTS, "identity": "root@pve"})
    assert "root@pam is not root@pve" in error.remedy


@pytest.mark.parametrize(
    ("status", "kind", "unanswered", "passing"),
    [
        (500, "http", False, False),
        (401, "http", False, False),
        (595, "http", False, True),
        (596, "http", True, True),
        (503, "http", True, True),
        (None, "cut", True, True),
        (None, "timeout", True, True),
        (None, "refused", False, True),
        (None, "tls", False, False),
        (None, "name", False, False),
    ],
)
def test_what_may_have_been_carried_out_and_what_passes(status, kind, unanswered, passing):
    error = pve_errors.PveError("x", status=status, kind=kind)
    assert (error.unanswered, error.passing) == (unanswered, passing)
