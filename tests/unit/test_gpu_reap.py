# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reaping for real: orphaned processes, servers and strangers that hold stand-in GPU nodes, in a process namespace of each test's own."""

from __future__ import annotations

import os
import time

import pytest
import reap_lab
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_memory

run = reap_lab.run
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and device nodes want root")
NODES = ["/dev/nvidia0", "/dev/nvidiactl"]


def test_only_orphans_are_ended_by_term_and_a_second_run_changes_nothing():
    found = run(
        """
        orphans = [lab.orphan(), lab.orphan("sglang::scheduler_TP1", "/dev/nvidia1"), lab.orphan("sglang::detokenizer", "")]
        others = [*lab.server(2), lab.start("-"), lab.start("nvtop"), lab.start("VLLM::EngineCore"), lab.orphan("python train.py")]
        first, second = lab.module("gpu_worker"), lab.module("gpu_worker")
        print(json.dumps([orphans, others, lab.alive(*orphans, *others), first, second]))
        """
    )
    orphans, others, alive, first, second = found
    assert alive == others
    assert first["changed"] is True
    assert {entry["pid"]: (entry["signals"], entry["ended_by"]) for entry in first["reaped"]} == dict.fromkeys(orphans, (["TERM"], "TERM"))
    assert first["msg"].startswith(f"this machine: ended 3 processes: pid {orphans[0]} sglang::scheduler_TP0 (TERM), pid")
    assert {row["pid"]: row["class"] for row in first["left"]} == {
        **dict.fromkeys(others[:4], "serving"), **dict.fromkeys(others[4:], "foreign"),
    }  # fmt: skip
    assert (second["changed"], second["reaped"], second["msg"]) == (False, [], "this machine: no GPU worker to reap")
    assert first["seen"] == {"complete": True, "why": ""}


def test_check_mode_says_what_would_be_and_the_difference_is_the_same():
    pid, alive, said, done = run(
        """
        pid = lab.orphan()
        said = lab.module("gpu_worker", _ansible_check_mode=True, _ansible_diff=True)
        alive = lab.alive(pid)
        print(json.dumps([pid, alive, said, lab.module("gpu_worker", _ansible_diff=True)]))
        """
    )
    assert alive == [pid]
    assert (said["changed"], [entry["signals"] for entry in said["reaped"]]) == (True, [[]])
    assert said["msg"] == f"this machine: would end 1 process: pid {pid} sglang::scheduler_TP0"
    assert said["diff"] == done["diff"] == {"before": f"{pid} sglang::scheduler_TP0 orphaned /dev/nvidia0 /dev/nvidiactl\n", "after": ""}


def test_what_ignores_term_or_is_stopped_gets_kill():
    pids, alive, result = run(
        """
        pids = [lab.orphan(words="ignore"), lab.orphan()]
        os.kill(pids[1], signal.SIGSTOP)
        result = lab.module("gpu_worker", term_timeout_s=0.5)
        print(json.dumps([pids, lab.alive(*pids), result]))
        """
    )
    assert alive == []
    assert {entry["pid"]: (entry["signals"], entry["ended_by"]) for entry in result["reaped"]} == dict.fromkeys(
        pids, (["TERM", "KILL"], "KILL")
    )


def test_what_an_orphan_has_started_goes_with_it_also_when_it_outlives_it():
    pids, alive, result = run(
        """
        pids = [lab.orphan(words="child stubborn")]
        pids += [process.pid for process in procfs.descendants(pids[0])]
        result = lab.module("gpu_worker", term_timeout_s=0.5)
        print(json.dumps([pids, lab.alive(*pids), result]))
        """
    )
    assert alive == []
    assert [(entry["pid"], entry["title"], entry["ended_by"]) for entry in result["reaped"]] == [
        (pids[0], "sglang::scheduler_TP0", "TERM"),
        (pids[1], "tool", "KILL"),
    ]


def test_what_begets_others_as_it_ends_is_ended_all_the_same():
    left, result = run(
        """
        pid = lab.orphan(words="beget")
        result = lab.module("gpu_worker", term_timeout_s=1)
        print(json.dumps([lab.module("gpu_worker_info")["workers"], result]))
        """
    )
    assert left == []
    assert result.get("failed", False) is False
    assert [entry["ended_by"] for entry in result["reaped"]] == ["TERM", "TERM", "KILL"]


def test_a_pid_that_another_process_has_now_is_not_signalled():
    assert run(
        """
        pid = lab.orphan()
        found = gpu_worker_look.look("")
        (target,) = gpu_reap.targets(found).values()
        other = target._replace(process=target.process._replace(start=target.process.start - 1))
        entries = {other.key: gpu_reap._entry(other, found)}
        gpu_reap._signal([other], signal.SIGKILL, entries)
        gpu_reap._await({other.key: other}, 1.0, "KILL", entries)
        print(json.dumps([lab.alive(pid) == [pid], entries[other.key]["signals"], gpu_reap._is_still(other, found, (), entries)]))
        """
    ) == [True, [], False]


def test_a_server_that_is_just_ending_is_left_to_itself():
    """Between two looks the worker goes by itself: nothing is signalled, and nothing changed."""
    assert run(
        """
        pid = lab.orphan()
        first = gpu_worker_look.look("")
        os.kill(pid, signal.SIGKILL)
        entries = {}
        gpu_reap._end("", first, set(), 1.0, entries)
        print(json.dumps([len(gpu_reap.targets(first)), entries]))
        """
    ) == [1, {}]


def test_workers_of_a_live_program_are_its_own():
    pids, alive, found = run(
        """
        program = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", sys.executable, "-S", "-E", "-c",
             os.environ["LAB_PROCESS"], "sglang::scheduler_TP0", "/dev/nvidia0", ""],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
        pids = [program.pid, int(program.stdout.readline())]
        result = lab.module("gpu_worker", force=True)
        print(json.dumps([pids, lab.alive(*pids), result]))
        """
    )
    assert alive == pids
    assert [(row["pid"], row["class"]) for row in found["left"]] == [(pids[1], "foreign")]
    assert found["left"][0]["why"].startswith(f"it works for another program that lives: pid {pids[0]} (python")


def test_what_ringmasters_supervisor_has_adopted_is_its_business():
    pids, alive, found = run(
        """
        from pathlib import Path
        program = Path("/dev/ringmaster-0a1b2c3d4e5f6071.pyz")
        subreaper = "ctypes.CDLL(None).prctl(36, 1)"
        program.write_text(f"import ctypes, subprocess, sys, time; {subreaper}; subprocess.run(sys.argv[3:]); time.sleep(99)")
        worker = [sys.executable, "-S", "-E", "-c", os.environ["LAB_PROCESS"], "sglang::scheduler_TP0", "/dev/nvidia0", "fork"]
        supervisor = subprocess.Popen(
            [sys.executable, "-S", "-E", str(program), "run", "/dev", *worker], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        pids = [supervisor.pid, int(supervisor.stdout.readline())]
        time.sleep(0.3)
        result = lab.module("gpu_worker", force=True)
        print(json.dumps([pids, lab.alive(*pids), result]))
        """
    )
    assert alive == pids
    assert [(row["pid"], row["class"], row["why"]) for row in found["left"]] == [
        (pids[1], "loading", f"Ringmaster's supervisor, pid {pids[0]}, runs it")
    ]


def test_loading_until_a_port_is_open():
    classes = run(
        """
        loading, serving = lab.server(1, ""), lab.server(1)
        found = lab.classes(gpu_worker_look.look(""))
        print(json.dumps([[found[pid] for pid in loading], [found[pid] for pid in serving]]))
        """
    )
    assert classes == [["loading"] * 3, ["serving"] * 3]


def test_force_ends_the_server_through_its_launcher_and_no_stranger():
    server, stranger, alive, said, result = run(
        """
        server, stranger = lab.server(2), lab.start("-")
        said = lab.module("gpu_worker", force=True, _ansible_check_mode=True)
        result = lab.module("gpu_worker", force=True)
        print(json.dumps([server, stranger, lab.alive(*server, stranger), said, result]))
        """
    )
    assert alive == [stranger]
    assert [entry["pid"] for entry in said["reaped"]] == [entry["pid"] for entry in result["reaped"]] == server
    signals = [entry["signals"] for entry in result["reaped"]]
    assert signals == [["TERM"], [], [], []]  # its workers are ended by the launcher
    assert {entry["ended_by"] for entry in result["reaped"]} == {"TERM"}
    assert [row["class"] for row in result["left"]] == ["foreign"]


def test_force_kills_what_term_has_not_ended_workers_that_outlive_their_launcher_too():
    server, alive, result = run(
        """
        server = lab.server(2, "ignore")
        result = lab.module("gpu_worker", force=True, term_timeout_s=0.5)
        print(json.dumps([server, lab.alive(*server), result]))
        """
    )
    assert alive == []
    assert [entry["signals"] for entry in result["reaped"]] == [["TERM", "KILL"], ["KILL"], ["KILL"], ["KILL"]]


def test_a_leader_that_has_ended_is_reported_with_what_its_threads_do():
    pid, threads, result, again = run(
        """
        pid = lab.orphan(words="exit")
        while procfs.read(pid).state != "Z":
            time.sleep(0.01)
        result = lab.module("gpu_worker")
        print(json.dumps([pid, len(gpu_holders.live_threads(pid)), result, lab.module("gpu_worker_info")]))
        """
    )
    assert (threads, result["changed"]) == (1, False)
    (row,) = result["left"]
    assert (row["pid"], row["class"]) == (pid, "defunct")
    assert row["why"].startswith("its first thread has ended, 1 of its threads live: ")
    assert "nvidia-smi --gpu-reset" in row["advice"]
    assert [(one["nodes"], len(one["threads"])) for one in again["workers"]] == [(NODES, 1)]


def test_one_that_nobody_has_collected_holds_nothing():
    result = run(
        """
        pid = lab.start("sglang::scheduler_TP0")
        os.kill(pid, signal.SIGKILL)
        while procfs.read(pid).state != "Z":
            time.sleep(0.01)
        print(json.dumps(lab.module("gpu_worker")))
        """
    )
    (row,) = result["left"]
    assert (result["changed"], row["class"], row["advice"]) == (False, "defunct", None)
    assert row["why"].startswith("it has ended and holds nothing; pid ")


@pytest.mark.skipif(not os.path.isdir("/sys/fs/cgroup/freezer"), reason="state D for a test comes from version 1's freezer")
def test_state_d_is_reported_once_with_advice_and_not_signalled():
    pid, before, alive, result = run(
        """
        pid = lab.orphan()
        thaw = lab.freeze(pid)
        before = procfs.read(pid).state
        result = lab.module("gpu_worker")
        thaw()
        time.sleep(0.3)
        print(json.dumps([pid, before, lab.alive(pid), result]))
        """
    )
    assert before == "D"
    assert alive == [pid]  # nothing was waiting for it to wake up
    assert (result["failed"], result["changed"], result["reaped"]) == (True, False, [])
    assert [(row["pid"], row["class"]) for row in result["left"]] == [(pid, "unkillable")]
    assert f"1 GPU worker could not be ended: pid {pid} sglang::scheduler_TP0, unkillable: its launcher is gone" in result["msg"]
    assert "nvidia-smi --gpu-reset" in result["msg"]
    assert "reboot the node" in result["msg"]


@pytest.mark.skipif(not os.path.isdir("/sys/fs/cgroup/freezer"), reason="state D for a test comes from version 1's freezer")
def test_what_goes_into_state_d_during_the_reaping_is_left_and_told():
    pid, result = run(
        """
        import threading
        pid = lab.orphan(words="ignore")
        thaws = []
        threading.Timer(2.0, lambda: thaws.append(lab.freeze(pid))).start()
        result = gpu_reap.reap("", term_timeout_s=3.0)
        thaws[0]()
        print(json.dumps([pid, {**result, "failure": str(result["failure"])}]))
        """
    )
    (entry,) = result["reaped"]
    assert (entry["signals"], entry["ended_by"], result["changed"]) == (["TERM"], None, True)
    assert [(row["pid"], row["class"]) for row in result["left"]] == [(pid, "unkillable")]
    assert "could not be ended" in result["failure"]


def test_another_users_orphan_fails_with_what_to_do_an_own_one_is_ended():
    roots, own, alive, result, again = run(
        """
        import encodings.ascii  # where the interpreter is out of that user's reach, nothing can be loaded later
        roots, own = lab.orphan(), lab.orphan_of(65534, "sglang::scheduler_TP1")
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setresuid(65534, 65534, 65534)
            result = gpu_reap.reap("")
            os.write(writing, json.dumps({**result, "failure": str(result["failure"])}).encode())
            os._exit(0)
        os.close(writing)
        result = json.load(os.fdopen(reading))
        print(json.dumps([roots, own, lab.alive(roots, own), result, lab.module("gpu_worker")["msg"]]))
        """
    )
    assert alive == [roots]
    assert {entry["pid"]: entry["why"] for entry in result["reaped"]} == {roots: "this user may not signal it", own: None}
    assert "become: true" in result["failure"]
    assert result["seen"]["complete"] is False
    assert "run as root (become: true)" in result["seen"]["why"]
    assert f"ended 1 process: pid {roots}" in again


@pytest.mark.parametrize("name", ["101", "../101", "a b"])
def test_a_container_that_there_is_not(name):
    result = run(f"print(json.dumps(lab.module('gpu_worker', container={name!r})))")
    assert result["failed"] is True
    assert result["msg"].startswith(f"This machine has no container {name!r}. It has: none. Give the VMID on Proxmox")


def test_a_container_that_does_not_run_has_nothing_to_reap():
    kept, failed = run(
        """
        from pathlib import Path
        Path("/dev/lxc/a").mkdir(parents=True)
        Path("/dev/lxc/a/config").touch()
        lab.orphan()
        answers = [lab.module(name, container="a", lxc_paths=["/dev/lxc"]) for name in ("gpu_worker", "gpu_worker_info")]
        print(json.dumps([answers, lab.module("gpu_worker", container="b", lxc_paths=["/dev/lxc"])]))
        """
    )
    assert [answer.get("failed", False) for answer in kept] == [False, False]
    assert kept[0]["msg"] == "container a: no GPU worker to reap"
    assert kept[1]["workers"] == []
    assert "It has: a." in failed["msg"]


# --- with an nvidia-smi, which is a script; the namespace is taken for the machine, as the driver's pids are of that


MACHINE = 'gpu_worker_look._FIRST_PID_NAMESPACE = os.readlink("/proc/self/ns/pid")\n'
BACK = """
    pid = lab.orphan()
    lab.nvidia_smi("/dev", f"kill -0 {pid} 2>/dev/null && echo 0, 60500, 97887, 90, GPU-a || echo 0, %s, 97887, 0, GPU-a",
                   f"kill -0 {pid} 2>/dev/null && echo {pid}, GPU-a, python, 60000")
    result = gpu_reap.reap("", release_timeout_s=1.0, wedged_over_s=0.2)
    print(json.dumps({**result, "failure": str(result["failure"])}))
"""


def machine(code):
    return run(MACHINE + reap_lab.textwrap.dedent(code))


def test_memory_that_comes_back():
    result = machine(BACK % 500)
    assert result["workers"][0]["memory_mib"] == 60000
    assert result["gpus"] == [{"index": 0, "uuid": "GPU-a", "memory_before_mib": 60500, "memory_after_mib": 500, "held_mib": 0}]
    assert 0 <= result["released_after_s"] < 5
    assert "; their memory was back after " in result["msg"]
    assert result["failure"] == "None"


def test_memory_that_does_not_come_back_fails_and_the_gpu_is_wedged():
    result = machine(BACK % 60400)
    assert (result["changed"], result["released_after_s"]) == (True, None)
    assert result["gpus"][0]["held_mib"] == 59900
    assert "the processes have ended, but memory that they had is still in use (GPU 0: 59900 MiB)" in result["failure"]
    assert [gpu["index"] for gpu in result["wedged"]] == [0]


def test_a_wedged_gpu_is_reported_and_nothing_signalled():
    reports, told = machine(
        """
        lab.nvidia_smi("/dev", "echo 0, 624, 97887, 100")
        results = [gpu_reap.reap("", wedged_over_s=0.2)]
        holder = lab.start("-", "/dev/nvidia0")
        results.append(gpu_reap.reap("", wedged_over_s=0.2))
        print(json.dumps([[result["wedged"] for result in results], [[result["changed"], result["msg"]] for result in results]]))
        """
    )
    assert [[gpu["samples_mib"] for gpu in wedged] for wedged in reports] == [[[624, 624, 624]], []]
    assert told == [
        [False, "this machine: no GPU worker to reap; GPU 0 keeps 624 MiB for nobody (wedged)"],
        [False, "this machine: no GPU worker to reap"],
    ]


def test_an_nvidia_smi_that_fails_or_hangs_is_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    reap_lab.nvidia_smi(tmp_path, "echo broken; exit 9")
    assert gpu_memory.read() == ([], [], "nvidia-smi does not tell the memory of the GPUs (exit 9)")
    reap_lab.nvidia_smi(tmp_path, "exec sleep 5")
    begun = time.monotonic()
    assert gpu_memory.read(0.3).problem == "nvidia-smi does not tell the memory of the GPUs (no answer within 0.3 s)"
    assert time.monotonic() - begun < 4
    reap_lab.nvidia_smi(tmp_path, "echo 0, 624, 97887, 100", "exec sleep 5")
    assert gpu_memory.read(0.3).problem.startswith("nvidia-smi does not tell who uses the GPUs")
