# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps a log that somebody else writes from filling the disk, without a pipe between (which would tie the writer to our health)."""

from __future__ import annotations

import contextlib
import ctypes
import os

from . import files

_LIBC = ctypes.CDLL(None, use_errno=True)
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2  # linux/falloc.h


def size_of(path):
    """Bytes of a log, 0 when somebody removed it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.getsize(path)
    return 0


def punch(path, *, cap_bytes):
    """Give the middle of a log beyond three times CAP_BYTES back to the disk: half a CAP_BYTES of head stays, and the last CAP_BYTES.

    Offsets stay what they are, and the hole reads as NUL bytes, so neither writer nor reader notices. Where the file system cannot do
    it (the call fails) the log is only cut when it is closed. Returns the bytes of the hole, 0 for none.
    """
    size = size_of(path)
    if size <= 3 * cap_bytes:
        return 0
    start, end = cap_bytes // 2, size - cap_bytes
    with open(path, "r+b", opener=files.plain) as file:
        offsets = ctypes.c_longlong(start), ctypes.c_longlong(end - start)
        failed = _LIBC.fallocate(file.fileno(), _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, *offsets)
    return 0 if failed else end - start
