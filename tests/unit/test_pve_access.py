# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Proxmox VE takes from root@pam alone, in its own words; each row is a case of its permission check."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import pve_access
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

TOKEN, OTHER = "root@pam!ansible", "ansible@pve"
REFUSED = {
    "a device": ({"dev0": "/dev/nvidia0"}, {}, True),
    "a device that goes": ({"dev12": None}, {"dev12": "/dev/nvidia0"}, True),
    "a bind mount": ({"mp0": "/tank,mp=/a"}, {}, True),
    "a bind mount in its long form": ({"mp0": "mp=/a,volume=/tank"}, {}, True),
    "a device mount": ({"mp0": "/dev/sdb1,mp=/a"}, {}, True),
    "a hook script": ({"hookscript": "local:snippets/a"}, {}, True),
    "keyctl": ({"features": "nesting=1,keyctl=1"}, {}, True),
    "keyctl besides nesting": ({"features": "nesting=1,keyctl=1"}, {"features": "nesting=1"}, True),
    "keyctl off where there was nothing": ({"features": "nesting=1,keyctl=0"}, {"features": "nesting=1"}, True),
    "keyctl that goes": ({"features": "nesting=1"}, {"features": "nesting=1,keyctl=1"}, True),
    "all features that go, keyctl among them": ({"features": None}, {"features": "keyctl=1,nesting=1"}, True),
    "mounts of file systems": ({"features": "mount=nfs"}, {}, True),
    "nesting off where there was nothing": ({"features": "nesting=0"}, {}, True),
    "nesting of a privileged container": ({"features": "nesting=1"}, {}, False),
    "a template by its path": ({"ostemplate": "/root/debian.tar"}, {}, True),
}
TAKEN = {
    "nesting": ({"features": "nesting=1"}, {}, True),
    "nesting that goes": ({"features": None}, {"features": "nesting=1"}, True),
    "nesting besides keyctl, which stays": ({"features": "nesting=1,keyctl=1"}, {"features": "keyctl=1"}, True),
    "keyctl in another word, which stays": ({"features": "nesting=1,keyctl=1"}, {"features": "keyctl=yes"}, True),
    "a volume": ({"mp0": "local-lvm:8,mp=/a", "rootfs": "local-lvm:8"}, {}, True),
    "a bind mount that goes": ({"mp0": None}, {"mp0": "/tank,mp=/a"}, True),
    "values": ({"memory": "1", "net0": "name=eth0", "hostname": "a", "tags": "a", "ostemplate": "local:vztmpl/a"}, {}, True),
    "nothing": ({}, {"dev0": "/dev/nvidia0", "features": "keyctl=1"}, False),
}


@pytest.mark.parametrize("identity", [TOKEN, OTHER, "root@pve", "root@pam!", "ROOT@pam"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused_to_all_but_root(case, identity):
    changes, running, unprivileged = REFUSED[case]
    found = pve_access.root_only(identity, changes, running, unprivileged)
    assert [key for key, _what in found] == list(changes)
    assert pve_access.root_only("root@pam", changes, running, unprivileged) == []


@pytest.mark.parametrize("case", TAKEN)
def test_taken_from_others(case):
    assert pve_access.root_only(TOKEN, *TAKEN[case]) == []


def test_the_message_names_the_keys_the_identity_and_two_ways_out():
    with pytest.raises(RingmasterError) as caught:
        pve_access.check(TOKEN, {"dev0": "/dev/nvidia0", "mp0": "/a,mp=/a", "memory": "1"}, {}, True, 101)
    message = str(caught.value)
    for words in (
        "dev0 (device)",
        "mp0 (mount of a path of the node)",
        "the identity in use is root@pam!ansible",
        "is a token, and so not root@pam",
        "api_user: root@pam with api_password",
        "leave api_host out and run the task on the node",
        "Nothing was sent",
    ):
        assert words in message
    assert "memory" not in message
    with pytest.raises(RingmasterError) as caught:
        pve_access.check(OTHER, {"dev0": "/dev/nvidia0"}, {}, True, 101)
    assert "token, and so" not in str(caught.value)
