# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who runs out of a virtual environment. It must not change under them."""

from __future__ import annotations

import contextlib
import os

from . import procfs
from .errors import RingmasterError


def users(environment):
    """[(pid, command line)] of the processes that run out of ENVIRONMENT, a real path: workers they start import what is there."""
    return users_of([environment])[environment]


def users_of(environments):
    """{environment: users()} of several, in one look at all processes."""
    wanted = [(one, f" {os.path.join(one, '')}", os.stat(one)) for one in environments]
    found, ours = {one: [] for one in environments}, set(_lineage())
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) if environments else ():
        words = procfs.command_line(pid)
        if pid in ours or not words:
            continue
        places = _places(pid, words[0])
        for environment, inside, here in wanted:
            with contextlib.suppress(OSError):  # gone, or not ours to look at
                if inside in places and _is_same(pid, environment, here):
                    found[environment].append((pid, " ".join(words).strip()))
    return found


def _lineage():
    """This process and those above it: Ansible may itself use the environment's interpreter."""
    process = procfs.read(os.getpid())
    while process:
        yield process.pid
        process = procfs.read(process.ppid)


def _places(pid, program):
    """Text that names whatever PID runs from, each with a blank before it: its program's directory, and all that it has mapped."""
    own = f" {os.path.realpath(os.path.dirname(program))}/\n" if os.path.isabs(program) else ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return own + file.read()  # renamed workers have their libraries from there
    return own


def _is_same(pid, environment, here):
    """Whether PID, maybe in a container, means the same folder by that path."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root{environment}"), here)
    except PermissionError:
        return True


def refuse(environment):
    """Raise RingmasterError while a process runs out of ENVIRONMENT."""
    found = users(environment)
    if found:
        who = "; ".join(f"{pid} ({command[:120]})" for pid, command in found[:3])
        remedy = "Stop that server, or put the patches on an environment that is not in use yet and switch to it."
        raise RingmasterError(f"{environment} is in use, by {len(found)} processes such as {who}.", remedy)
