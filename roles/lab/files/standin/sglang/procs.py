# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Process names, parent death and log lines as SGLang has them, for all processes of the stand-in. Imports only what is cheap."""

from __future__ import annotations

import ctypes
import os
import signal
import time

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def _libc():
    return ctypes.CDLL(None)


def set_title(title: str) -> None:
    """Names this process in /proc/PID/comm and /proc/PID/cmdline; like setproctitle it blanks /proc/PID/environ unless SPT_NOENV is set."""
    raw = title.encode()
    _libc().prctl(PR_SET_NAME, raw[:15], 0, 0, 0)
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    arg_start, arg_end, _env_start, env_end = (int(field) for field in fields[45:49])  # proc(5), fields 48 to 51
    for name, value in os.environ.items():
        os.putenv(name, value)  # the C library gets copies, since the area its strings lie in is about to be overwritten
    end = arg_end if "SPT_NOENV" in os.environ else env_end
    ctypes.memset(arg_start, 0, end - arg_start)
    ctypes.memmove(arg_start, raw, min(len(raw), arg_end - arg_start - 1))


def die_with_parent() -> None:
    """SIGKILL for this process as soon as its parent is gone."""
    _libc().prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def log(message: str, rank_suffix: str = "") -> None:
    """One line in SGLang's form on stderr, written at once so that lines of several processes do not mix."""
    os.write(2, f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank_suffix}] {message}\n".encode())


def raw(text: str) -> None:
    """Text as it is on stderr: progress bars, tracebacks, uvicorn's lines."""
    os.write(2, text.encode())
