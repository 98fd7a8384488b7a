#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real LXC containers for tests: systemd, sshd, an address, nothing else. See README.md beside this file.

    lxc.py install
    lxc.py up --name rm-test-SCENARIO-X --suite bookworm [--unprivileged] [--device /dev/nvidia0=c:1:3]
    lxc.py wait|down --name NAME ; lxc.py down --all ; lxc.py list ; lxc.py exec --name NAME -- COMMAND ... ; lxc.py purge
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

import rootfs
from host import (
    BRIDGE,
    ID_BASE,
    ID_COUNT,
    NETWORK,
    STATE,
    LabError,
    ensure_bridge,
    ensure_id_range,
    install,
    locked,
    remove_tree,
    require_root,
    run,
    say,
    state,
)

NAME = re.compile(r"rm-test-[a-z0-9][a-z0-9-]{0,40}")
DEVICE = re.compile(r"(/dev/[\w/.-]+)=([cb]):(\d+):(\d+)")
CONTAINERS = STATE / "containers"
KEY = STATE / "id_ed25519"
KNOWN_HOSTS = STATE / "known_hosts"
HYBRID = Path("/sys/fs/cgroup/devices").is_dir()  # cgroup version 1 carries the controllers

Record = dict[str, Any]


def free_address(records: dict[str, Record], after: int) -> int:
    """The last byte of the next address that no record holds, going round from `after`.

    Not the lowest: an SSH master connection to a container that is gone would meet its successor.
    """
    taken = {record["address"] for record in records.values()}
    for byte in [*range(after + 1, 255), *range(11, after + 1)]:
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
        f"lxc.uts.name = {name}",
        f"lxc.rootfs.path = dir:{home}/rootfs",
        "lxc.apparmor.profile = unconfined",
        "lxc.mount.auto = proc:mixed sys:mixed cgroup:mixed",
        "lxc.net.0.type = veth",
        f"lxc.net.0.link = {BRIDGE}",
        "lxc.net.0.flags = up",
        # A reboot keeps it: otherwise the host's neighbour cache is wrong afterwards, and connections time out.
        f"lxc.net.0.hwaddr = 02:00:0a:4d:00:{int(record['address'].rpartition('.')[2]):02x}",
        f"lxc.net.0.ipv4.address = {record['address']}/24",
        f"lxc.console.logfile = {home}/console.log",
    ]
    for path, kind, major, minor in record["devices"]:
        node = f"{home}/devices{path}"
        lines += [f"lxc.mount.entry = {node} {path.lstrip('/')} none bind,create=file 0 0"]
        lines += [f"lxc.cgroup{'' if hybrid else '2'}.devices.allow = {kind} {major}:{minor} rwm"]
    return "\n".join(lines) + "\n"


def connection(name: str, record: Record) -> Record:
    """What an SSH client needs to know, as `up` prints it."""
    return {
        "name": name, "address": record["address"], "port": 22, "user": "root", "identity_file": str(KEY), "known_hosts": str(KNOWN_HOSTS),
    }


def is_running(name: str) -> bool:
    return run("lxc-info", "-P", CONTAINERS, "-n", name, "-sH", check=False).stdout.strip() == "RUNNING"


def up(name: str, suite: str, unprivileged: bool = False, devices: tuple[str, ...] = (), wait_s: float = 60) -> Record:
    """Make and start the container and wait until it answers; one that runs as asked already is left as it is.

    devices: "/dev/NAME=c:MAJOR:MINOR", each a node of its own below STATE, bound into the container; the host's /dev stays untouched.
    Returns connection(). Raises LabError.
    """
    require_root()
    if not NAME.fullmatch(name):
        raise LabError(f"name {name!r}: wanted rm-test-SCENARIO-SOMETHING in small letters, digits and dashes")
    parsed = [DEVICE.fullmatch(device) for device in devices]
    if None in parsed:
        raise LabError(f"device {devices[parsed.index(None)]!r}: wanted /dev/NAME=c:MAJOR:MINOR")
    wanted = {"suite": suite, "unprivileged": unprivileged, "devices": [list(match.groups()) for match in parsed if match]}
    lower = rootfs.image(suite, shifted=unprivileged)
    with locked(f"container-{name}"):
        record = _records().get(name, {})
        if {key: record.get(key) for key in wanted} == wanted and is_running(name):
            _wait(name, record, wait_s)
            return connection(name, record)
        _remove(name)
        with state() as kept:
            records = kept["containers"]
            kept["last"] = free_address(records, kept["last"])
            record = records[name] = {**wanted, "address": f"{NETWORK}.{kept['last']}", "host_key": _host_key(lower)}
            ensure_bridge()
            _ensure_key()
            _write_known_hosts(records)
        _make(name, record, lower)
        log = CONTAINERS / name / "lxc.log"
        done = run("lxc-start", "-P", CONTAINERS, "-n", name, "-o", log, "-l", "INFO", check=False)
        if done.returncode:
            raise LabError(f"lxc-start {name} failed: {done.stdout}\n{_tail(log)}")
        _wait(name, record, wait_s)
        return connection(name, record)


def down(name: str) -> None:
    """End the container and remove what `up` made for it; no record, nothing to do."""
    require_root()
    with locked(f"container-{name}"):
        _remove(name)


def wait(name: str, wait_s: float = 60) -> None:
    """Wait until systemd has started everything and sshd answers, after a reboot for example."""
    record = _records().get(name)
    if not record:
        raise LabError(f"there is no container {name}: `lxc.py list` shows those there are")
    _wait(name, record, wait_s)


def _records() -> dict[str, Record]:
    with state() as kept:
        return kept["containers"]


def _remove(name: str) -> None:
    if name not in _records():
        return
    home = CONTAINERS / name
    if (home / "config").exists():
        run("lxc-stop", "-P", CONTAINERS, "-n", name, "-k", check=False)
    remove_tree(home)
    with state() as kept:
        kept["containers"].pop(name)
        _write_known_hosts(kept["containers"])
        if not kept["containers"]:
            run("ip", "link", "delete", BRIDGE, check=False)


def _make(name: str, record: Record, lower: Path) -> None:
    """Folders, overlay mount, key and configuration of a container."""
    home = CONTAINERS / name
    owner = ID_BASE if record["unprivileged"] else 0
    for part in ("upper", "work", "rootfs"):
        (home / part).mkdir(parents=True)
    os.chown(home / "upper", owner, owner)  # becomes the container's /
    root = home / "rootfs"
    run("mount", "-t", "overlay", f"{name}", "-o", f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work", root)
    (root / "etc/hostname").write_text(f"{name}\n", encoding="ascii")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {name}\n", encoding="ascii")
    ssh = root / "root/.ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    keys = ssh / "authorized_keys"
    keys.write_text(KEY.with_suffix(".pub").read_text(encoding="ascii"), encoding="ascii")
    for path in (root / "etc/hostname", root / "etc/hosts", ssh, keys):
        os.chown(path, owner, owner)
    for path, kind, major, minor in record["devices"]:
        node = Path(f"{home}/devices{path}")
        node.parent.mkdir(parents=True, exist_ok=True)
        run("mknod", "-m", "666", node, kind, major, minor)
    if record["unprivileged"]:
        ensure_id_range()
    machine = {"x86_64": "linux64"}.get(platform.machine(), platform.machine())
    (home / "config").write_text(config_text(name, record, HYBRID, machine), encoding="utf-8")


def _wait(name: str, record: Record, wait_s: float) -> None:
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
    return run(*_attach_argv(name), *command, check=False).stdout.strip()


def _attach_argv(name: str) -> list[str]:
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return ["lxc-attach", "-P", str(CONTAINERS), "-n", name, "--clear-env", "-v", path, "-v", "HOME=/root", "--"]


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1) as peer:
            return peer.recv(4) == b"SSH-"
    except OSError:
        return False


def _ensure_key() -> None:
    if not KEY.with_suffix(".pub").exists():
        KEY.unlink(missing_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ringmaster-test", "-f", KEY)


def _host_key(lower: Path) -> str:
    return " ".join((lower / "etc/ssh/ssh_host_ed25519_key.pub").read_text(encoding="ascii").split()[:2])


def _write_known_hosts(records: dict[str, Record]) -> None:
    lines = sorted(f"{record['address']} {record['host_key']}\n" for record in records.values())
    fresh = KNOWN_HOSTS.with_suffix(".new")
    fresh.write_text("".join(lines), encoding="ascii")
    fresh.replace(KNOWN_HOSTS)


def _tail(path: Path, size: int = 1500) -> str:
    return f"{path}:\n{path.read_text(encoding='utf-8', errors='replace')[-size:]}" if path.exists() else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in {
        "install": "install what the harness needs (apt)",
        "up": "make and start a container; prints how to reach it as JSON",
        "wait": "wait until a container is up (again)",
        "down": "end and remove containers",
        "list": "the containers there are",
        "exec": "run a command in a container",
        "purge": "end and remove everything the harness keeps on this machine",
    }.items():
        command = commands.add_parser(name, help=text)
        if name in ("up", "wait", "exec"):
            command.add_argument("--name", required=True)
        if name in ("up", "wait"):
            command.add_argument("--wait-s", type=float, default=60)
        if name == "up":
            command.add_argument("--suite", required=True, choices=rootfs.SUITES)
            command.add_argument("--unprivileged", action="store_true")
            command.add_argument("--device", action="append", default=[], metavar="/dev/NAME=c:MAJOR:MINOR")
        if name == "down":
            which = command.add_mutually_exclusive_group(required=True)
            which.add_argument("--name", action="append")
            which.add_argument("--all", action="store_true")
        if name == "exec":
            command.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    try:
        require_root()
        STATE.mkdir(parents=True, exist_ok=True)
        return globals()[f"_do_{options.command}"](options) or 0
    except LabError as error:
        say(f"lxc.py: {error}")
        return 1


def _do_install(_options: argparse.Namespace) -> None:
    print(f"installed: {', '.join(install()) or 'nothing, all is there'}")


def _do_up(options: argparse.Namespace) -> None:
    print(json.dumps(up(options.name, options.suite, options.unprivileged, tuple(options.device), options.wait_s)))


def _do_wait(options: argparse.Namespace) -> None:
    wait(options.name, options.wait_s)


def _do_down(options: argparse.Namespace) -> None:
    records = _records()
    for name in list(records) if options.all else [name for name in options.name if name in records]:
        down(name)
        print(f"removed {name}")


def _do_list(_options: argparse.Namespace) -> None:
    for name, record in sorted(_records().items()):
        kind = "unprivileged" if record["unprivileged"] else "privileged"
        print(f"{name} {record['address']} {record['suite']} {kind} {'running' if is_running(name) else 'stopped'}")


def _do_exec(options: argparse.Namespace) -> None:
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not argv:
        raise LabError(f"exec: no command given, for example: lxc.py exec --name {shlex.quote(options.name)} -- systemctl status")
    os.execvp("lxc-attach", _attach_argv(options.name) + argv)


def _do_purge(_options: argparse.Namespace) -> None:
    for name in list(_records()):
        down(name)
    rootfs.purge()
    remove_tree(STATE)


if __name__ == "__main__":
    sys.exit(main())
