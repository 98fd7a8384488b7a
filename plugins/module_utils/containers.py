# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container and which systemd unit a process is in, by the text of its /proc/PID/cgroup, and which containers this machine has.

The container is the outermost one, as this machine sees it: Docker inside container 101 is 101, and so is whatever 101 calls its own
cgroups. Control group versions 1, 2 and both side by side; Proxmox (/lxc/101/ns/...), LXC (lxc.payload.NAME), Docker, Podman, CRI and
containerd.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

# What LXC runs for a container outside of it (lxc.monitor.NAME, lxc.monitor/101, lxc.pivot) is this machine's, and matches nothing here.
_CONTAINER = re.compile(
    r"/(?:"
    r"(?:lxc/|lxc\.payload[./])(?P<lxc>[^/]+)(?:/ns(?=/|$))?"
    r"|docker[-/](?P<docker>[0-9a-f]{12})[^/]*"
    r"|libpod[-/](?P<podman>[0-9a-f]{12})[^/]*"
    # containerd by itself: the scope of nerdctl, or NAMESPACE/ID; below libpod_parent it is a pod, which its containers are in
    r"|(?:(?:cri-containerd|crio|nerdctl)[-/]|(?!libpod_)[^/]+/(?=[0-9a-f]{64}(?:/|$)))(?P<cri>[0-9a-f]{12})[^/]*"
    r"|kubepods.*?(?P<kubernetes>[0-9a-f]{12})[^/]*"
    r"|systemd-nspawn@(?P<nspawn>[^/]+)\.service"
    r"|machine-(?P<machine>[^/]+)\.scope"
    r")"
)
_UNIT = re.compile(r"[^/]+\.(?:service|scope)")
# Units that hold what people or jobs start, which has nothing to do with each other.
_GATHERING = re.compile(
    r"user@.*|ssh(?:d)?(?:@.*)?\.service|(?:(?:serial|container|console)-)?getty.*|session-.*\.scope|init\.scope|crond?\.service|atd\.service"
    r"|(?:docker|containerd|podman|lxc.*)\.service"
)
UNCLEAR = "unclear"
LXC_PATHS = ("/var/lib/lxc",)
_PVE = "/etc/pve"


class Place(NamedTuple):
    """Where a process runs. `kind` (lxc, docker, podman, cri, kubernetes, nspawn, machine) and `name` of its container, both None on the
    machine itself; kind "unclear" where the hierarchies contradict each other or nothing can be seen. `unit`: its systemd unit, inside the
    container if there is one. `cell`: the unit's whole path, the same for two processes exactly when they are of one unit; None where the
    unit gathers what has nothing to do with each other (a login session, sshd, cron)."""

    kind: str | None
    name: str | None
    unit: str | None
    cell: str | None


NOWHERE = Place(UNCLEAR, None, None, None)


def place(text, outside=()):
    """The Place that the TEXT of a /proc/PID/cgroup tells. OUTSIDE: of `root`, what of each path is outside of this machine."""
    paths = _paths(text, outside)
    found = [(path, _CONTAINER.search(path)) for path in paths]
    named = {(match.lastgroup, match[match.lastgroup]) for _path, match in found if match}
    if len(named) > 1:
        return Place(UNCLEAR, " or ".join(sorted(name for _kind, name in named)), None, None)
    kind, name = named.pop() if named else (None, None)
    for path, match in found:
        if name is not None and match is None:
            continue  # a hierarchy that the container has no part in tells of this machine's units
        begin = match.end() if match else 0
        units = [unit for unit in _UNIT.finditer(path, begin) if not unit[0].startswith("user@")]
        if units:
            cell = None if _GATHERING.fullmatch(units[-1][0]) else path[: units[-1].end()]
            return Place(kind, name, units[-1][0], cell)
    return Place(kind, name, None, None)


def root(text):
    """For `place`, by the TEXT of process 1: the containers that this machine itself is in and whose names it sees; most see none."""
    matches = [(path, _CONTAINER.search(path)) for path in _paths(text, ())]
    return tuple({path[: match.end()] for path, match in matches if match})


def _paths(text, outside):
    """The cgroup paths of TEXT, those that systemd keeps first."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    lines.sort(key=lambda fields: fields[1] not in ("", "name=systemd"))
    found = []
    for _number, _controllers, path in lines:
        path = re.sub(r"^(?:/\.\.)+", "", path)  # seen from within another cgroup namespace
        path = path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path
        for prefix in outside:
            if (path + "/").startswith(prefix + "/"):
                path = path[len(prefix) :] or "/"
                break
        found.append(path)
    return found


def read(pid):
    """The text of /proc/PID/cgroup; "" when it is gone or hidden."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def configured(lxc_paths=LXC_PATHS, pve=_PVE):
    """{name: Proxmox node, or None for this machine} of the LXC containers that are set up, whether they run or not."""
    found = {}
    with contextlib.suppress(OSError):
        for node in os.listdir(os.path.join(pve, "nodes")):
            found.update(dict.fromkeys(_configurations(os.path.join(pve, "nodes", node, "lxc")), node))
    found.update(dict.fromkeys(_configurations(os.path.join(pve, "lxc"))))  # a link to this node's folder
    for folder in lxc_paths:
        with contextlib.suppress(OSError):
            found.update(dict.fromkeys(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, "config"))))
    return found


def _configurations(folder):
    with contextlib.suppress(OSError):
        return [name[: -len(".conf")] for name in os.listdir(folder) if name.endswith(".conf")]
    return []
