# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated machine in a directory of its own, and plans on it as a controller runs them: begin, poll, decide."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ansible_collections.ringmaster.gpu.plugins.module_utils import control, files, procfs, sockets
from ansible_collections.ringmaster.gpu.plugins.module_utils.state import State

ROOT = Path(__file__).resolve().parents[2]
ROLE_FILES = ROOT / "roles" / "lab" / "files"
WORKLOAD = {"name": "c1", "concurrency": 1, "input_len": 16, "output_len": 16, "requests": 1, "warmup_requests": 0}
SETTINGS = {  # without outputs, which take as long as all the rest of a start: what becomes of them, tests that ask for them show
    "lease_s": 30.0, "stall_timeout_s": 20.0, "drain_timeout_s": 10.0, "on_lost_controller": "abort", "engine_version": "0.5.16",
    "port": 0, "keep_trials": 50, "log_cap_bytes": 1 << 20,
    "time_budget_s": 0, "smoke": True, "outputs": False, "nccl_capture": "discarded", "benchmark_tool": "ringmaster", "aiperf_path": None,
    "keep_cores": 0,
}  # fmt: skip
FORMER_SITE = b"# what an administrator left here\nX = 1\n"


class Lab:
    """Interpreter with the stand-in, a model, a state directory, and a site file that somebody wrote before."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ringmaster-lab-"))
        self.directory.chmod(0o755)
        # A launcher of SGLang ends 5 s after a worker; one that ends at once would, on a busy machine, hide who died.
        model = {"load_s": 0.6, "shards": 6, "warmup_s": 0.0, "drain_poll_s": 0.1, "crash_settle_s": 2.0}
        self.model, self.state = self.directory / "model", State(str(self.directory / "state"))
        wanted = {
            "lab_dir": str(self.directory), "state_dir": self.state.directory, "model_path": str(self.model), "model": model,
            "reset": False,
        }  # fmt: skip
        standin = ROLE_FILES / "standin"
        paths = [path for path in standin.rglob("*") if path.suffix == ".py" or path.name == "METADATA"]
        texts = json.dumps({str(path.relative_to(standin)): path.read_text() for path in paths})
        command = [sys.executable, ROLE_FILES / "install.py", json.dumps(wanted)]
        subprocess.run(command, input=texts, text=True, check=True, capture_output=True)
        self.python = str(self.directory / "venv" / "bin" / "python")
        self.site = Path(self.state.directory) / "site" / "sitecustomize.py"
        self._count = 0
        self.restore_site()

    def restore_site(self):
        """The site file as before every plan."""
        files.make_directory(str(self.site.parent))
        files.write_atomic(str(self.site), FORMER_SITE, mode=0o640, **({"uid": 4242, "gid": 4343} if os.geteuid() == 0 else {}))
        self.before = files.snapshot(str(self.site))

    def remove(self):
        shutil.rmtree(self.directory)

    def configuration(self, *, nccl=None, environment=None, user=None, **flags):
        """A configuration; with NCCL settings it writes the site file."""
        return {
            "label": "test",
            "nccl": {"scope": "service", "override": False, "settings": nccl or {}},
            "server": {
                "python": self.python, "module": "sglang.launch_server", "user": user, "directory": None,
                "flags": {"model-path": str(self.model), "tp-size": "2", "disable-custom-all-reduce": True, **flags},
                "listen": {"host": "127.0.0.1", "port": 30000},
            },
            "environment": {**(environment or {})},
            "patches": [],
        }  # fmt: skip

    def adopted(self, flags):
        """The inventory's word for first contact."""
        return {"server": {"python": self.python, "flags": {"model-path": str(self.model), **flags}, "environment": {}}}

    def plan(self, configuration=None, *, steps=1, workloads=(WORKLOAD,), baseline=None, **settings):
        """A plan whose steps are starts of a candidate; `lab.port` is what it will listen on."""
        self._count += 1
        self.port = settings.setdefault("port", sockets.free_port())
        candidate = configuration or self.configuration(nccl={"NCCL_MAX_NCHANNELS": "2"})
        return {
            "plan": f"plan-{self._count}", "host": "lab", "who": "test@here", "unit": None, "adopt": None,
            "arms": {
                "baseline": {"configuration": baseline or self.configuration(), "in_force": True},
                "candidate": {"configuration": candidate},
            },
            "steps": steps if isinstance(steps, list) else [{"arm": "candidate", "block": n + 1} for n in range(steps)],
            "workloads": list(workloads),
            "settings": {**SETTINGS, **settings},
        }  # fmt: skip

    def begin(self, plan):
        self.after = 0
        return Run(self, plan, control.begin(self.state, plan))

    def processes(self):
        """Live processes that belong to any trial of this lab, or to a supervisor of it."""
        marks = (f"RINGMASTER_WITNESS={self.state.directory}/".encode(), str(self.directory).encode())
        found = []
        for pid, process in procfs.scan().items():
            if pid == os.getpid() or process.state in "ZX":
                continue
            try:
                text = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if any(mark in text for mark in marks):
                found.append(process)
        return found

    def trouble(self, *, site_kept=True):
        """What is not as before the plan: [] when nothing of it is left."""
        found = [f"lives: {process}" for process in self.processes()]
        found += [] if self.state.lock_holder() is None else ["lock held"]
        found += [] if self.state.journal() is None else ["journal left"]
        found += [] if sockets.is_free(self.port) and not sockets.listening_inodes(self.port) else ["port in use"]
        now = files.snapshot(str(self.site))
        if site_kept and {**now, "mtime_ns": 0} != {**self.before, "mtime_ns": 0}:
            found.append(f"site file {now}")
        return found

    def settle(self, *, timeout_s=10.0, **asked):
        """Wait until nothing of a plan is left; what is wrong at the end of TIMEOUT_S."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self.trouble(**asked):
            time.sleep(0.05)
        return self.trouble(**asked)


class Run:
    """One plan as its controller sees it."""

    def __init__(self, lab, plan, begun):
        self.lab, self.state, self.plan, self.begun = lab, lab.state, plan, begun
        self.name, self.events, self.trials = plan["plan"], [], []
        self.supervisor = procfs.read(begun["pid"])
        self.guardian = procfs.read(self.supervisor.ppid) if self.supervisor else None

    def poll(self, wait_s=0.1):
        after = self.events[-1]["n"] if self.events else 0
        news = control.poll(self.state, self.name, after=after, wait_s=wait_s)
        self.events += news["events"]
        self.trials += news["trials"].values()
        return news

    def until(self, kind, timeout_s=120.0, **fields):
        """The first event of KIND with FIELDS, old or new. Fails when the plan ends first."""
        end = time.monotonic() + timeout_s
        while True:
            for event in self.events:
                if event["kind"] == kind and all(event.get(name) == value for name, value in fields.items()):
                    return event
            assert time.monotonic() < end, f"no {kind} {fields} within {timeout_s} s: {self.events}"
            assert not any(event["kind"] == "ended" for event in self.events), f"ended before {kind} {fields}: {self.events[-1]}"
            self.poll()

    def decide(self, **decision):
        control.decide(self.state, self.name, decision)

    def release(self):
        """Let it run to its end without keeping anything. Returns the event `ended`."""
        self.until("waiting")
        self.decide(command="release")
        return self.until("ended")

    def servers(self):
        """{title: Process} of the workers of the running trial, `launcher` for the launcher."""
        found = {}
        for process in sorted(procfs.descendants(self.begun["pid"]), key=lambda process: process.start):
            title = (procfs.command_line(process.pid) or [""])[0]
            if title.startswith("sglang::"):
                found.setdefault(title, process)
            elif process.ppid == self.begun["pid"] and "sglang.launch_server" in procfs.command_line(process.pid):
                found["launcher"] = process
        return found
