# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ports are free, and which process listens on one."""

from __future__ import annotations

import contextlib
import os
import socket

_LISTEN = "0A"


def free_port(host="127.0.0.1"):
    """A port that nobody uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def is_free(port, host="127.0.0.1"):
    """Whether a server could bind HOST:PORT now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def is_open(port, host="127.0.0.1"):
    """Whether something accepts connections on HOST:PORT: far cheaper than reading the kernel's table of all sockets."""
    try:
        socket.create_connection((host, port), timeout=0.2).close()
    except OSError:
        return False
    return True


def listening_inodes(port, pid="self"):
    """Inode numbers (str) of the sockets that listen on PORT, on any address, in the network namespace of PID."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def holders(port, pids, pid="self"):
    """Those of PIDS that have a socket open that listens on PORT in the network namespace of PID."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port, pid)}
    return [pid for pid in pids if wanted and wanted & _links(pid)]


def _links(pid):
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(descriptor.path))
    return found
