# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The harness's own decisions: mirror, addresses, configuration, owners. What starts containers is proved by the scenarios."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import container
import host
import pytest
import rootfs
from host import NETWORK, LabError

DEB822 = """\
# a comment
Types: deb
# another, inside
URIs: https://mirror.example/debian/ http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
DOCKER = "Types: deb\nURIs: https://download.example/linux/debian\nSuites: bookworm\nComponents: stable\n"


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ([], None),
        ([("debian.sources", DEB822)], "https://mirror.example/debian"),
        ([("debian.sources", "Enabled: no\n" + DEB822)], None),
        ([("docker.sources", DOCKER), ("debian.sources", DEB822)], "https://mirror.example/debian"),
        ([("two.sources", DOCKER + "\n" + DEB822)], "https://mirror.example/debian"),
        ([("sources.list", "# deb http://off.example/debian sid main\ndeb http://on.example/debian bookworm main contrib\n")], "http://on.example/debian"),
        ([("sources.list", "deb [arch=amd64 signed-by=/k.gpg] http://on.example/debian/ trixie main\n")], "http://on.example/debian"),
        ([("sources.list", "deb-src http://on.example/debian trixie main\ndeb cdrom:[Debian]/debian trixie main\n")], None),
        ([("ubuntu.list", "deb http://archive.example/ubuntu noble main universe\n")], None),
        ([("pve.list", "deb http://download.example/debian/pve bookworm pve-no-subscription\n")], None),
    ],
)
def test_mirror_comes_from_the_hosts_sources(sources, mirror):
    assert rootfs.mirror_in(sources) == mirror


def _records(*last_bytes):
    return {f"rm-test-x-{byte}": {"address": f"{NETWORK}.{byte}"} for byte in last_bytes}


@pytest.mark.parametrize(
    ("taken", "after", "free"),
    [((), 10, 11), ((), 11, 12), ((12, 13), 11, 14), ((), 199, 11), ((), 254, 11), ((11, 199), 198, 12)],
)
def test_addresses_go_round_and_are_never_shared(taken, after, free):
    assert container.free_address(_records(*taken), after) == free


def test_no_address_left_is_said():
    with pytest.raises(LabError, match=r"all addresses of 10\.77\.0\.0/24 are taken"):
        container.free_address(_records(*range(11, 255)), 40)


def _config(hybrid, **changes):
    record = {"address": f"{NETWORK}.11", "unprivileged": False, "devices": [], **changes}
    return container.config_text("rm-test-x-1", record, hybrid, "linux64").splitlines()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="makes network devices")
def test_the_bridge_keeps_its_address_whoever_comes_and_goes(monkeypatch):
    bridge, port = f"rmtb{os.getpid()}", f"rmtp{os.getpid()}"
    monkeypatch.setattr(host, "BRIDGE", bridge)
    monkeypatch.setattr(host, "NETWORK", "127.77.0")
    try:
        host.run("ip", "link", "add", bridge, "type", "bridge")  # as an earlier version left it
        host.ensure_bridge()
        host.run("ip", "link", "add", port, "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", f"{port}p")
        host.run("ip", "link", "set", port, "master", bridge)
        assert Path(f"/sys/class/net/{bridge}/address").read_text().strip() == host.BRIDGE_ADDRESS
    finally:
        for name in (port, bridge):
            host.run("ip", "link", "delete", name, check=False)


def test_an_unprivileged_container_has_shifted_ids_after_the_common_part():
    lines = _config(hybrid=True, unprivileged=True)
    assert lines.index("lxc.include = /usr/share/lxc/config/common.conf") < lines.index("lxc.include = /usr/share/lxc/config/userns.conf")
    assert {"lxc.idmap = u 0 100000 65536", "lxc.idmap = g 0 100000 65536"} <= set(lines)
    assert not [line for line in _config(hybrid=True) if "idmap" in line or "userns" in line]


@pytest.mark.parametrize(("hybrid", "key"), [(True, "lxc.cgroup.devices.allow"), (False, "lxc.cgroup2.devices.allow")])
def test_a_device_is_bound_and_allowed(hybrid, key):
    lines = _config(hybrid, devices=[["/dev/nvidia0", "c", "1", "3"]])
    assert f"{key} = c 1:3 rwm" in lines
    assert f"lxc.mount.entry = {container.CONTAINERS}/rm-test-x-1/devices/dev/nvidia0 dev/nvidia0 none bind,create=file 0 0" in lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owners_are_raised_once_and_modes_kept(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    setuid = root / "su"
    setuid.write_text("x", encoding="ascii")
    os.chown(setuid, 0, 8)
    setuid.chmod(0o4755)
    os.link(setuid, root / "hard")
    (root / "soft").symlink_to("su")
    rootfs.shift_owners(root, 100000)
    for path, owner in ((root, (100000, 100000)), (setuid, (100000, 100008)), (root / "soft", (100000, 100000))):
        info = os.lstat(path)
        assert (info.st_uid, info.st_gid) == owner
    assert setuid.stat().st_mode & 0o7777 == 0o4755
