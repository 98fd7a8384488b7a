# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of this machine: trees, orphans, and signals that never reach another process with the same pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import procfs

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
COLLECTIONS = next(entry for entry in sys.path if entry.endswith("collections"))


def in_python(code):
    """Output of CODE in a process of its own, which may become a subreaper without any harm to ours."""
    program = "import os, signal, subprocess, sys, time\nfrom ansible_collections.ringmaster.gpu.plugins.module_utils import procfs\n"
    done = subprocess.run(
        [sys.executable, "-c", program + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": COLLECTIONS}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def sleeper():
    child = subprocess.Popen(SLEEP)
    yield child
    child.kill()
    child.wait()


def test_read_says_what_the_kernel_says(sleeper):
    process = procfs.read(sleeper.pid)
    assert (process.pid, process.ppid, process.session) == (sleeper.pid, os.getpid(), os.getsid(0))
    assert process.start >= procfs.read(os.getpid()).start
    assert procfs.read(os.getpid()).rss_bytes > 5 << 20
    assert procfs.read(os.getpid()).cpu_s > 0


def test_a_name_with_brackets_and_blanks(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        deadline = time.monotonic() + 5
        while procfs.read(child.pid).comm != "a) R 1 (b" and time.monotonic() < deadline:
            time.sleep(0.01)
        process = procfs.read(child.pid)
        child.kill()
    assert (process.comm, process.ppid) == ("a) R 1 (b", os.getpid())


def test_nobody():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert procfs.read(gone.pid) is None
    assert (procfs.command_line(gone.pid), procfs.environment(gone.pid), procfs.bytes_read(gone.pid)) == ([], None, 0)


def test_environment_and_command_line():
    with subprocess.Popen(SLEEP, env={"A": "1=2", "B": ""}) as child:
        deadline = time.monotonic() + 5
        while procfs.command_line(child.pid) != SLEEP and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = procfs.environment(child.pid), procfs.command_line(child.pid)
        child.kill()
    assert seen == ({"A": "1=2", "B": ""}, SLEEP)


def test_bytes_read_counts_files(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(3 << 20))
    before = procfs.bytes_read(os.getpid())
    (tmp_path / "weights").read_bytes()
    assert procfs.bytes_read(os.getpid()) - before >= 3 << 20


def test_descendants_come_after_their_parents():
    out = in_python("""
        code = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        child.stdout.readline()
        found = procfs.descendants(os.getpid())
        assert [process.ppid for process in found] == [os.getpid(), child.pid], found
        assert found[0].pid == child.pid and os.getpid() not in [process.pid for process in found]
        print(len(procfs.kill_descendants(5)))
    """)
    assert out == "0\n"


def test_an_orphan_that_forked_twice_and_left_the_session_is_still_ours():
    out = in_python("""
        procfs.become_subreaper()
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(write_end, b"%d" % os.getpid())
                time.sleep(60)
            os._exit(0)
        orphan = int(os.read(read_end, 20))
        time.sleep(0.2)
        procfs.reap_orphans()
        assert [process.pid for process in procfs.descendants(os.getpid())] == [orphan]
        begun = time.monotonic()
        print(procfs.kill_descendants(5), procfs.descendants(os.getpid()), time.monotonic() - begun < 1)
    """)
    assert out == "[] [] True\n"


def test_kill_descendants_outruns_one_that_keeps_forking():
    out = in_python("""
        procfs.become_subreaper()
        code = '''
        import os, signal, time
        for _ in range(400):  # each child leaves the session and stays
            time.sleep(0.005)
            if os.fork() == 0:
                os.setsid()
                time.sleep(5)
                os._exit(0)
        '''
        import textwrap
        for _ in range(3):
            subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
        time.sleep(0.3)
        print(procfs.kill_descendants(10), procfs.descendants(os.getpid()))
    """)
    assert out == "[] []\n"


def test_the_exit_of_the_one_that_is_waited_for_is_left_alone():
    out = in_python("""
        procfs.become_subreaper()
        waited, other = subprocess.Popen(["sh", "-c", "exit 7"]), subprocess.Popen(["true"])
        time.sleep(0.3)
        procfs.reap_orphans(waited.pid)
        print(procfs.read(other.pid), waited.wait())
    """)
    assert out == "None 7\n"


def test_a_signal_reaches_that_very_process(sleeper):
    assert procfs.send_signal(procfs.read(sleeper.pid), signal.SIGTERM) is True
    assert sleeper.wait(5) == -signal.SIGTERM
    assert procfs.send_signal(procfs.Process(sleeper.pid, "x", "S", 1, 1, 0, 0.0, 1, 0), signal.SIGTERM) is False


@pytest.mark.parametrize("kernel", ["with pidfd", "without pidfd"])
def test_a_later_process_with_the_pid_is_never_hit(sleeper, kernel, monkeypatch):
    if kernel == "without pidfd":  # as Linux before 5.3 answers

        def refuse(_pid):
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    now = procfs.read(sleeper.pid)
    earlier = now._replace(start=now.start - 1)
    assert procfs.send_signal(earlier, signal.SIGKILL) is False
    assert procfs.is_alive(earlier) is False
    assert sleeper.poll() is None
    assert procfs.send_signal(now, signal.SIGKILL) is True
    assert sleeper.wait(5) == -signal.SIGKILL


def test_a_zombie_is_not_alive_and_gets_no_signal():
    child = subprocess.Popen(["true"])
    process = procfs.read(child.pid)
    deadline = time.monotonic() + 5
    while procfs.read(child.pid).state != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (procfs.is_alive(process), procfs.send_signal(process, signal.SIGKILL)) == (False, False)
    child.wait()


def test_a_child_dies_with_its_parent():
    code = """
        child = subprocess.Popen(["sleep", "60"], preexec_fn=procfs.die_with_parent)
        print(child.pid)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    program = "import os, signal, subprocess, sys\nfrom ansible_collections.ringmaster.gpu.plugins.module_utils import procfs\n"
    environment = {**os.environ, "PYTHONPATH": COLLECTIONS}
    done = subprocess.run([sys.executable, "-c", program + textwrap.dedent(code)], env=environment, capture_output=True, check=False)
    deadline = time.monotonic() + 5
    while _lives(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(int(done.stdout))


def test_only_marked_processes_are_killed(sleeper):
    marked = subprocess.Popen(SLEEP, env={"RINGMASTER_TEST_MARK": "/a/b/c"})
    other = subprocess.Popen(SLEEP, env={"RINGMASTER_TEST_MARK": "/a/bb"})
    try:
        deadline = time.monotonic() + 5
        while procfs.command_line(marked.pid) != SLEEP and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [process.pid for process in procfs.kill_marked("RINGMASTER_TEST_MARK=/a/b/")] == [marked.pid]
        assert marked.wait(5) == -signal.SIGKILL
        assert (other.poll(), sleeper.poll()) == (None, None)
    finally:
        for child in (marked, other):
            child.kill()
            child.wait()


def _lives(pid):
    process = procfs.read(pid)
    return process is not None and process.state not in "ZX"
