# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is sent for the difference between what is wanted and what is. Names of cases tell the problem that others had."""

from __future__ import annotations

import re

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import pve_container, pve_wanted
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.modules import proxmox_container
from pve_lab import checked

CONFIG = {
    "hostname": "infer1",
    "memory": "512",
    "swap": "512",
    "unprivileged": "1",
    "ostype": "debian",
    "arch": "amd64",
    "description": "foo\n",
    "tags": "gpu;sglang",
    "features": "keyctl=1,nesting=1",
    "rootfs": "local-lvm:vm-101-disk-0,size=8G",
    "dev0": "/dev/nvidia0,mode=0666",
    "dev1": "/dev/nvidiactl",
    "mp0": "/tank/models,mp=/models,ro=1",
    "mp1": "local-lvm:vm-101-disk-1,mp=/data,backup=1,size=4G",
    "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,type=veth",
}
ETH0 = {"name": "eth0", "bridge": "vmbr0", "ip": "dhcp"}
MODELS = {"source": "/tank/models", "target": "/models", "read_only": True}
DATA = {"source": "local-lvm", "target": "/data", "size_gib": 4, "backup": True}
NVIDIA0, NVIDIACTL = {"path": "/dev/nvidia0", "mode": "0666"}, {"path": "/dev/nvidiactl"}


def wanted(**options):
    return pve_wanted.wanted(checked(proxmox_container, {"vmid": 101, **options}))


def guest(config=None, running=None, **facts):
    """A container; CONFIG and RUNNING say what differs from CONFIG, None for a key that is not there."""

    def merged(changes):
        return {key: text for key, text in {**CONFIG, **(changes or {})}.items() if text is not None}

    return pve_container.Guest(101, "pve1", merged(config), merged(config if running is None else running), **facts)


def sent(options, config=None, running=None):
    """What would be sent, without what is empty."""
    made = pve_container.plan(wanted(**options), guest(config, running))
    found = {"set": made.set, "delete": made.delete, "revert": made.revert, "resize": made.resize}
    return {name: value for name, value in found.items() if value}


NOTHING = {
    "nothing is asked for": ({}, {}),
    "all is as asked for": (
        {
            "hostname": "infer1",
            "memory": 512,
            "tags": ["SGLang", "gpu"],
            "features": {"nesting": True, "keyctl": True},
            "devices": [NVIDIACTL, NVIDIA0],
            "mounts": [DATA, MODELS],
            "networks": [ETH0],
            "rootfs": {"storage": "local-lvm", "size_gib": 8},
            "unprivileged": True,
        },
        {},
    ),
    "a description ends with a new line": ({"description": "foo"}, {}),
    "storage:size again, and the volume is there (new volumes each run)": ({"mounts": [MODELS, {**DATA, "source": "local-lvm:4"}]}, {}),
    "the size in another unit": ({"rootfs": {"storage": "local-lvm", "size_gib": 8}}, {"rootfs": "local-lvm:x,size=8192M"}),
    "a storage has rounded the size up": ({"rootfs": {"storage": "local-lvm", "size_gib": 0.1}}, {"rootfs": "local-lvm:x,size=104M"}),
    "tokens in another order": ({"networks": [ETH0]}, {"net0": "type=veth,ip=dhcp,hwaddr=BC:24:11:00:00:01,bridge=vmbr0,name=eth0"}),
    "false and not there": ({"onboot": False, "extra": {"protection": False, "cmode": "tty"}}, {}),
    "what is to go is not there": ({"nameserver": [], "extra": {"startup": None, "dev9999x": None}}, {}),
    "a device in its long form": ({"devices": [NVIDIA0, NVIDIACTL]}, {"dev1": "path=/dev/nvidiactl,mode=0660"}),
    "a volume whose target has a doubled slash (another, empty one)": (
        {"mounts": [MODELS, {**DATA, "target": "/srv/data"}]},
        {"mp1": "local-lvm:vm-101-disk-1,mp=/srv//data/./,backup=1,size=4G"},
    ),
    "paths in another spelling": (
        {"mounts": [MODELS, DATA], "devices": [NVIDIA0, NVIDIACTL]},
        {"mp0": "/tank//models/,mp=/models/,ro=1", "dev1": "/dev//nvidiactl"},
    ),
    "what starts it by itself": ({"extra": {"entrypoint": "/sbin/init"}}, {}),
    "a description of nothing": ({"description": "\n"}, {"description": None}),
    "startup in another order": ({"extra": {"startup": "up=5,order=1"}}, {"startup": "order=1,up=5"}),
    "more properties of rootfs": (
        {"rootfs": {"storage": "local-lvm", "size_gib": 8}},
        {"rootfs": "local-lvm:x,mountoptions=noatime,size=8G"},
    ),
}


@pytest.mark.parametrize("case", NOTHING)
def test_nothing_is_sent(case):
    options, config = NOTHING[case]
    assert sent(options, config) == {}


SENT = {
    "one value": ({"memory": 1024}, {"set": {"memory": "1024"}}),
    "no limit": ({"cores": 0}, {"delete": ["cores"]}, {"cores": "4"}),
    "a token that was dropped, of features": ({"features": {"nesting": True}}, {"set": {"features": "nesting=1"}}),
    "all features dropped": ({"features": {}}, {"delete": ["features"]}),
    "a token that was dropped, of a mount": (
        {"mounts": [{**MODELS, "read_only": False}, DATA]},
        {"set": {"mp0": "/tank/models,mp=/models"}},
    ),
    "an option of a mount, its size kept": (
        {"mounts": [MODELS, {**DATA, "backup": False, "quota": True}]},
        {"set": {"mp1": "local-lvm:vm-101-disk-1,mp=/data,quota=1,size=4G"}},
    ),
    "one device more takes the lowest free number": (
        {"devices": [NVIDIA0, {"path": "/dev/nvidia-uvm"}, NVIDIACTL]},
        {"set": {"dev2": "/dev/nvidia-uvm"}},
    ),
    "one device less leaves the numbers of the others": ({"devices": [NVIDIACTL]}, {"delete": ["dev0"]}),
    "a gap is filled": (
        {"devices": [{"path": "/dev/a"}, {"path": "/dev/b"}]},
        {"set": {"dev1": "/dev/b"}, "delete": ["dev2"]},
        {"dev0": "/dev/a", "dev1": None, "dev2": "/dev/c"},
    ),
    "a new one does not take the number of one that goes": (
        {"devices": [NVIDIACTL, {"path": "/dev/nvidia5"}]},
        {"set": {"dev2": "/dev/nvidia5"}, "delete": ["dev0"]},
    ),
    "no devices": ({"devices": []}, {"delete": ["dev0", "dev1"]}),
    "the mode of a device": ({"devices": [{**NVIDIA0, "mode": "0600"}, NVIDIACTL]}, {"set": {"dev0": "/dev/nvidia0,mode=0600"}}),
    "the same device twice on the container": (
        {"devices": [NVIDIA0, NVIDIACTL]},
        {"delete": ["dev7"]},
        {"dev7": "/dev/nvidia0"},
    ),
    "a network keeps its MAC address": (
        {"networks": [{**ETH0, "tag": 7}]},
        {"set": {"net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,tag=7,type=veth"}},
    ),
    "a MAC address that is asked for": (
        {"networks": [{**ETH0, "hwaddr": "BC:24:11:00:00:02"}]},
        {"set": {"net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:02,ip=dhcp,type=veth"}},
    ),
    "a second network": (
        {"networks": [ETH0, {"name": "ib0", "bridge": "vmbr1", "mtu": 9000}]},
        {"set": {"net1": "name=ib0,bridge=vmbr1,mtu=9000"}},
    ),
    "a new volume": ({"mounts": [MODELS, DATA, {**DATA, "target": "/new"}]}, {"set": {"mp2": "local-lvm:4,mp=/new,backup=1"}}),
    "a directory keeps what nobody can ask for, in whatever spelling": (
        {"mounts": [{**MODELS, "read_only": False}, DATA]},
        {"set": {"mp0": "/tank/models,mp=/models,keepattrs=1"}},
        {"mp0": "/tank/models/,mp=/models,ro=1,keepattrs=1"},
    ),
    "a volume of many digits": (
        {"mounts": [MODELS, DATA, {"source": "tank", "target": "/new", "size_gib": 18626.451}]},
        {"set": {"mp2": "tank:18626.451,mp=/new"}},
    ),
    "a volume of 2 PiB": (
        {"mounts": [MODELS, DATA, {"source": "tank:2000000", "target": "/new"}]},
        {"set": {"mp2": "tank:2000000,mp=/new"}},
    ),
    "a volume grows": ({"mounts": [MODELS, {**DATA, "size_gib": 6}]}, {"resize": {"mp1": 6 << 30}}),
    "the root grows": ({"rootfs": {"storage": "local-lvm", "size_gib": 16}}, {"resize": {"rootfs": 16 << 30}}),
    "a mount of another directory": (
        {"mounts": [{**MODELS, "source": "/tank2"}, DATA]},
        {"set": {"mp0": "/tank2,mp=/models,ro=1"}},
    ),
    "a mount goes": ({"mounts": [DATA]}, {"delete": ["mp0"]}),
    "a volume that could not be made before": (
        {"mounts": [MODELS, DATA]},
        {"set": {"mp1": "local-lvm:4,mp=/data,backup=1"}},
        {"mp1": "local-lvm:4,mp=/data,backup=1"},
    ),
    "tags": ({"tags": ["gpu"]}, {"set": {"tags": "gpu"}}),
    "name servers in another order": ({"nameserver": ["b", "a"]}, {"set": {"nameserver": "b a"}}, {"nameserver": "a b"}),
    "a description goes": ({"description": ""}, {"delete": ["description"]}),
    "extra": ({"extra": {"timezone": "host", "startup": "order=1"}}, {"set": {"timezone": "host", "startup": "order=1"}}),
}


@pytest.mark.parametrize("case", SENT)
def test_sent(case):
    options, expected, *config = SENT[case]
    found = sent(options, *config)
    assert found == expected
    # And once it is there, nothing more is sent: the forecast is what was wanted, with volumes made.
    now = guest(*config)
    after = pve_container.forecast(now, pve_container.plan(wanted(**options), now))
    made = {key: re.sub(r"^([\w-]+):([\d.]+),", r"\1:vm-101-disk-9,size=\2G,", text) for key, text in after.config.items()}
    assert not pve_container.plan(wanted(**options), now._replace(config=made, running=made))


PENDING = {
    "a pending deletion of what is wanted is taken back": ({"devices": [NVIDIA0, NVIDIACTL]}, {"dev0": None}, {}, {"revert": ["dev0"]}),
    "a pending deletion of what is wanted otherwise": (
        {"devices": [{**NVIDIA0, "mode": "0600"}, NVIDIACTL]},
        {"dev0": None},
        {},
        {"set": {"dev0": "/dev/nvidia0,mode=0600"}},
    ),
    "a pending change to something else": (
        {"features": {"nesting": True, "keyctl": True}},
        {"features": "nesting=1"},
        {},
        {"revert": ["features"]},
    ),
    "a pending change to what is wanted is left to wait": ({"features": {"nesting": True}}, {"features": "nesting=1"}, {}, {}),
    "a pending deletion of what is to go is left to wait": ({"devices": [NVIDIACTL]}, {"dev0": None}, {}, {}),
    "a pending key that is not wanted": ({"nameserver": []}, {"nameserver": "a"}, {"nameserver": None}, {"revert": ["nameserver"]}),
    "another device pending under the number": (
        {"devices": [NVIDIA0, NVIDIACTL]},
        {"dev0": "/dev/nvidia7"},
        {},
        {"revert": ["dev0"]},
    ),
    "a number whose deletion is pending is not free": (
        {"devices": [NVIDIACTL, {"path": "/dev/nvidia5"}]},
        {"dev0": None},
        {},
        {"set": {"dev2": "/dev/nvidia5"}},
    ),
    "a mount whose deletion is pending comes back with its volume": ({"mounts": [MODELS, DATA]}, {"mp1": None}, {}, {"revert": ["mp1"]}),
    "what nobody asks about is left to wait": ({"memory": 512}, {"features": "nesting=1", "dev0": None}, {}, {}),
}


@pytest.mark.parametrize("case", PENDING)
def test_pending(case):
    options, config, running, expected = PENDING[case]
    assert sent(options, config, running) == expected


REFUSED = {
    "unprivileged": ({"unprivileged": False}, {}, "is unprivileged, which cannot be changed.*restore with --unprivileged 0"),
    "privileged": ({"unprivileged": True}, {"unprivileged": None}, "is privileged, which cannot"),
    "another storage for the root": (
        {"rootfs": {"storage": "zfs", "size_gib": 8}},
        {},
        "is on local-lvm, not on zfs.*pct move-volume 101 rootfs zfs",
    ),
    "a smaller root": ({"rootfs": {"storage": "local-lvm", "size_gib": 4}}, {}, "cannot shrink to 4 GiB.*size_gib: 8"),
    "a smaller volume": ({"mounts": [MODELS, {**DATA, "size_gib": 1}]}, {}, "/data has 4 GiB and cannot shrink"),
    "a root of many digits": (
        {"rootfs": {"storage": "local-lvm", "size_gib": 18626.451}},
        {"rootfs": "local-lvm:x,size=2000000G"},
        "has 2000000 GiB and cannot shrink to 18626.451 GiB.*size_gib: 2000000[.]",
    ),
    "a new volume in place of one": ({"mounts": [MODELS, {**DATA, "source": "zfs"}]}, {}, "not a volume on zfs.*hide what is there"),
    "a new volume in place of a directory": (
        {"mounts": [{"source": "local-lvm", "size_gib": 4, "target": "/models"}, DATA]},
        {},
        "is /tank/models .mp0., not a volume on local-lvm",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    options, config, words = REFUSED[case]
    with pytest.raises(RingmasterError, match=words):
        sent(options, config)


@pytest.mark.parametrize(("pool", "words"), [("prod", "is in pool prod, not in test"), ("", "is in no pool, not in test")])
def test_another_pool_is_refused(pool, words):
    with pytest.raises(RingmasterError, match=words):
        pve_container.plan(wanted(pool="test"), guest(pool=pool))


def test_a_volume_that_is_taken_out_is_named():
    (note,) = pve_container.plan(wanted(mounts=[MODELS]), guest()).notes
    assert "local-lvm:vm-101-disk-1" in note
    assert "kept on its storage as unused" in note
    (note,) = pve_container.plan(wanted(mounts=[MODELS, {"source": "/tank/data", "target": "/data"}]), guest()).notes
    assert "local-lvm:vm-101-disk-1" in note


RESTART = {
    "memory, cores, tags, a network at once": ({"memory": 1024, "cores": 2, "tags": ["a"], "networks": [{**ETH0, "tag": 7}]}, []),
    "a new device at once": ({"devices": [NVIDIA0, NVIDIACTL, {"path": "/dev/nvidia-uvm"}]}, []),
    "a new mount at once": ({"mounts": [MODELS, DATA, {"source": "/a", "target": "/a"}]}, []),
    "a changed device at the next start": ({"devices": [{**NVIDIA0, "mode": "0600"}, NVIDIACTL]}, ["dev0"]),
    "a device that goes at the next start": ({"devices": [NVIDIACTL]}, ["dev0"]),
    "features at the next start": ({"features": {"nesting": True}}, ["features"]),
    "a bigger volume at once": ({"rootfs": {"storage": "local-lvm", "size_gib": 16}}, []),
    "a name server at the next start": ({"nameserver": ["a"]}, ["nameserver"]),
}


@pytest.mark.parametrize("case", RESTART)
def test_what_waits_for_a_restart(case):
    """A stopped container takes everything at once."""
    options, keys = RESTART[case]
    now = guest(status="running")
    made = pve_container.plan(wanted(**options), now)
    assert [row["key"] for row in pve_container.pending(pve_container.forecast(now, made))] == keys
    assert pve_container.pending(pve_container.forecast(now._replace(status="stopped"), made)) == []


def test_pending_says_what_is_in_force_and_what_will_be():
    now = guest({"dev0": None, "features": "nesting=1", "nameserver": "a"}, {}, status="running")
    assert pve_container.pending(now) == [
        {"key": "dev0", "value": "/dev/nvidia0,mode=0666"},
        {"key": "features", "value": "keyctl=1,nesting=1", "pending": "nesting=1"},
        {"key": "nameserver", "pending": "a"},
    ]


def test_creation_sends_everything_in_one_call():
    """Devices are in it: they are not left for a second run."""
    options = {
        "ostemplate": "local:vztmpl/debian.tar.zst",
        "rootfs": {"storage": "local-lvm", "size_gib": 1234567.125},
        "devices": [NVIDIA0, NVIDIACTL],
        "mounts": [DATA],
        "networks": [ETH0],
        "features": {"nesting": True},
        "pool": "prod",
        "password": "geheim",
        "ssh_public_keys": ["ssh-ed25519 A a ", "ssh-ed25519 B b"],
        "hostname": "infer1",
    }
    params = checked(proxmox_container, {"vmid": 101, **options})
    assert pve_container.creation(pve_wanted.wanted(params), params) == {
        "vmid": "101",
        "ostemplate": "local:vztmpl/debian.tar.zst",
        "rootfs": "local-lvm:1234567.125",
        "unprivileged": "1",
        "pool": "prod",
        "password": "geheim",
        "ssh-public-keys": "ssh-ed25519 A a\nssh-ed25519 B b",
        "hostname": "infer1",
        "features": "nesting=1",
        "dev0": "/dev/nvidia0,mode=0666",
        "dev1": "/dev/nvidiactl",
        "mp0": "local-lvm:4,mp=/data,backup=1",
        "net0": "name=eth0,bridge=vmbr0,ip=dhcp",
    }


def test_creation_without_what_it_needs():
    params = checked(proxmox_container, {"vmid": 101})
    with pytest.raises(RingmasterError, match="There is no container 101, and ostemplate and rootfs to create it is not given"):
        pve_container.creation(pve_wanted.wanted(params), params)
