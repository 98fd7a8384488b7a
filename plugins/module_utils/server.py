# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One server process tree: started, watched, stopped. This process must be its parent and subreaper."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import select
import signal
import subprocess
import time
from typing import NamedTuple

from . import procfs
from .errors import RingmasterError

# Titles that SGLang gives its processes, and what each of them is. When one is gone the server is dead, even though its
# launcher may take another minute to notice.
ROLES = (
    ("sglang::scheduler", "scheduler"),
    ("sglang::detokenizer", "detokenizer"),
    ("sglang::data_parallel_controller", "data parallel controller"),
)


STARTING = "starting"  # the role of a worker before it has told its name


class Died(Exception):
    """A member of the tree is gone: its role or title, and its own exit code where that can be seen."""

    def __init__(self, role, exit_code=None):
        super().__init__(role, exit_code)
        self.role, self.exit_code = role, exit_code


def role_of(pid):
    """(role, title) of a renamed SGLang process, or None."""
    title = (procfs.command_line(pid) or [""])[0]
    return next(((role, title) for prefix, role in ROLES if title.startswith(prefix)), None)


def is_spawned(pid):
    """Whether PID is a worker of Python's multiprocessing, started with `spawn`, which is how SGLang starts its ranks."""
    return "from multiprocessing.spawn import spawn_main" in " ".join(procfs.command_line(pid))


class Member(NamedTuple):
    """A process without which the server is dead. `pidfd` tells of its end at once; None where the kernel has none."""

    role: str
    process: procfs.Process
    pidfd: int | None


class Server:
    """Started with `start`; `look` and `check` raise Died; `stop` leaves no process behind."""

    def __init__(self, arguments, environment, *, log_path, user=None, directory=None, core_dumps=False):
        self.arguments, self.environment, self.log_path = arguments, environment, log_path
        self.user, self.directory, self.core_dumps = user, directory, core_dumps
        self.members = {}  # title -> Member
        self.pids = set()  # every process of the tree that was seen
        self.popen = None
        self._ends = select.poll()
        self._launcher = None  # its pidfd

    def start(self):
        """Launch it in a session of its own, its output going straight to the log (a pipe would tie it to our health)."""
        with open(self.log_path, "ab", opener=_private) as log, explained(self.arguments[0], self.user):
            self.popen = subprocess.Popen(
                self.arguments,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.directory or "/",
                preexec_fn=self._before_exec,
                **identity(self.user),
            )
        self._launcher = self._watch(procfs.read(self.popen.pid))

    def _before_exec(self):
        procfs.die_with_parent()
        most = resource.getrlimit(resource.RLIMIT_CORE)[1] if self.core_dumps else 0  # a rank's core can be as large as the host's memory
        resource.setrlimit(resource.RLIMIT_CORE, (most, most))

    def look(self):
        """The live Processes of the tree now, by a scan of /proc. Raises Died as soon as the launcher or a known member is gone."""
        table = procfs.scan()
        tree = [process for process in procfs.descendants(os.getpid(), table) if process.state not in "ZX"]
        self.pids.update(process.pid for process in tree)
        self.check()
        self._note_members(tree)
        procfs.reap_orphans(self.popen.pid, table)
        return tree

    def note_children(self):
        """Learn of members among the launcher's own children, which is far cheaper than a look at the whole tree."""
        self._note_members(filter(None, map(procfs.read, procfs.children(self.popen.pid))))

    def _note_members(self, processes):
        known = {member.process.pid: title for title, member in self.members.items()}
        for process in sorted(processes, key=lambda process: process.start):
            former = known.get(process.pid)
            if former is not None and self.members[former].role != STARTING:
                continue
            role, title = role_of(process.pid) or (None, None)
            if former is None and role is None and process.ppid == self.popen.pid and is_spawned(process.pid):
                role, title = STARTING, f"a worker (pid {process.pid}) that had not told its name yet"
            if role is None or title in self.members:  # a forked child shows its parent's title, too: the elder is the member
                continue
            if former is None and process.ppid == os.getpid():  # an orphan at first sight: whoever went before it will be told of
                continue
            if former is None:
                self.members[title] = Member(role, process, self._watch(process))
            else:
                self.members[title] = self.members.pop(former)._replace(role=role)

    def _watch(self, process):
        pidfd = procfs.open_pidfd(process)
        if pidfd is not None:
            self._ends.register(pidfd, select.POLLIN)
        return pidfd

    def check(self):
        """A cheap `look`: the launcher and the members known so far. Raises Died."""
        exit_code = self.popen.poll()
        if exit_code is not None:
            raise Died("launcher", exit_code)
        ended = {descriptor for descriptor, _event in self._ends.poll(0)}
        for title, member in list(self.members.items()):
            if member.pidfd in ended or (member.pidfd is None and not procfs.is_alive(member.process)):
                exit_code = procfs.exit_code(member.process.pid)
                if self._went_first(member):
                    raise Died("launcher", self.popen.wait())
                if member.role != STARTING or exit_code:
                    raise Died(title, exit_code)
                self._forget(title)  # without a name, and without a fault: it may have done its job

    def _went_first(self, member):
        """Whether the launcher did: as it ends, its children see their pipes closed, then get another parent and a signal, and only then is
        it a zombie."""
        if procfs.is_exiting(self.popen.pid):
            return True
        now, then = procfs.read(member.process.pid), member.process
        return now is not None and now.start == then.start and then.ppid == self.popen.pid != now.ppid

    def _forget(self, title):
        pidfd = self.members.pop(title).pidfd
        if pidfd is not None:
            self._ends.unregister(pidfd)
            os.close(pidfd)

    def _close(self):
        """Give the descriptors back: a plan has many launches."""
        for title in list(self.members):
            self._forget(title)
        if self._launcher is not None:
            self._ends.unregister(self._launcher)
            os.close(self._launcher)
            self._launcher = None

    def wait(self, timeout_s):
        """Sleep, but no longer than until the launcher or a member ends."""
        self._ends.poll(timeout_s * 1000)

    def schedulers(self):
        """{title: Process} of the ranks."""
        return {title: member.process for title, member in self.members.items() if member.role == "scheduler"}

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
        self._close()
        return {
            "by": by,
            "drained": drained,
            "exit": _shell_code(self.popen.poll()),
            "seconds": round(time.monotonic() - begun, 2),
            "left": [process.pid for process in left],
        }


@contextlib.contextmanager
def explained(program, user):
    """Turns what keeps PROGRAM from being started as USER into a RingmasterError."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise RingmasterError(
            f"The server cannot be started: {program}{f' as user {user}' if user else ''}: {error}.",
            "Check that this user may run that interpreter.",
        ) from error


def _private(path, flags):
    return os.open(path, flags, 0o600)


def identity(user):
    """Popen's arguments to become USER with its own groups; nothing for None or when we are that user."""
    if user is None or pwd.getpwnam(user).pw_uid == os.geteuid():
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": os.getgrouplist(user, account.pw_gid)}


def _shell_code(code):
    """As a shell shows it: 128 + signal for a process that a signal ended."""
    return 128 - code if code is not None and code < 0 else code
