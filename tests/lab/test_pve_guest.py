# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container's configuration means to the test node: devices, mounts, nets."""

from __future__ import annotations

from pathlib import Path

import pve_guest
import pytest
from pve_guest import Device, Mount


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("/dev/nvidia0", Device("/dev/nvidia0")),
        ("path=/dev/nvidia0", Device("/dev/nvidia0")),
        ("/dev/nvidia0,gid=44,mode=0666", Device("/dev/nvidia0", mode=0o666, gid=44)),
        ("deny-write=1,uid=1000,path=/dev/x", Device("/dev/x", uid=1000, rule="r")),
    ],
)
def test_a_device_is_read(text, device):
    assert pve_guest.devices_of({"dev3": text, "devices": "no"}) == {"dev3": device}


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/srv/models,mp=/models", Mount("mp0", "/srv/models", "/models")),
        ("/srv/models,mp=/models,ro=1", Mount("mp0", "/srv/models", "/models", ("ro",))),
        ("local-lvm:vm-121-disk-1,mp=/data,size=8G,mountoptions=noatime;nosuid", Mount("mp0", "", "/data", ("noatime", "nosuid"))),
    ],
)
def test_a_mount_is_read(text, mount):
    assert pve_guest.mounts_of({"mp0": text}) == {"mp0": mount}


def test_keys_go_by_number():
    assert list(pve_guest.devices_of({f"dev{n}": "/dev/null" for n in (10, 2, 0)})) == ["dev0", "dev2", "dev10"]


def test_a_net_becomes_a_veth_on_the_bridge_of_the_tests():
    config = {
        "net0": "name=eth0,bridge=vmbr0,gw=10.77.0.1,hwaddr=BC:24:11:00:00:01,ip=10.77.0.221/24,type=veth",
        "net1": "name=b,bridge=vmbr0,ip=dhcp",
    }
    lines = pve_guest.network_lines(config)
    assert {"lxc.net.0.link = rmtest0", "lxc.net.0.ipv4.address = 10.77.0.221/24", "lxc.net.0.ipv4.gateway = 10.77.0.1"} <= set(lines)
    assert not [line for line in lines if line.startswith("lxc.net.1.ipv4")]
    assert pve_guest.address_of(config) == "10.77.0.221"
    with pytest.raises(pve_guest.StartError, match=r"^bridge 'vmbr9' does not exist$"):
        pve_guest.network_lines({"net0": "name=eth0,bridge=vmbr9"})


def test_blanks_in_a_mount_stay_together():
    script = pve_guest.mount_script(Path("/root fs"), [(Path("/srv/a b"), Mount("mp0", "/srv/a b", "/c d", ("ro",)))], 100000)
    assert "mount -o bind,ro '/srv/a b' '/root fs/c d'" in script.splitlines()


def test_errors_of_lxc_are_found(tmp_path):
    log = tmp_path / "lxc.log"
    log.write_text(
        "lxc-start a 20261130060409.564 INFO     conf - ../src/lxc/conf.c:lxc_setup:4518 - The container is set up\n"
        'lxc-start a 20261130060409.564 ERROR    start - ../src/lxc/start.c:__lxc_start:2034 - Failed to initialize container "101"\n',
        encoding="utf-8",
    )
    assert pve_guest.errors_in(log) == ['__lxc_start: 2034 Failed to initialize container "101"']
