# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single trials (sglang_trial) in the container, beside its production server, in a state directory that is a small disk of its own.

Everything is read from outside, through /proc: the container's processes, its sockets, and its files by way of its init's root.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path

import yaml
from harness import CONTAINERS, PATIENCE_S, Host

DISK_KIB = 3072
MODEL = "/opt/lab/trial-model"
PORT = 31000
KEY = "k3y-of-the-trial-that-nobody-else-may-see"
LEASE_S = 12  # a controller on a busy machine has to keep it
DRAIN_S = 6
LONG_LEASE_S = 60  # where the controller is there: what ends within DRAIN_S and SETTLE_S was not ended by the lease
SETTLE_S = 20  # what is promised on top of the drain, and of the lease where the controller is lost
USER = "tuner"  # not root, so that systemd takes no orders from it: the guardian watches over its trials

LOAD = {"load_s": 2.5, "shards": 12, "warmup_s": 0.1, "drain_poll_s": 0.1, "crash_settle_s": 1.0, "detokenizer_loss_s": 30.0}
SHORT = {"name": "c2", "concurrency": 2, "input_len": 16, "output_len": 16, "requests": 2, "warmup_requests": 0}
LONG = {**SHORT, "output_len": 64, "requests": 400}
MOMENTS = {  # name: (the event that says so, workload, faults of the server)
    "loading": (lambda event: event["kind"] == "progress", SHORT, ""),
    "measuring": (lambda event: event["kind"] == "workload", LONG, ""),
    "stopping": (lambda event: event.get("phase") == "stop", SHORT, "slow_drain_s:3"),
}


class Trials:
    """The trials of USER in one container."""

    def __init__(self, host: Host, user="root"):
        self.host, self.user = host, user
        self.directory = f"/var/lib/ringmaster-trials-{user}"
        words = ["lxc-info", "-P", CONTAINERS, "-n", host.name, "-pH"]
        self.init = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        self.play = host.directory / f"trial-{user}.yml"
        if user != "root":
            host.inside("sh", "-c", f"useradd -m {user} && cp -r /root/.ssh /home/{user} && chown -R {user} /home/{user}/.ssh")
        host.inside("mkdir", "-p", self.directory, MODEL)
        host.inside("mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k,mode=755", "none", self.directory)
        host.inside("chown", user, self.directory)
        (host.root / MODEL[1:] / "config.json").write_text("{}")
        (host.root / MODEL[1:] / "lab.json").write_text(json.dumps(LOAD))

    def remove(self):
        self.host.inside("umount", "-l", self.directory)

    def path(self, *parts):
        """A path below the trials' state directory as this machine can open it."""
        return Path(f"/proc/{self.init}/root{self.directory}", *parts)

    def start(self, moment, *, short=False, lease_s=LEASE_S):
        """Start a trial whose server is busy long enough at MOMENT; a Run. With SHORT its measurement soon ends by itself."""
        _event, workload, fault = MOMENTS[moment]
        workload = SHORT if short else workload
        task = {
            "python": "/opt/lab/venv/bin/python", "model_path": MODEL, "port": PORT, "state_dir": self.directory, "keep_trials": 3,
            "flags": {"tp-size": 2, "disable-custom-all-reduce": True, "api-key": KEY},
            "environment": {"RINGMASTER_LAB_FAULT": fault} if fault else {},
            "nccl": {"NCCL_MAX_NCHANNELS": "2"},
            "workloads": [workload], "lease_s": lease_s, "drain_timeout_s": DRAIN_S, "stall_timeout_s": 30,
        }  # fmt: skip
        tasks = [{"ringmaster.gpu.sglang_trial": task, "register": "done"}, {"ansible.builtin.debug": {"var": "done.trial"}}]
        self.play.write_text(yaml.safe_dump([{"hosts": "target", "gather_facts": False, "tasks": tasks}]))
        self.known = set(self.plans())
        return self.host.start(str(self.play), ansible_user=self.user)

    def plans(self):
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in self.path("plans").iterdir())
        return []

    def plan(self):
        """Name of the plan that `start` began, None so far."""
        return next((plan for plan in self.plans() if plan not in self.known), None)

    def events(self):
        """Events of that plan."""
        found, lines = [], []
        with contextlib.suppress(FileNotFoundError):
            lines = self.path("plans", self.plan() or "none", "events.jsonl").read_text().splitlines(keepends=True)
        for line in lines:
            with contextlib.suppress(ValueError):  # a full disk cuts lines short
                found += [json.loads(line)] if line.endswith("\n") else []
        return found

    def trial(self):
        """Its result as the target has it, None without one."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.path("trials", f"{self.plan()}-01", "trial.json").read_text())
        return None

    def wait_for(self, moment, run):
        wanted = MOMENTS[moment][0]

        def seen():
            assert run.process.poll() is None, f"the run ended before {moment}: {run.text()}"
            return any(map(wanted, self.events()))

        self.host.wait_for(seen, PATIENCE_S, moment)

    # --- what is left -----------------------------------------------------------------------------------------------

    def processes(self):
        """{pid here: title} of the container's processes that belong to a trial: by witness directory, by program, by cgroup."""
        space, found = os.readlink(f"/proc/{self.init}/ns/pid"), {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns" / "pid") != space:
                    continue
                title, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                marked = f"RINGMASTER_WITNESS={self.directory}/".encode() in environment or f"{self.directory}/bin/".encode() in title
                if title and (marked or "/ringmaster-" in (entry / "cgroup").read_text()):  # a zombie has no command line any more
                    found[int(entry.name)] = title.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def listens(self):
        """Whether anything in the container listens on the trial's port."""
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.init}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == PORT:
                    return True
        return False

    def left(self):
        """What of a trial is still there: [] when nothing is."""
        found = [f"lives: {title}" for title in self.processes().values()]
        found += ["port in use"] if self.listens() else []
        found += ["journal"] if self.path("journal.json").exists() else []
        found += ["site file"] if self.path("site", "sitecustomize.py").exists() else []
        with contextlib.suppress(FileNotFoundError), open(self.path("lock")) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append("lock held")
        return found

    # --- strikes ----------------------------------------------------------------------------------------------------

    def kill(self, wanted):
        """SIGKILL to the first process whose title holds WANTED."""
        os.kill(next(pid for pid, title in sorted(self.processes().items()) if wanted in title), signal.SIGKILL)

    def kill_supervisor(self):
        self.host.inside("kill", "-9", str(self.events()[0]["pid"]))

    def fill(self):
        """No byte is left on the disk of the state directory."""
        with contextlib.suppress(OSError), open(self.path("filler"), "wb", buffering=0) as filler:
            while filler.write(bytes(1024)):
                pass

    def empty(self):
        self.path("filler").unlink(missing_ok=True)

    def holding_key(self):
        """Files of the state directory that hold the server's API key."""
        found = [path for path in self.path().rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
        return {(path.name, oct(path.stat().st_mode & 0o777)) for path in found}
