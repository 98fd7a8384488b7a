# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bind a device node or a directory of this machine into a container that runs: pve_plug.py PID SOURCE TARGET OWNER [ro].

A process of its own, since it enters the container's mount namespace. OWNER: the host's id of the container's root, who makes the target.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# The same numbers on every architecture that has them.
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH, MOUNT_ATTR_RDONLY = 1, 4, 1
CLONE_NEWNS = 0x00020000

libc = ctypes.CDLL(None, use_errno=True)


def checked(done: int, what: str) -> int:
    if done < 0:
        raise OSError(ctypes.get_errno(), what)
    return done


def main(pid: str, source: str, target: str, owner: str, *options: str) -> None:
    tree = checked(libc.syscall(OPEN_TREE, AT_FDCWD, source.encode(), OPEN_TREE_CLONE), f"open_tree {source}")
    if "ro" in options:
        attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
        checked(libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, ctypes.sizeof(attributes)), "mount_setattr")
    is_directory = Path(source).is_dir()
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    checked(libc.setns(namespace, CLONE_NEWNS), "setns")
    # A file system of the container's user namespace takes files only from an id that it knows.
    os.setegid(int(owner))
    os.seteuid(int(owner))
    place = Path(target)
    (place if is_directory else place.parent).mkdir(parents=True, exist_ok=True)
    if not is_directory:
        place.touch()
    os.seteuid(0)
    os.setegid(0)
    checked(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH), f"move_mount {target}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"{error.filename or ''} {error.strerror}".strip() if error.strerror else str(error))
