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
import re
import shlex
import sys

import container
import rootfs
from container import KEY, KNOWN_HOSTS, NAME, Record
from host import STATE, LabError, install, locked, remove_tree, require_root, say

DEVICE = re.compile(r"(/dev/[\w/.-]+)=([cb]):(\d+):(\d+)")


def connection(name: str, record: Record) -> Record:
    """What an SSH client needs to know, as `up` prints it."""
    return {
        "name": name,
        "address": record["address"],
        "port": 22,
        "user": "root",
        "identity_file": str(KEY),
        "known_hosts": str(KNOWN_HOSTS),
    }


def parse_devices(devices: tuple[str, ...]) -> list[list[str]]:
    """["/dev/NAME=c:MAJOR:MINOR", ...] as [[path, kind, major, minor], ...]."""
    parsed = [DEVICE.fullmatch(device) for device in devices]
    if None in parsed:
        raise LabError(f"device {devices[parsed.index(None)]!r}: wanted /dev/NAME=c:MAJOR:MINOR")
    return [list(match.groups()) for match in parsed if match]


def up(name: str, suite: str, unprivileged: bool = False, devices: tuple[str, ...] = (), wait_s: float = 60) -> Record:
    """Make and start the container and wait until it answers; one that runs as asked already is left as it is.

    devices: "/dev/NAME=c:MAJOR:MINOR", each a node of its own below STATE, bound into the container; the host's /dev stays untouched.
    Returns connection(). Raises LabError.
    """
    require_root()
    if not NAME.fullmatch(name):
        raise LabError(f"name {name!r}: wanted rm-test-SCENARIO-SOMETHING in small letters, digits and dashes")
    wanted = {"suite": suite, "unprivileged": unprivileged, "devices": parse_devices(devices)}
    lower = rootfs.image(suite, shifted=unprivileged)
    with locked(f"container-{name}"):
        record = container.records().get(name, {})
        if {key: record.get(key) for key in wanted} != wanted or not container.is_running(name):
            container.remove(name)
            record = container.reserve(name, wanted, lower)
            container.make(name, record, lower, [container.public_key()])
            container.configure(name, record)
            container.start(name)
        container.wait(name, record, wait_s)
        return connection(name, record)


def down(name: str) -> None:
    """End the container and remove what `up` made for it; no record, nothing to do."""
    require_root()
    with locked(f"container-{name}"):
        container.remove(name)


def wait(name: str, wait_s: float = 60) -> None:
    """Wait until systemd has started everything and sshd answers, after a reboot for example."""
    record = container.records().get(name)
    if not record:
        raise LabError(f"there is no container {name}: `lxc.py list` shows those there are")
    container.wait(name, record, wait_s)


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
    records = container.records()
    for name in list(records) if options.all else [name for name in options.name if name in records]:
        down(name)
        print(f"removed {name}")


def _do_list(_options: argparse.Namespace) -> None:
    for name, record in sorted(container.records().items()):
        kind = "unprivileged" if record["unprivileged"] else "privileged"
        print(f"{name} {record['address']} {record['suite']} {kind} {'running' if container.is_running(name) else 'stopped'}")


def _do_exec(options: argparse.Namespace) -> None:
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not argv:
        raise LabError(f"exec: no command given, for example: lxc.py exec --name {shlex.quote(options.name)} -- systemctl status")
    os.execvp("lxc-attach", container.attach_argv(options.name) + argv)


def _do_purge(_options: argparse.Namespace) -> None:
    for name in list(container.records()):
        down(name)
    rootfs.purge()
    remove_tree(STATE)


if __name__ == "__main__":
    sys.exit(main())
