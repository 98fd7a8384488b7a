# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds GPU nodes: real processes with stand-in nodes open."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest
import reap_lab
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_holders

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
NULL = os.makedev(1, 3)


@pytest.fixture
def node(tmp_path):
    """make(name): a node /.../dev/NAME, as one in a chroot shows."""

    def make(name):
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, 0o20666, NULL)
        return path

    return make


@contextlib.contextmanager
def holder(*paths):
    """A process that has PATHS open."""
    program = "import os, sys, time; opened = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]; print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-E", "-c", program, *map(str, paths)], stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_nodes_are_told_as_the_process_knows_them_and_once(node):
    gpu, control, caps = node("nvidia0"), node("nvidiactl"), node("nvidia-caps/nvidia-cap1")
    with holder(gpu, gpu, control, caps, node("null"), "/dev/zero") as pid, holder("/dev/null") as other:
        assert gpu_holders.scan([pid, other]).nodes == {pid: ["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0", "/dev/nvidiactl"]}
        assert gpu_holders.scan().nodes[pid] == ["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0", "/dev/nvidiactl"]


def test_a_node_that_was_removed_is_still_held(node):
    gpu = node("nvidia3")
    with holder(gpu) as pid:
        gpu.unlink()
        assert gpu_holders.scan([pid]).nodes == {pid: ["/dev/nvidia3"]}


def test_a_file_of_that_name_is_no_node(tmp_path):
    for name in ("dev/nvidia0", "nvidia0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.mknod(tmp_path / "nvidia1", 0o20666, NULL)  # a node, but not below dev
    with holder(tmp_path / "dev/nvidia0", tmp_path / "nvidia0", tmp_path / "nvidia1") as pid:
        assert gpu_holders.scan([pid]).nodes == {}


def test_shared_out_or_not_the_answer_is_the_same(node, monkeypatch):
    with holder(node("nvidia0")) as one, holder(node("nvidia1")) as two:
        alone = gpu_holders.scan([one, two, os.getpid()])
        monkeypatch.setattr(gpu_holders, "_SHARE", 1)
        monkeypatch.setattr(gpu_holders.os, "sched_getaffinity", lambda _pid: {0, 1, 2})
        assert gpu_holders.scan([one, two, os.getpid()]) == alone == ({one: ["/dev/nvidia0"], two: ["/dev/nvidia1"]}, [])


def test_a_share_that_no_child_has_looked_at_is_looked_at_here(node, monkeypatch):
    monkeypatch.setattr(gpu_holders, "_SHARE", 1)
    monkeypatch.setattr(gpu_holders.os, "sched_getaffinity", lambda _pid: {0, 1})

    def refuse():
        raise BlockingIOError

    with holder(node("nvidia0")) as pid:
        monkeypatch.setattr(gpu_holders.os, "fork", refuse)
        assert gpu_holders.scan([pid, os.getpid()]).nodes == {pid: ["/dev/nvidia0"]}


def test_a_process_that_is_gone_holds_nothing():
    with subprocess.Popen(["true"]) as gone:
        pass
    assert gpu_holders.scan([gone.pid]) == ({}, [])


def test_what_a_user_may_not_see_is_said(node):
    with holder(node("nvidia0")) as pid:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setresuid(65534, 65534, 65534)
            os.write(writing, json.dumps(gpu_holders.scan([pid, os.getppid()])).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert json.load(pipe) == [{}, sorted([pid, os.getpid()])]


def test_threads_of_the_kernel_are_passed_over():
    pids = gpu_holders.user_processes()
    assert os.getpid() in pids
    with open("/proc/2/comm", encoding="ascii") as file:
        is_machine = file.read() == "kthreadd\n"
    assert (2 in pids) is not is_machine


def test_in_a_container_nobody_is_a_thread_of_the_kernel():
    assert reap_lab.run("print(json.dumps(sorted(gpu_holders.user_processes()) == sorted(procfs.scan())))") is True


def test_a_node_in_a_container_seen_from_outside(tmp_path):
    pids = tmp_path / "pid"
    code = f"""
        pid = lab.start("-", "/dev/nvidia0 /dev/nvidiactl")
        open({str(pids)!r}, "w").write(os.readlink(f"/proc/{{pid}}/ns/pid"))
        while os.path.exists({str(pids)!r}):
            time.sleep(0.05)
        print(1)
    """
    thread = threading.Thread(target=reap_lab.run, args=(code,))
    thread.start()
    while not pids.exists() or not pids.read_text():
        time.sleep(0.05)
    nodes = [found for pid, found in gpu_holders.scan().nodes.items() if os.readlink(f"/proc/{pid}/ns/pid") == pids.read_text()]
    pids.unlink()
    thread.join()
    assert nodes == [["/dev/nvidia0", "/dev/nvidiactl"]]


def test_a_leader_that_has_ended_holds_by_its_threads_what_they_do_is_told():
    nodes, threads, state = reap_lab.run(
        """
        pid = lab.start("sglang::scheduler_TP0", words="exit")
        while procfs.read(pid).state != "Z":
            time.sleep(0.01)
        print(json.dumps([gpu_holders.scan().nodes.get(pid), gpu_holders.live_threads(pid), procfs.read(pid).state]))
        """
    )
    assert (nodes, state) == (["/dev/nvidia0", "/dev/nvidiactl"], "Z")
    assert [thread["state"] for thread in threads] == ["S"]
    assert threads[0]["waits_in"] is None or "sleep" in threads[0]["waits_in"] or "futex" in threads[0]["waits_in"]


def test_a_node_that_is_mapped_and_closed():
    assert reap_lab.run(
        """
        pid = lab.orphan(nodes="/dev/nvidia1", words="close")
        print(json.dumps([gpu_holders.scan().nodes, gpu_holders.mapped(pid), gpu_worker_look.look("").view.nodes[pid]]))
        """
    ) == [{}, ["/dev/nvidia1"], ["/dev/nvidia1"]]


def test_numbers_of_gpus():
    nodes = ["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-uvm", "/dev/nvidia10", "/dev/nvidia2", "/dev/nvidiactl"]
    assert gpu_holders.gpu_minors(nodes) == [2, 10]
