#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Proxmox node for tests: its API, served by fakepve, with real LXC containers behind it. See README.md beside this file.

pve.py up --name SCENARIO --state DIR [--node pve1] [--device /dev/nvidia1=c:1:3]     prints what DIR/connection.json then has
pve.py down --name SCENARIO --state DIR
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import container
from host import NETWORK, LabError, remove_tree, require_root, say
from lxc import parse_devices
from pve_guest import API_BRIDGE, Guests

HERE = Path(__file__).resolve().parent
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
STANDINS = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
START_S, STOP_S = 60, 30


def default_node() -> str:
    """This machine's name where Proxmox would take it for a node's."""
    name = socket.gethostname().partition(".")[0].lower()
    return name if re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) else "pve1"


def up(name: str, state: Path, node: str, port: int, devices: list[str]) -> dict[str, Any]:
    """Start the server in the background; one that runs already stays. Returns connection.json. Raises LabError."""
    found = connection(state)
    if found and server(state):
        if found["name"] != name:
            raise LabError(f"{state} belongs to {found['name']}: give {name} a directory of its own")
        return found
    owner = Guests(name, node).root / "state"
    other = Path(owner.read_text(encoding="utf-8")) if owner.exists() else state
    if other != state and server(other):
        raise LabError(f"{name} is up already, from {other}: `pve.py down --name {name} --state {other}` ends it")
    down(name, state)
    state.mkdir(parents=True, exist_ok=True)
    owner.parent.mkdir(parents=True)
    owner.write_text(str(state), encoding="utf-8")
    argv = [sys.executable, __file__, "serve", "--name", name, "--state", str(state), "--node", node, "--port", str(port)]
    with open(state / "pve.log", "wb") as log:
        options = [f"--device={device}" for device in devices]
        process = subprocess.Popen([*argv, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        if found := connection(state):
            return found
        time.sleep(0.1)
    process.kill()
    raise LabError(f"the server did not start:\n{(state / 'pve.log').read_text(encoding='utf-8', errors='replace')[-2000:].rstrip()}")


def down(name: str, state: Path) -> None:
    """End the server and remove its containers and its stand-in devices."""
    if running := server(state):
        handle = os.pidfd_open(running)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if server(state):
                signal.pidfd_send_signal(handle, sign)
                deadline = time.monotonic() + STOP_S
                while server(state) and time.monotonic() < deadline:
                    time.sleep(0.05)
        os.close(handle)
    guests = Guests(name, "")
    for record in container.records().values():
        if record.get("scenario") == name:
            guests.destroy(record["vmid"])
    remove_tree(guests.root)
    for file in ("connection.json", "pve.pid", "pve.key", "pve.crt"):
        (state / file).unlink(missing_ok=True)


def connection(state: Path) -> dict[str, Any] | None:
    path = state / "connection.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def started(pid: int) -> str:
    """When a process started, in the kernel's ticks: with the pid it is unique. "" when there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if fields[0] not in "ZX" else ""


def server(state: Path) -> int | None:
    """The pid of the server of that directory, if it runs."""
    path = state / "pve.pid"
    found = json.loads(path.read_text(encoding="ascii")) if path.exists() else {"pid": 0, "started": None}
    return found["pid"] if started(found["pid"]) == found["started"] else None


def write(path: Path, found: Any) -> None:
    """JSON, whole or not at all, for root only."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(json.dumps(found, indent=2) + "\n")
    fresh.replace(path)


async def serve(name: str, state: Path, node: str, port: int, devices: list[str]) -> None:
    """Serve until SIGTERM."""
    try:
        from fakepve.certs import make_cert
        from pve_api import TEMPLATES, USER, LabPve
    except ImportError as error:
        raise LabError(f"{error}: `make setup-dev`, then .venv/bin/python tests/lab/pve.py") from None
    write(state / "pve.pid", {"pid": os.getpid(), "started": started(os.getpid())})
    guests = Guests(name, node)
    for path, kind, major, minor in parse_devices((*(f"/dev/{standin}=c:1:3" for standin in STANDINS), *devices)):
        container.make_node(Path(f"{guests.root}{path}"), kind, int(major), int(minor))
    passwords = {user: secrets.token_urlsafe(24) for user in ("root@pam", USER)}
    tokens = {f"{user}!ci": str(uuid.uuid4()) for user in ("root@pam", USER)}
    certificate, key, _ = make_cert(str(state), name="pve", hosts=("127.0.0.1",))
    pve = LabPve(guests, passwords, tokens, state / "requests.jsonl", port)
    await pve.start(certificate, key)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    watch = asyncio.ensure_future(pve.watch())
    api = {"api_host": pve.host, "api_port": pve.port, "ca_path": certificate, "validate_certs": True}

    def password(user: str) -> dict[str, Any]:
        return {**api, "api_user": user, "api_password": passwords[user]}

    def token(user: str) -> dict[str, Any]:
        return {**api, "api_user": user, "api_token_id": "ci", "api_token_secret": tokens[f"{user}!ci"]}

    found = {
        "name": name, "node": node, "pid": os.getpid(), "url": pve.url,
        "root": password("root@pam"), "user": password(USER), "token": token(USER), "root_token": token("root@pam"),
        "templates": {suite: f"local:{volume}" for suite, volume in TEMPLATES.items()}, "storages": sorted(pve.storages),
        "bridge": API_BRIDGE, "network": f"{NETWORK}.0/24", "gateway": f"{NETWORK}.1", "devices_root": str(guests.root),
        "requests": str(state / "requests.jsonl"), "pct": str(HERE / "pct"),
        "identity_file": str(container.KEY), "public_key": container.public_key(), "known_hosts": str(container.KNOWN_HOSTS),
    }  # fmt: skip
    write(state / "connection.json", found)
    await stop.wait()
    watch.cancel()
    await pve.stop()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in {"up": "start the node", "down": "end it and remove its containers", "serve": "what up starts"}.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--name", required=True)
        command.add_argument("--state", required=True, type=Path, metavar="DIR")
        if name != "down":
            command.add_argument("--node", default=default_node())
            command.add_argument("--port", type=int, default=0)
            command.add_argument("--device", dest="devices", action="append", default=[], metavar="/dev/NAME=c:MAJOR:MINOR")
    options = vars(parser.parse_args(arguments))
    options["state"] = options["state"].absolute()
    try:
        require_root()
        if not NAME.fullmatch(options["name"]):
            raise LabError(f"name {options['name']!r}: wanted small letters, digits and dashes")
        container.STATE.mkdir(parents=True, exist_ok=True)
        command = options.pop("command")
        if command == "serve":
            asyncio.run(serve(**options))
        elif command == "up":
            print(json.dumps(up(**options), indent=2))
        else:
            down(**options)
    except LabError as error:
        say(f"pve.py: {error}")
        return 1
    return 0


if __name__ == "__main__":
    if not shutil.which("lxc-start"):
        sys.exit("pve.py: LXC is not installed: run `tests/lab/lxc.py install` as root")
    sys.exit(main())
