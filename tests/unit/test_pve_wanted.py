# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task asks for, and what is refused before anything is read."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import pve_container, pve_wanted
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.modules import proxmox_container
from pve_lab import WHOLE, checked


def asked(**options):
    return pve_wanted.wanted(checked(proxmox_container, {"vmid": 101, **options}))


def properties(option, *rows):
    return [item.properties for item in asked(**{option: list(rows)}).lists[option]]


def test_left_out_is_no_opinion_and_empty_is_none():
    assert asked() == pve_wanted.Wanted(101, {}, None, dict.fromkeys(pve_wanted.LISTS), None, None, None, None)
    found = asked(devices=[], tags=[], nameserver=[], features={}, description="\n", cores=0)
    assert found.lists["devices"] == []
    assert found.scalars == {"tags": None, "nameserver": None, "description": None, "cores": None}
    assert found.features is not None


def test_values_as_proxmox_writes_them():
    found = asked(**WHOLE).scalars
    assert found == {
        "hostname": "infer1",
        "description": "serves\nmodels",
        "tags": "gpu;sglang",
        "cores": "4",
        "memory": "2048",
        "swap": "0",
        "onboot": "1",
        "nameserver": "192.0.2.53",
        "startup": "order=2,up=5",
        "protection": "0",
    }


@pytest.mark.parametrize(
    ("value", "text"), [(1.5, "1.5"), (2.0, "2"), (2000000.0, "2000000"), (0.1 + 0.2, "0.3"), (None, None), ("", None), ("4", "4")]
)
def test_extra(value, text):
    assert asked(extra={"cpulimit": value}).scalars == {"cpulimit": text}


def test_devices():
    rows = properties("devices", {"path": "/dev/nvidia0", "mode": 0o666, "gid": 44}, {"path": "/dev/nvidiactl", "deny_write": True})
    assert rows == [
        {"path": "/dev/nvidia0", "mode": "0666", "gid": "44", "deny-write": "0"},
        {"path": "/dev/nvidiactl", "deny-write": "1"},
    ]


@pytest.mark.parametrize(
    ("row", "volume", "storage", "size"),
    [
        ({"source": "/tank/models/", "target": "/models"}, "/tank/models", None, None),
        ({"source": "/dev/sdb1", "target": "/models"}, "/dev/sdb1", None, None),
        ({"source": "local-lvm", "target": "/models", "size_gib": 8}, None, "local-lvm", 8 << 30),
        ({"source": "local-lvm:8", "target": "/models"}, None, "local-lvm", 8 << 30),
        ({"source": "local-lvm:vm-101-disk-1", "target": "/models"}, "local-lvm:vm-101-disk-1", None, None),
        ({"source": "local-lvm:vm-101-disk-1", "target": "/models", "size_gib": 8}, "local-lvm:vm-101-disk-1", None, 8 << 30),
    ],
)
def test_sources_of_a_mount(row, volume, storage, size):
    (item,) = asked(mounts=[row]).lists["mounts"]
    assert (item.properties.get("volume"), item.storage, item.bytes) == (volume, storage, size)


@pytest.mark.parametrize(
    ("option", "row", "token", "text"),
    [
        ("devices", {"path": "/dev//nvidia-caps/nvidia-cap1"}, "path", "/dev/nvidia-caps/nvidia-cap1"),
        ("devices", {"path": "/dev/..a/.b"}, "path", "/dev/..a/.b"),
        ("networks", {"name": "eth0", "hwaddr": "bc-24-11-00-00-01"}, "hwaddr", "bc:24:11:00:00:01"),
        ("mounts", {"source": "//tank//models/", "target": "/a"}, "volume", "/tank/models"),
    ],
)
def test_one_spelling_is_sent(option, row, token, text):
    assert properties(option, row)[0][token] == text


@pytest.mark.parametrize("target", ["/models", "/models/", "models", "//models"])
def test_a_target_in_any_spelling(target):
    assert properties("mounts", {"source": "/tank", "target": target})[0]["mp"] == "/models"


REFUSED = {
    "raw lxc keys": (
        {"extra": {"lxc.cgroup2.devices.allow": "c 195:* rwm"}},
        "from nobody.*devN.*/etc/pve/lxc/101.conf",
    ),
    "lxc whole": ({"extra": {"lxc": []}}, "does not accept"),
    "a device as extra": ({"extra": {"dev0": "/dev/nvidia0"}}, "Use devices"),
    "a mount as extra": ({"extra": {"mp12": "/a,mp=/b"}}, "Use mounts"),
    "an option as extra": ({"extra": {"memory": 1}}, "Use memory"),
    "no setting": ({"extra": {"digest": "x"}}, "not a setting"),
    "memory cannot go away": ({"extra": {"ostype": None}}, "ostype cannot be taken away"),
    "one device twice": ({"devices": [{"path": "/dev/a"}, {"path": "/dev/a"}]}, "/dev/a is there more than once"),
    "one target twice": ({"mounts": [{"source": "/a", "target": "/c"}, {"source": "/b", "target": "/c/"}]}, "/c is there more than once"),
    "no device": ({"devices": [{"path": "nvidia0"}]}, "no path below /dev/"),
    "a way out of /dev": ({"devices": [{"path": "/dev/../etc/passwd"}]}, "/dev/../etc/passwd is no path below /dev/, or has"),
    "a dot in a path": ({"devices": [{"path": "/dev/./nvidia0"}]}, "has . or .. in it"),
    "/dev itself": ({"devices": [{"path": "/dev/"}]}, "no path below /dev/"),
    "a device in two spellings": ({"devices": [{"path": "/dev/a"}, {"path": "/dev//a"}]}, "/dev/a is there more than once"),
    "words where text belongs": ({"extra": {"startup": {"order": 2}}}, "extra: startup is {'order': 2}.*order=2,up=30"),
    "words in a list": ({"extra": {"env": [{"A": 1}]}}, "extra: env is "),
    "what only a creation takes": ({"extra": {"ha-managed": True}}, "ha-managed is not a setting"),
    "a comma in a path": ({"devices": [{"path": "/dev/a,mode=0777"}]}, "comma"),
    "a comma in a name": ({"networks": [{"name": "eth0,tag=7"}]}, "comma"),
    "a storage without size": ({"mounts": [{"source": "local-lvm", "target": "/a"}]}, "no size_gib"),
    "a directory with size": ({"mounts": [{"source": "/a", "target": "/a", "size_gib": 8}]}, "only a volume has a size"),
    "no size": ({"rootfs": {"storage": "local-lvm", "size_gib": 0}}, "above 0"),
    "an unknown mode": ({"devices": [{"path": "/dev/a", "mode": "rw"}]}, "quotes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    options, words = REFUSED[case]
    with pytest.raises(RingmasterError, match=words):
        asked(**options)


def test_what_is_described_can_be_asked_for():
    """The words of the answer are those of the options: fed back, they are no difference."""
    config = {
        "hostname": "a",
        "memory": "512",
        "description": "foo\n",
        "tags": "a;b",
        "rootfs": "local-lvm:vm-101-disk-0,size=8G",
        "features": "nesting=1,mount=nfs;cifs",
        "dev0": "path=/dev/nvidia0,mode=0666",
        "dev10": "/dev/nvidia1",
        "mp3": "local-lvm:vm-101-disk-1,mp=/data,backup=1,size=512M",
        "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,type=veth,trunks=5;6",
        "unprivileged": "1",
        "arch": "amd64",
    }
    found = pve_wanted.described(config, [["lxc.apparmor.profile", "unconfined"]])
    assert found["description"] == "foo"
    assert found["devices"][1] == {"key": "dev10", "path": "/dev/nvidia1", "mode": "0660", "uid": 0, "gid": 0, "deny_write": False}
    assert found["mounts"][0]["size_gib"] == 0.5
    assert found["networks"][0]["trunks"] == ["5", "6"]
    assert found["features"]["mount"] == ["cifs", "nfs"]
    assert found["rootfs"] == {"volume": "local-lvm:vm-101-disk-0", "storage": "local-lvm", "size_gib": 8.0}
    assert found["extra"] == {"arch": "amd64"}
    assert found["lxc"] == [["lxc.apparmor.profile", "unconfined"]]
    options = {name: found[name] for name in ("hostname", "memory", "description", "tags", "features", "onboot", "unprivileged")}
    for option in pve_wanted.LISTS:
        options[option] = [{word: value for word, value in row.items() if word != "key"} for row in found[option]]
    assert not pve_container.plan(asked(**options), pve_container.Guest(101, "pve1", config, config))


def test_what_is_described_of_a_volume_that_is_still_to_be_made():
    found = pve_wanted.described({"rootfs": "local-lvm:8", "mp0": "local-lvm:2,mp=/data"}, [])
    assert found["rootfs"] == {"volume": None, "storage": "local-lvm", "size_gib": 8.0}
    assert (found["mounts"][0]["source"], found["mounts"][0]["size_gib"]) == ("local-lvm", 2.0)
