# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a Proxmox node does with a container's configuration: a real LXC container from it. `config`: as the API's GET shows it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import container
import rootfs
from host import BRIDGE, LabError, locked, run

Config = dict[str, Any]
API_BRIDGE = "vmbr0"
SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}
CGROUPS = Path("/sys/fs/cgroup")
NODES = container.STATE / "nodes"  # the stand-in devices of each test node
PLUG = Path(__file__).with_name("pve_plug.py")


class StartError(LabError):
    """A container that does not start: the text ends the task, `log` goes into its log before."""

    def __init__(self, what: str, log: list[str] | None = None):
        super().__init__(what)
        self.log = log or []


@dataclass(frozen=True)
class Device:
    path: str
    mode: int = 0o660
    uid: int = 0
    gid: int = 0
    rule: str = "rw"


@dataclass(frozen=True)
class Mount:
    key: str
    source: str  # an absolute path of the node, or "" for a volume
    target: str
    options: tuple[str, ...] = ()


def properties(text: str, first: str) -> dict[str, str]:
    """A property string as a dict; what has no key is the value of `first`."""
    pairs = [part.partition("=") for part in str(text).split(",")]
    return {key if equals else first: value if equals else key for key, equals, value in pairs}


def _numbered(config: Config, prefix: str, first: str) -> list[tuple[str, dict[str, str]]]:
    keys = sorted((key for key in config if re.fullmatch(rf"{prefix}\d+", key)), key=lambda key: int(key.removeprefix(prefix)))
    return [(key, properties(config[key], first)) for key in keys]


def devices_of(config: Config) -> dict[str, Device]:
    """{devN: Device}."""
    return {
        key: Device(
            path=found["path"],
            mode=int(found.get("mode", "0660"), 8),
            uid=int(found.get("uid", 0)),
            gid=int(found.get("gid", 0)),
            rule="r" if found.get("deny-write") == "1" else "rw",
        )
        for key, found in _numbered(config, "dev", "path")
    }


def mounts_of(config: Config) -> dict[str, Mount]:
    """{mpN: Mount}."""
    found = {}
    for key, given in _numbered(config, "mp", "volume"):
        options = [option for option in given.get("mountoptions", "").split(";") if option]
        options += ["ro"] if given.get("ro") == "1" else []
        source = given["volume"] if given["volume"].startswith("/") else ""
        found[key] = Mount(key, source, given["mp"], tuple(options))
    return found


def address_of(config: Config) -> str:
    """The first IPv4 address that a net has; "" without one (there is no DHCP here)."""
    return next((net["ip"].partition("/")[0] for _, net in _numbered(config, "net", "name") if "/" in net.get("ip", "")), "")


def network_lines(config: Config) -> list[str]:
    """LXC's lines for the nets. Raises StartError for a bridge that the node does not have."""
    lines = []
    for key, net in _numbered(config, "net", "name"):
        if net.get("bridge") != API_BRIDGE:
            raise StartError(f"bridge '{net.get('bridge')}' does not exist")
        prefix = f"lxc.net.{key.removeprefix('net')}"
        lines += [f"{prefix}.type = veth", f"{prefix}.link = {BRIDGE}", f"{prefix}.flags = up", f"{prefix}.name = {net['name']}"]
        lines += [f"{prefix}.hwaddr = {net['hwaddr']}"] if "hwaddr" in net else []
        lines += [f"{prefix}.ipv4.address = {net['ip']}"] if "/" in net.get("ip", "") else []
        lines += [f"{prefix}.ipv4.gateway = {net['gw']}"] if "gw" in net else []
    return lines


def cgroup_lines(vmid: int) -> list[str]:
    """The places in the cgroup tree that Proxmox gives to a container: the node sees its processes below /lxc/VMID/ns."""
    return [
        f"lxc.cgroup.dir.container = lxc/{vmid}",
        f"lxc.cgroup.dir.monitor = lxc.monitor/{vmid}",
        "lxc.cgroup.dir.container.inner = ns",
    ]


def clear_cgroups(vmid: int, limit_s: float = 10) -> None:
    """Wait until a container that ended is out of its cgroups, and remove them: LXC leaves some behind, and takes none that is there."""
    deadline = time.monotonic() + limit_s
    while left := [path for hierarchy in (CGROUPS, *CGROUPS.iterdir()) for path in hierarchy.glob(f"lxc*/{vmid}/") if path.is_dir()]:
        for path in left:
            for folder in [*sorted((folder for folder in path.rglob("*/")), reverse=True), path]:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if time.monotonic() > deadline:
            raise LabError(f"{left[0]} is still in use")
        time.sleep(0.02)


def mount_script(root: Path, mounts: list[tuple[Path, Mount]], owner: int) -> str:
    """What mounts before the start, as the host's root, who may go where the container's root may not."""
    lines = ["#!/bin/sh -e", "# Runs in the mount namespace of LXC's monitor: this machine sees nothing of it."]
    for source, mount in mounts:
        target = shlex.quote(f"{root}{mount.target}")
        lines += [f"[ -d {target} ] || install -d -o {owner} -g {owner} {target}"]
        lines += [f"mount -o {shlex.quote(','.join(['bind', *mount.options]))} {shlex.quote(str(source))} {target}"]
    return "\n".join(lines) + "\n"


def errors_in(log: Path) -> list[str]:
    """The messages of the errors that lxc-start logged, as Proxmox prints them: FUNCTION: LINE MESSAGE."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return [f"{found[1]}: {found[2]} {found[3]}" for found in re.finditer(r"ERROR +\S+ - \S+?:(\w+):(\d+) - (.*)", text)]


class Guests:
    """The containers of one test node. Each call blocks until it is done, and raises LabError."""

    def __init__(self, scenario: str, node: str):
        self.scenario, self.node = scenario, node
        self.root = NODES / scenario

    def name(self, vmid: int) -> str:
        return f"rm-test-{self.scenario}-{vmid}"

    def home(self, vmid: int) -> Path:
        return container.CONTAINERS / self.name(vmid)

    def find_device(self, path: str) -> Path:
        """The node's device of that path: a stand-in, or one of this machine's own. Raises LabError in Proxmox's words."""
        node = next((place for place in (Path(f"{self.root}{path}"), Path(path)) if place.exists()), None)
        if node is None:
            raise LabError(f"Device {path} does not exist")
        if not stat.S_ISCHR(node.stat().st_mode) and not stat.S_ISBLK(node.stat().st_mode):
            raise LabError(f"{path} is not a device")
        return node

    def create(self, vmid: int, template: str, unprivileged: bool, keys: list[str]) -> None:
        """The files of a container that was never started. keys: root's authorized_keys."""
        suite = next((suite for prefix, suite in SUITES.items() if Path(template).name.startswith(prefix)), None)
        if not suite:
            raise LabError(f"template {template}: this test node has {', '.join(SUITES)}")
        name = self.name(vmid)
        lower = rootfs.image(suite, shifted=unprivileged)
        with locked(f"container-{name}"):
            if taken := next((n for n, record in container.records().items() if record.get("vmid") == vmid), None):
                raise LabError(f"VMID {vmid} belongs to {taken} on this machine: tests/lab/README.md says which scenario has which")
            record = {"suite": suite, "unprivileged": unprivileged, "devices": [], "address": "", "vmid": vmid}
            record = container.reserve(name, {**record, "scenario": self.scenario, "node": self.node, "lines": []}, lower)
            container.make(name, record, lower, keys)

    def start(self, vmid: int, config: Config) -> int:
        """Start it as the configuration says; returns the pid of its init."""
        name = self.name(vmid)
        with locked(f"container-{name}"):
            record = self._record(vmid)
            lines = cgroup_lines(vmid) + network_lines(config)
            for device in devices_of(config).values():
                node, rule = self._make_node(vmid, device, record)
                lines += container.device_lines(node, device.path, rule, container.HYBRID)
            lines += self._mount_lines(vmid, config, record)
            record = self._update(vmid, address=address_of(config), hostname=config["hostname"], lines=lines)
            clear_cgroups(vmid)
            container.write_names(name, record)
            container.configure(name, record)
            if record["address"]:  # its predecessor had it with another hardware address
                run("ip", "neigh", "flush", "to", record["address"], "dev", BRIDGE)
            try:
                container.start(name)
            except LabError as error:
                log = errors_in(self.home(vmid) / "lxc.log") or str(error).splitlines()
                raise StartError(f"startup for container '{vmid}' failed", log) from None
            return self.pid(vmid) or 0

    def shut_down(self, vmid: int, timeout_s: int) -> bool:
        ended = container.shut_down(self.name(vmid), timeout_s)
        if ended:
            clear_cgroups(vmid)
        return ended

    def kill(self, vmid: int) -> None:
        container.kill(self.name(vmid))
        clear_cgroups(vmid)

    def destroy(self, vmid: int) -> None:
        with locked(f"container-{self.name(vmid)}"):
            container.remove(self.name(vmid))
        clear_cgroups(vmid)

    def pid(self, vmid: int) -> int | None:
        return container.init_pid(self.name(vmid))

    def status(self, vmid: int) -> str:
        return container.status(self.name(vmid))

    def plug(self, vmid: int, key: str, config: Config) -> None:
        """Put a device or a mount into the running container."""
        record, device, mount = self._record(vmid), devices_of(config).get(key), mounts_of(config).get(key)
        if device:
            source, rule = self._make_node(vmid, device, record)
            run("lxc-cgroup", "-P", container.CONTAINERS, "-n", self.name(vmid), "devices.allow", rule)
            target, options = device.path, ()
        elif mount:
            source, target, options = self._source(vmid, mount, record), mount.target, mount.options
        run(sys.executable, PLUG, str(self.pid(vmid)), source, target, str(container.owner_of(record)), *options)

    def _record(self, vmid: int) -> container.Record:
        record = container.records().get(self.name(vmid))
        if not record:
            raise LabError(f"the container {self.name(vmid)} is gone: somebody removed it from this machine")
        return record

    def _update(self, vmid: int, **fields: Any) -> container.Record:
        """Write into its record what the configuration says, if the address is free."""
        with container.state() as kept:
            known = kept["containers"]
            holders = [name for name, record in known.items() if record["address"] == fields["address"] != "" and name != self.name(vmid)]
            if holders:
                raise StartError(f"address {fields['address']} belongs to {holders[0]} on this machine")
            known[self.name(vmid)].update(fields)
            container.write_known_hosts(known)
            return known[self.name(vmid)]

    def _make_node(self, vmid: int, device: Device, record: container.Record) -> tuple[Path, str]:
        """A node of the container's own, with mode and owner; returns it and the rule that allows it."""
        found = self.find_device(device.path).stat()
        kind, base = "b" if stat.S_ISBLK(found.st_mode) else "c", container.owner_of(record)
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        node = Path(f"{self.home(vmid)}/devices{device.path}")
        container.make_node(node, kind, major, minor, device.mode, (base + device.uid, base + device.gid))
        return node, f"{kind} {major}:{minor} {device.rule}"

    def _mount_lines(self, vmid: int, config: Config, record: container.Record) -> list[str]:
        mounts = [(self._source(vmid, mount, record), mount) for mount in mounts_of(config).values()]
        hook = self.home(vmid) / "pre-start"
        hook.write_text(mount_script(self.home(vmid) / "rootfs", mounts, container.owner_of(record)), encoding="utf-8")
        hook.chmod(0o755)
        return ["lxc.monitor.unshare = 1", f"lxc.hook.pre-start = {hook}"] if mounts else []

    def _source(self, vmid: int, mount: Mount, record: container.Record) -> Path:
        """What is mounted; a volume's directory is made when it is not there yet."""
        if mount.source:
            if not Path(mount.source).is_dir():
                raise StartError(f"startup for container '{vmid}' failed", [f"directory '{mount.source}' does not exist"])
            return Path(mount.source)
        volume = self.home(vmid) / "volumes" / mount.key
        if not volume.exists():
            volume.mkdir(parents=True)
            os.chown(volume, container.owner_of(record), container.owner_of(record))
        return volume
