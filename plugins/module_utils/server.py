# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One server process tree: started, watched, stopped. This process must be its parent and subreaper."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time

from . import procfs
from .errors import RingmasterError

# Titles that SGLang gives its processes, and what each of them is. When one is gone the server is dead, even though its
# launcher may take another minute to notice.
ROLES = (
    ("sglang::scheduler", "scheduler"),
    ("sglang::detokenizer", "detokenizer"),
    ("sglang::data_parallel_controller", "data parallel controller"),
)


class Died(Exception):
    """A member of the tree is gone: its role, and the launcher's exit code where that is known."""

    def __init__(self, role, exit_code=None):
        super().__init__(role, exit_code)
        self.role, self.exit_code = role, exit_code


def role_of(pid):
    """(role, title) of a renamed SGLang process, or None."""
    title = (procfs.command_line(pid) or [""])[0]
    return next(((role, title) for prefix, role in ROLES if title.startswith(prefix)), None)


class Server:
    """Started with `start`; `look` raises Died; `stop` leaves no process behind."""

    def __init__(self, arguments, environment, *, log_path, user=None, directory=None):
        self.arguments, self.environment, self.log_path = arguments, environment, log_path
        self.user, self.directory = user, directory
        self.members = {}  # title -> (role, Process)
        self.popen = None

    def start(self):
        """Launch it in a session of its own, its output going straight to the log (a pipe would tie it to our health)."""
        with open(self.log_path, "ab", opener=_private) as log, _explained(self.arguments[0], self.user):
            self.popen = subprocess.Popen(
                self.arguments,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.directory or "/",
                preexec_fn=procfs.die_with_parent,
                **_identity(self.user),
            )

    def look(self):
        """The live Processes of the tree now. Raises Died as soon as the launcher or a known member is gone."""
        table = procfs.scan()
        tree = [process for process in procfs.descendants(os.getpid(), table) if process.state not in "ZX"]
        exit_code = self.popen.poll()
        if exit_code is not None:
            raise Died("launcher", exit_code)
        self._note_members(tree)
        alive = {(process.pid, process.start) for process in tree}
        for title, (_role, process) in self.members.items():
            if (process.pid, process.start) not in alive:
                raise Died(title)
        procfs.reap_orphans(self.popen.pid, table)
        return tree

    def _note_members(self, processes):
        known = {process.pid for _role, process in self.members.values()}
        for process in sorted(processes, key=lambda process: process.start):
            if process.pid not in known:
                found = role_of(process.pid)
                if found:  # a forked child shows its parent's title, too: the elder is the member
                    self.members.setdefault(found[1], (found[0], process))

    def check(self):
        """A cheap `look`: the launcher, its children, and the members known so far. Raises Died."""
        exit_code = self.popen.poll()
        if exit_code is not None:
            raise Died("launcher", exit_code)
        self._note_members(filter(None, map(procfs.read, procfs.children(self.popen.pid))))
        for title, (_role, process) in self.members.items():
            if not procfs.is_alive(process):
                raise Died(title)

    def schedulers(self):
        """{title: Process} of the ranks."""
        return {title: process for title, (role, process) in self.members.items() if role == "scheduler"}

    def stop(self, *, drain_timeout_s):
        """End the server and everything below. Returns {by, drained, exit, seconds, left [pid]}.

        With DRAIN_TIMEOUT_S the launcher alone gets SIGTERM and that time to finish its requests: right once the server
        answers. With None the whole tree is killed at once: right before, when a SIGTERM would leave orphans.
        """
        begun = time.monotonic()
        by, drained = "SIGKILL", False
        if drain_timeout_s is not None and self.popen.poll() is None:
            by = "SIGTERM"
            self.popen.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(drain_timeout_s)
                drained = True
            by = by if drained else "SIGTERM, then SIGKILL"
        elif self.popen.poll() is not None:
            by = "itself"
        left = procfs.kill_descendants(20.0, keep_for_wait=self.popen.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(5)
        return {
            "by": by,
            "drained": drained,
            "exit": _shell_code(self.popen.poll()),
            "seconds": round(time.monotonic() - begun, 2),
            "left": [process.pid for process in left],
        }


@contextlib.contextmanager
def _explained(program, user):
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise RingmasterError(
            f"The server cannot be started: {program}{f' as user {user}' if user else ''}: {error}.",
            "Check that this user may run that interpreter.",
        ) from error


def _private(path, flags):
    return os.open(path, flags, 0o600)


def _identity(user):
    """Popen's arguments to become USER with its own groups; nothing for None or when we are that user."""
    if user is None or pwd.getpwnam(user).pw_uid == os.geteuid():
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": os.getgrouplist(user, account.pw_gid)}


def _shell_code(code):
    """As a shell shows it: 128 + signal for a process that a signal ended."""
    return 128 - code if code is not None and code < 0 else code
