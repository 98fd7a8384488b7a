# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One LXC container as a small machine: its record, its files, its configuration, how it starts and ends.

A record: {suite, unprivileged, devices, address, host_key}; that of a Proxmox node's container (pve_guest.py) has more.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from pathlib import Path
from typing import Any

from host import BRIDGE, ID_BASE, ID_COUNT, NETWORK, STATE, LabError, ensure_bridge, ensure_id_range, remove_tree, run, say, state

NAME = re.compile(r"rm-test-[a-z0-9][a-z0-9-]{0,40}")
CONTAINERS = STATE / "containers"
KEY = STATE / "id_ed25519"
KNOWN_HOSTS = STATE / "known_hosts"
HYBRID = Path("/sys/fs/cgroup/devices").is_dir()  # cgroup version 1 carries the controllers
FIRST_CHOSEN = 200  # last bytes of addresses from here on are for those who choose one; they are given to nobody

Record = dict[str, Any]


def free_address(records: dict[str, Record], after: int) -> int:
    """The last byte of the next address that no record holds, going round from `after`.

    Not the lowest: an SSH master connection to a container that is gone would meet its successor.
    """
    taken = {record["address"] for record in records.values()}
    for byte in [*range(after + 1, FIRST_CHOSEN), *range(11, min(after + 1, FIRST_CHOSEN))]:
        if f"{NETWORK}.{byte}" not in taken:
            return byte
    raise LabError(f"all addresses of {NETWORK}.0/24 are taken: `lxc.py list` shows by whom, `lxc.py down` frees")


def config_text(name: str, record: Record, hybrid: bool, machine: str) -> str:
    """LXC's configuration file for a record. `hybrid`: the host's controllers are on cgroup version 1."""
    home = CONTAINERS / name
    lines = ["lxc.include = /usr/share/lxc/config/common.conf"]
    if record["unprivileged"]:
        lines += ["lxc.include = /usr/share/lxc/config/userns.conf"]
        lines += [f"lxc.idmap = {kind} 0 {ID_BASE} {ID_COUNT}" for kind in "ug"]
    lines += [
        f"lxc.arch = {machine}",
        f"lxc.uts.name = {record.get('hostname', name)}",
        f"lxc.rootfs.path = dir:{home}/rootfs",
        "lxc.apparmor.profile = unconfined",
        "lxc.mount.auto = proc:mixed sys:mixed cgroup:mixed",
        f"lxc.console.logfile = {home}/console.log",
    ]
    lines += record["lines"] if "lines" in record else _network_lines(record["address"])
    for path, kind, major, minor in record["devices"]:
        lines += device_lines(Path(f"{home}/devices{path}"), path, f"{kind} {major}:{minor} rwm", hybrid)
    return "\n".join(lines) + "\n"


def _network_lines(address: str) -> list[str]:
    return [
        "lxc.net.0.type = veth",
        f"lxc.net.0.link = {BRIDGE}",
        "lxc.net.0.flags = up",
        # A reboot keeps it: otherwise the host's neighbour cache is wrong afterwards, and connections time out.
        f"lxc.net.0.hwaddr = 02:00:0a:4d:00:{int(address.rpartition('.')[2]):02x}",
        f"lxc.net.0.ipv4.address = {address}/24",
    ]


def device_lines(node: Path, path: str, rule: str, hybrid: bool) -> list[str]:
    """Bind `node` of the host into the container as `path`, and allow it. rule: "c 1:3 rwm"."""
    return [
        f"lxc.mount.entry = {node} {path.lstrip('/')} none bind,create=file 0 0",
        f"lxc.cgroup{'' if hybrid else '2'}.devices.allow = {rule}",
    ]


def records() -> dict[str, Record]:
    with state() as kept:
        return kept["containers"]


def reserve(name: str, wanted: Record, lower: Path) -> Record:
    """Write the record of a new container; without an address in `wanted` it gets the next free one."""
    with state() as kept:
        known = kept["containers"]
        record = known[name] = {**wanted, "host_key": _host_key(lower)}
        if "address" not in wanted:
            kept["last"] = free_address({n: r for n, r in known.items() if n != name}, kept["last"])
            record["address"] = f"{NETWORK}.{kept['last']}"
        ensure_bridge()
        write_known_hosts(known)
    return record


def make(name: str, record: Record, lower: Path, keys: list[str]) -> None:
    """Folders, overlay mount and the files that tell it apart. keys: who may log in as root, lines of authorized_keys."""
    home, owner = CONTAINERS / name, owner_of(record)
    for part in ("upper", "work", "rootfs"):
        (home / part).mkdir(parents=True)
    os.chown(home / "upper", owner, owner)  # becomes the container's /
    root = home / "rootfs"
    run("mount", "-t", "overlay", f"{name}", "-o", f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work", root)
    write_names(name, record)
    (root / "etc/apt/sources.list").unlink(missing_ok=True)  # no mirror can be reached from in here: apt would only wait for it
    ssh = root / "root/.ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    authorized = ssh / "authorized_keys"
    authorized.write_text("".join(f"{key}\n" for key in keys), encoding="ascii")
    for path in (ssh, authorized):
        os.chown(path, owner, owner)
    for path, kind, major, minor in record["devices"]:
        make_node(Path(f"{home}/devices{path}"), kind, int(major), int(minor))
    if record["unprivileged"]:
        ensure_id_range()


def owner_of(record: Record) -> int:
    """The id on the host of the container's root."""
    return ID_BASE if record["unprivileged"] else 0


def write_names(name: str, record: Record) -> None:
    """The container's host name in its /etc."""
    etc, hostname = CONTAINERS / name / "rootfs/etc", record.get("hostname", name)
    for file, text in (("hostname", f"{hostname}\n"), ("hosts", f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {hostname}\n")):
        (etc / file).write_text(text, encoding="ascii")
        os.chown(etc / file, owner_of(record), owner_of(record))


def make_node(node: Path, kind: str, major: int, minor: int, mode: int = 0o666, owner: tuple[int, int] = (0, 0)) -> None:
    """A device node of that mode, whatever the umask, and owner (uid, gid); one that is there is replaced."""
    node.parent.mkdir(parents=True, exist_ok=True)
    node.unlink(missing_ok=True)
    run("mknod", "-m", f"{mode:o}", node, kind, str(major), str(minor))
    os.chown(node, *owner)


def configure(name: str, record: Record) -> None:
    machine = {"x86_64": "linux64"}.get(platform.machine(), platform.machine())
    (CONTAINERS / name / "config").write_text(config_text(name, record, HYBRID, machine), encoding="utf-8")


def start(name: str) -> None:
    """Returns when init runs; raises LabError with LXC's log."""
    log = CONTAINERS / name / "lxc.log"
    log.unlink(missing_ok=True)
    done = run("lxc-start", "-P", CONTAINERS, "-n", name, "-o", log, "-l", "INFO", check=False)
    if done.returncode:
        raise LabError(f"lxc-start {name} failed: {done.stdout}\n{_tail(log)}")


def status(name: str) -> str:
    """LXC's word for it: RUNNING, STOPPED, STARTING, STOPPING, ..."""
    return run("lxc-info", "-P", CONTAINERS, "-n", name, "-sH", check=False).stdout.strip()


def is_running(name: str) -> bool:
    return status(name) == "RUNNING"


def init_pid(name: str) -> int | None:
    """The host's pid of its init; None when it does not run."""
    found = run("lxc-info", "-P", CONTAINERS, "-n", name, "-pH", check=False).stdout.strip()
    return int(found) if found.isdigit() else None


def shut_down(name: str, timeout_s: int) -> bool:
    """Ask its init to end everything; whether it had ended in time."""
    argv = ["lxc-stop", "-P", CONTAINERS, "-n", name, "-t", str(timeout_s), "--nokill"]
    return run(*argv, check=False, timeout_s=timeout_s + 60).returncode == 0 or not is_running(name)


def kill(name: str) -> None:
    run("lxc-stop", "-P", CONTAINERS, "-n", name, "-k", check=False)


def remove(name: str) -> None:
    """End it and remove all that is its; no record, nothing to do. The last one takes the bridge along."""
    if name not in records():
        return
    home = CONTAINERS / name
    if (home / "config").exists():
        kill(name)
    remove_tree(home)
    with state() as kept:
        kept["containers"].pop(name)
        write_known_hosts(kept["containers"])
        if not kept["containers"]:
            run("ip", "link", "delete", BRIDGE, check=False)


def wait(name: str, record: Record, wait_s: float) -> None:
    """Wait until systemd has started everything and sshd answers."""
    deadline = time.monotonic() + wait_s
    last = "it does not run"
    while time.monotonic() < deadline:
        if is_running(name):
            done = attach(name, ["systemctl", "is-system-running"])
            last = f"systemd says: {done}"
            if done in ("running", "degraded"):
                last = f"systemd: {done}; sshd does not answer on {record['address']}"
                if _ssh_answers(record["address"]):
                    if done == "degraded":
                        say(f"{name}: failed units:\n{attach(name, ['systemctl', '--failed', '--plain', '--no-legend'])}")
                    return
        time.sleep(0.2)
    home = CONTAINERS / name
    raise LabError(f"{name} was not up after {wait_s:g} s; {last}\n{_tail(home / 'console.log')}\n{_tail(home / 'lxc.log')}")


def attach(name: str, command: list[str]) -> str:
    """Run a command inside; returns its output, whatever its exit status."""
    return run(*attach_argv(name), *command, check=False).stdout.strip()


def attach_argv(name: str) -> list[str]:
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return ["lxc-attach", "-P", str(CONTAINERS), "-n", name, "--clear-env", "-v", path, "-v", "HOME=/root", "--"]


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1) as peer:
            return peer.recv(4) == b"SSH-"
    except OSError:
        return False


def public_key() -> str:
    """The throw-away key of this machine's tests, made when there is none yet. The caller holds no lock of `state`."""
    with state():  # two callers at once: one makes it
        if not KEY.with_suffix(".pub").exists():
            KEY.unlink(missing_ok=True)
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ringmaster-test", "-f", KEY)
    return KEY.with_suffix(".pub").read_text(encoding="ascii").strip()


def _host_key(lower: Path) -> str:
    return " ".join((lower / "etc/ssh/ssh_host_ed25519_key.pub").read_text(encoding="ascii").split()[:2])


def write_known_hosts(known: dict[str, Record]) -> None:
    """The caller holds the lock of `state`."""
    lines = sorted(f"{record['address']} {record['host_key']}\n" for record in known.values() if record["address"])
    fresh = KNOWN_HOSTS.with_suffix(".new")
    fresh.write_text("".join(lines), encoding="ascii")
    fresh.replace(KNOWN_HOSTS)


def _tail(path: Path, size: int = 1500) -> str:
    return f"{path}:\n{path.read_text(encoding='utf-8', errors='replace')[-size:]}" if path.exists() else ""
