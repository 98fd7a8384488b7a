# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Another program, run to its end: started, watched, ended with all that it started, its files fetched.

It runs in a session of its own, as a child of this process, in a scratch directory that may belong to another user.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time

from . import procfs
from .http_client import STOP_CHECK_S, Stopped

LAST_WORDS_BYTES = 4096
LAST_WORDS_CHARS = 300
LAST_LINES = 4
END_S = 10.0


class Scratch:
    """A directory for one run, gone afterwards. Its name is short: a socket's path must not exceed 107 bytes."""

    def __init__(self, user=None):
        self.identity = _identity(user)
        self.path = tempfile.mkdtemp(prefix="ringmaster-", dir="/tmp")
        if self.identity:
            os.chown(self.path, self.identity["user"], self.identity["group"])

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        shutil.rmtree(self.path, ignore_errors=True)

    def environment(self):
        """What every program gets: nothing of ours."""
        plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        return {**plain, "HOME": self.path, "TMPDIR": self.path, "NO_PROXY": "127.0.0.1,localhost"}

    def read(self, name):
        """The bytes of a file in it, whose owner may be hostile: no link out of it is followed. Raises OSError."""
        with open(os.path.join(self.path, name), "rb", opener=_without_waiting) as file:
            real = os.readlink(f"/proc/self/fd/{file.fileno()}")
            if not real.startswith(self.path + "/") or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{name} is not a file of its own")
            return file.read()


def run(arguments, environment, scratch, *, log_path, limit_s, stop=None, watch=None):
    """None when the program ended well, else what went wrong. Its output goes to LOG_PATH.

    stop() and watch(end of the output, bytes) are called every 0.1 s. Nothing of the program lives afterwards, whatever they raise.
    Raises Stopped when stop() is true."""
    with open(log_path, "wb", opener=_private) as log:
        try:
            program = subprocess.Popen(
                arguments,
                env=environment,
                cwd=scratch.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=procfs.die_with_parent,
                **scratch.identity,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"cannot be started: {error}"
    until_s, ended = time.monotonic() + limit_s, False
    try:
        while not ended and time.monotonic() < until_s:
            if stop is not None and stop():
                raise Stopped(arguments[0])
            if watch is not None:
                watch(_tail(log_path))
            time.sleep(STOP_CHECK_S)
            ended = _has_ended(program.pid)
    finally:
        _end(program)
    if not ended:
        return f"no result after {limit_s:.0f} s"
    return f"exit status {program.returncode}" if program.returncode else None


def answer(arguments, environment, scratch, *, log_path, limit_s, stop=None):
    """The last line a program prints (before it may come warnings). Raises OSError when it did not end well, and as run()."""
    failure = run(arguments, environment, scratch, log_path=log_path, limit_s=limit_s, stop=stop)
    if failure:
        raise OSError(f"{failure}: {last_words(log_path)}")
    return (_tail(log_path).decode(errors="replace").splitlines() or [""])[-1].strip()


def last_words(log_path):
    """The end of a program's output, in one line, without frames and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m|[^\x20-\x7e\n\r]", " ", _tail(log_path).decode(errors="replace"))
    lines = [" ".join(line.split()) for line in re.split(r"[\n\r]+", text)]
    return " / ".join([line for line in lines if line][-LAST_LINES:])[-LAST_WORDS_CHARS:] or "it said nothing"


def _has_ended(pid):
    """Whether that child has ended. It is left to be waited for, so that its number, and its group's, stay its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody else collected it
        return True


def _end(program):
    """KILL what is left, until it is gone: its session, and children of its that made sessions of their own."""
    known, until_s = {}, time.monotonic() + END_S
    while True:
        table = procfs.scan()
        ours = [process for process in table.values() if process.session == program.pid]
        known.update((process.pid, process) for process in ours + procfs.descendants(program.pid, table))
        left = [process for process in known.values() if procfs.is_alive(process)]
        if not left or time.monotonic() > until_s:
            break
        for process in left:
            procfs.send_signal(process, signal.SIGKILL)
        time.sleep(0.01)
    program.wait(END_S)


def _identity(user):
    """Popen's arguments to become USER with its own groups; nothing for None or when we are that user."""
    if user is None or pwd.getpwnam(user).pw_uid == os.geteuid():
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": os.getgrouplist(user, account.pw_gid)}


def _private(path, flags):
    return os.open(path, flags, 0o600)


def _without_waiting(path, flags):
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe in the file's place must not hold us up


def _tail(path):
    with open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - LAST_WORDS_BYTES, 0))
        return file.read()
