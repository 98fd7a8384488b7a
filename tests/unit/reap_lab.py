# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real orphans, servers and other holders of stand-in GPU nodes, for tests of the reaper.

What ends processes runs in a process namespace of its own: a test can then reach nothing but what it has made, whatever runs on the
machine. `run` starts code there, in which `lab` is this module; process 1 is a shell, and /dev/nvidia0 to 3 are c 1:3 and c 1:5.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MAKE = """
set -e
mount -t tmpfs none /dev
for node in null:3 zero:5 urandom:9 nvidia0:3 nvidia1:5 nvidia2:3 nvidiactl:3; do mknod -m 666 /dev/${node%:*} c 1 ${node#*:}; done
"$@"
exit 0
"""
_STARTED = []
_HEAD = """
import json, os, signal, subprocess, sys, time
import reap_lab as lab
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_holders, gpu_reap, gpu_worker_look, gpu_workers, procfs
"""
# argv: what it is called ("-": keeps its name), nodes to open, and words: fork (the starter ends), child (one more,
# called tool), stubborn (the child ignores TERM), ignore (TERM), beget (on TERM, one like it, and end), close (maps the nodes and
# closes them), exit (the first thread ends)
PROCESS = """
import ctypes, os, signal, socket, subprocess, sys, threading, time
sys.path.insert(0, os.environ["LAB_STANDIN"])
from sglang.procs import set_title
title, nodes, words = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
if "fork" in words and os.fork():
    os._exit(0)
for node in nodes:
    opened = os.open(node, os.O_RDWR)
    if "close" in words:
        ctypes.CDLL(None).mmap(None, ctypes.c_size_t(4096), 1, 2, opened, ctypes.c_size_t(0))
        os.close(opened)
if "child" in words and os.fork() == 0:
    title = "tool"
    words += ["ignore"] * ("stubborn" in words)
if title != "-":
    set_title(title)
if "ignore" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "beget" in words:
    signal.signal(signal.SIGTERM, lambda *_: os.fork() and os._exit(0))
if title != "tool":
    print(os.getpid(), flush=True)
if "exit" in words:
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).pthread_exit(None)
time.sleep(600)
"""
# A launcher as SGLang's: started as `python -m sglang.launch_server`, ends its workers when it gets TERM. argv: ranks, words
LAUNCHER = """
import os, signal, socket, subprocess, sys, time
ranks, words = int(sys.argv[1]), sys.argv[2].split()
nodes = [f"/dev/nvidia{rank} /dev/nvidiactl" for rank in range(ranks)]
titles = [f"sglang::scheduler_TP{rank}" for rank in range(ranks)]
worker = [sys.executable, "-S", "-E", "-c", os.environ["LAB_PROCESS"]]
ignore = "ignore" if "ignore" in words else ""
made = [
    subprocess.Popen([*worker, title, own, ignore], stdout=subprocess.PIPE)
    for title, own in zip([*titles, "sglang::detokenizer"], [*nodes, ""])
]
for one in made:
    one.stdout.readline()
def end(*_arguments):
    for one in made:
        one.kill()
        one.wait()
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignore" in words else end)
if "listen" in words:
    listening = socket.create_server(("127.0.0.1", 0))
print(os.getpid(), *[one.pid for one in made], flush=True)
time.sleep(600)
"""


def environment():
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}/collections:{ROOT}/tests/unit",
        "LAB_STANDIN": str(ROOT / "roles" / "lab" / "files" / "standin"),
        "LAB_PROCESS": PROCESS,
    }


def run(code, timeout_s=60):
    """What CODE prints as JSON, run in namespaces of its own that end with it. Root only."""
    program = _HEAD + textwrap.dedent(code)
    wall = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    shell = ["setsid", "sh", "-c", _MAKE, "sh", sys.executable, "-c", program]
    done = subprocess.run([*wall, *shell], env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# --- inside -----------------------------------------------------------------------------------------------------------


def start(title, nodes="/dev/nvidia0 /dev/nvidiactl", words=""):
    """pid of a process called TITLE that has NODES open. With `fork` among WORDS its starter is gone: it is an orphan."""
    command = [sys.executable, "-S", "-E", "-c", PROCESS, title, nodes, words]
    starter = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment()
    )
    pid = int(starter.stdout.readline())
    _STARTED.append(starter)  # or Python collects what has ended
    if "fork" in words:
        starter.wait()
    return pid


def orphan(title="sglang::scheduler_TP0", nodes="/dev/nvidia0 /dev/nvidiactl", words=""):
    return start(title, nodes, f"fork {words}")


def orphan_of(user, title):
    """pid of an orphan of the user with that number, made without a program of its own, which he might not be allowed to read."""
    reading, writing = os.pipe()
    starter = os.fork()
    if starter == 0:
        os.setsid()
        if os.fork() == 0:
            opened = os.open("/dev/nvidia1", os.O_RDWR)
            os.setresuid(user, user, user)
            libc = ctypes.CDLL(None)
            libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc shows it as root's
            libc.prctl(15, title.encode()[:15], 0, 0, 0)  # PR_SET_NAME
            os.write(writing, str(os.getpid()).encode())
            time.sleep(600)
            os.close(opened)
        os._exit(0)
    os.waitpid(starter, 0)
    return int(os.read(reading, 16))


def server(ranks=1, words="listen"):
    """[pid of the launcher, of its schedulers, of the detokenizer]."""
    place = Path("/dev/lab/sglang")
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").touch()
    (place / "launch_server.py").write_text(LAUNCHER, encoding="utf-8")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "sglang.launch_server", str(ranks), words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**environment(), "PYTHONPATH": "/dev/lab"},
    )
    return [int(word) for word in launcher.stdout.readline().split()]


def module(name, **arguments):
    """What the module NAME answers to ARGUMENTS."""
    given = {"ANSIBLE_MODULE_ARGS": {"_ansible_remote_tmp": "/tmp", **arguments}}
    command = [sys.executable, "-m", f"ansible_collections.ringmaster.gpu.plugins.modules.{name}"]
    done = subprocess.run(command, input=json.dumps(given), env=environment(), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def nvidia_smi(folder, gpus, users=""):
    """An nvidia-smi on PATH, in FOLDER: GPUS and USERS are lines of shell that print what it says of the one or the other."""
    path = Path(folder, "nvidia-smi")
    path.write_text(f'#!/bin/sh\ncase "$1" in\n--query-gpu=*) {gpus};;\n--query-compute-apps=*) {users or ":"};;\nesac\n', encoding="utf-8")
    path.chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def alive(*pids):
    """Those of PIDS that live."""
    from ansible_collections.ringmaster.gpu.plugins.module_utils import procfs

    table = {pid: procfs.read(pid) for pid in pids}
    return [pid for pid in pids if table[pid] is not None and table[pid].state not in "ZX"]


def classes(found):
    return {worker.process.pid: worker.group for worker in found.workers}


def freeze(pid):
    """State D for PID, out of which no signal brings it: version 1's freezer. Returns what thaws it, or None where there is none."""
    place = Path(f"/sys/fs/cgroup/freezer/rm-test-reap-{os.getpid()}-{pid}")
    if not place.parent.is_dir():
        return None
    place.mkdir()
    (place / "cgroup.procs").write_text(str(pid), encoding="ascii")
    (place / "freezer.state").write_text("FROZEN", encoding="ascii")
    while (place / "freezer.state").read_text(encoding="ascii").strip() != "FROZEN":
        time.sleep(0.01)

    def thaw():
        (place / "freezer.state").write_text("THAWED", encoding="ascii")
        (place.parent / "cgroup.procs").write_text(str(pid), encoding="ascii")
        place.rmdir()

    return thaw
