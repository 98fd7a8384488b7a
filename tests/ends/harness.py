# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container that serves with the stand-in SGLang, playbooks started against it over SSH, and a look at its state from inside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LXC = ROOT / "tests" / "lab" / "lxc.py"
CONTAINERS = Path("/var/lib/ringmaster-test/containers")
STATE = "/var/lib/ringmaster"
UNIT = "sglang.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/50-ringmaster.conf"
SITE = f"{STATE}/site/sitecustomize.py"
PORT = 30000
LINKED_PYTHON = "/opt/ringmaster-test-python3"  # what Ansible runs modules with: a link, so that it can be taken away
LEASE_S = 15  # a controller on a busy machine has to keep it
PATIENCE_S = 300  # for what comes in seconds, on a machine that other tests keep busy; no promise of ours
RESTORE_S = 20  # what docs/architecture.md promises after the lease

# Files that were there before first contact, with contents, modes and owners that nobody would choose by chance.
FOUND = {SITE: ("# left by an administrator\n", "640", "4242:4343"), DROP_IN: ("[Service]\nEnvironment=LAB_ADMIN=1\n", "600", "0:4343")}

VARIABLES = {
    "ansible_user": "root",
    "ansible_ssh_private_key_file": "/var/lib/ringmaster-test/id_ed25519",
    "ansible_ssh_common_args": "-o UserKnownHostsFile=/var/lib/ringmaster-test/known_hosts",
    "ansible_python_interpreter": LINKED_PYTHON,
    "lab_dir": "/opt/lab",
    "lab_python": "/usr/bin/python3",
    "lab_unit": True,
    "lab_model": {"coefficients": {"channel_us": 4.0}},  # two channels help so much that two starts an arm show it on a busy machine
    "lab_flags": {"tp-size": "4", "disable-custom-all-reduce": True},  # two channels are better there: roles/lab/files/truth.yml
    "lab_port": PORT,
    "sglang_service": "sglang",
    "tune_allow_downtime": True,
    "tune_lease_s": LEASE_S,
    "tune_starts": 2,
    "tune_confidence": 0.8,  # a spike of load in one of the four starts must not hide an effect of 70 %
    "tune_workloads": [{"name": "decode-1", "concurrency": 1, "input_len": 16, "output_len": 64, "requests": 2, "warmup_requests": 1}],
}

# Runs inside. Prints what a host in known-good is known by.
_LOOK = r"""
import fcntl, glob, json, os, subprocess, sys, urllib.request
state, unit, port, paths = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
def file(path):
    try:
        status = os.stat(path)
        with open(path, "rb") as source:
            return [source.read().decode(), oct(status.st_mode), status.st_uid, status.st_gid]
    except FileNotFoundError:
        return None
def environ(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            return dict(item.split("=", 1) for item in source.read().decode(errors="replace").split("\0") if "=" in item)
    except OSError:
        return {}
def lock_free():
    try:
        with open(f"{state}/lock") as source:
            fcntl.flock(source, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except BlockingIOError:
        return False
    return True
def completion():
    body = json.dumps({"model": "default", "prompt": "Hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)["usage"]["completion_tokens"]
    except (OSError, ValueError, KeyError) as error:
        return str(error)
processes = {int(name): environ(name) for name in os.listdir("/proc") if name.isdigit()}
titles = {pid: open(f"/proc/{pid}/cmdline").read().split("\0")[0] for pid in processes if os.path.exists(f"/proc/{pid}/cmdline")}
try:
    version = int(os.readlink(f"{state}/known-good/current")[:4])
except FileNotFoundError:
    version = 1  # as which first contact adopts what is there
print(json.dumps({
    "files": {path: file(path) for path in paths},
    "version": version,
    "journal": os.path.exists(f"{state}/journal.json"),
    "lock_free": lock_free(),
    "trial_pids": [pid for pid, found in processes.items() if "RINGMASTER_WITNESS" in found],
    "channels": sorted({processes[pid].get("NCCL_MAX_NCHANNELS") or "" for pid in titles if titles[pid].startswith("sglang::scheduler")}),
    "unit": subprocess.run(["systemctl", "is-active", unit], stdout=subprocess.PIPE, text=True).stdout.strip(),
    "held": glob.glob(f"/run/systemd/system/{unit}.d/*"),
    "completion": completion(),
}))
"""


class Host:
    """The container NAME, one control node's inventory and ledger for it, and what is known of it."""

    def __init__(self, name, directory):
        self.name, self.directory = name, directory
        self.address = json.loads(_lxc("up", "--name", name, "--suite", "bookworm").stdout)["address"]
        self.root = CONTAINERS / name / "rootfs"
        self.ledger = directory / "ledger.sqlite"
        self.inside("ln", "-sf", "/usr/bin/python3", LINKED_PYTHON)
        variables = {**VARIABLES, "ansible_host": self.address, "ringmaster_ledger": str(self.ledger)}
        self.inventory = directory / "hosts.json"
        self.inventory.write_text(json.dumps({"inference": {"hosts": {"target": variables}}}))
        self.runs, self.former_plans = 0, set()

    def install(self):
        """The stand-in under its unit, from nothing; and files that an administrator left."""
        for path, (text, mode, owner) in FOUND.items():
            script = f"mkdir -p $(dirname {path}) && printf '%s' '{text}' > {path} && chown {owner} {path} && chmod {mode} {path}"
            self.inside("sh", "-c", script)
        play = self.directory / "lab.yml"
        play.write_text(json.dumps([{"hosts": "target", "gather_facts": False, "roles": ["ringmaster.gpu.lab"]}]))
        done = self.play(str(play))
        assert done.code == 0, done.text()
        self.wait_for(lambda: self.look()["completion"] == 4, PATIENCE_S, "an answer of the production server")

    def remove(self):
        _lxc("down", "--name", self.name)

    def wait_until_up(self):
        _lxc("wait", "--name", self.name)

    # --- inside ---------------------------------------------------------------------------------------------------

    def inside(self, *command, check=True):
        words = [LXC, "exec", "--name", self.name, "--", *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def look(self):
        """What _LOOK prints; {} while the container cannot be looked into."""
        text = self.inside("/usr/bin/python3", "-c", _LOOK, STATE, UNIT, str(PORT), *FOUND, check=False)
        return json.loads(text) if text.startswith("{") else {}

    def plans(self):
        """Names of the plans that the host knows, oldest first. Read from outside, as `events`: a container that is down has them, too."""
        return sorted(path.name for path in (self.root / STATE[1:] / "plans").glob("*"))

    def events(self):
        """Events of the plan of the last run started, [] before it began one."""
        begun = [plan for plan in self.plans() if plan not in self.former_plans]
        text = ""
        with contextlib.suppress(FileNotFoundError, IndexError):
            text = (self.root / STATE[1:] / "plans" / begun[-1] / "events.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def link(self):
        """The host's end of the container's network cable."""
        info = subprocess.run(["lxc-info", "-P", CONTAINERS, "-n", self.name], capture_output=True, text=True, check=True).stdout
        return re.search(r"^Link:\s+(\S+)", info, re.MULTILINE).group(1)

    # --- playbooks ------------------------------------------------------------------------------------------------

    def start(self, playbook, **extra):
        """Start a playbook as a person at a terminal would; a Run."""
        self.runs += 1
        self.former_plans = set(self.plans())
        log = self.directory / f"run-{self.runs:02d}.log"
        words = [ROOT / ".venv/bin/ansible-playbook", "-i", self.inventory, playbook, "-e", json.dumps(extra)]
        return Run(words, log)

    def play(self, playbook, **extra):
        run = self.start(playbook, **extra)
        run.wait()
        return run

    def play_beside(self, playbook):
        """A playbook beside the run that was started last, whose events are still of interest."""
        former = self.former_plans
        run = self.play(playbook)
        self.former_plans = former
        return run

    # --- waiting --------------------------------------------------------------------------------------------------

    @staticmethod
    def wait_for(condition, timeout_s, what, every_s=0.05):
        """Seconds until CONDITION() is true."""
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() - begun < timeout_s, f"{what}: not within {timeout_s} s"
            time.sleep(every_s)
        return time.monotonic() - begun

    def wait_for_event(self, wanted, run):
        """Until an event of the plan that RUN began satisfies WANTED(event)."""

        def seen():
            assert run.process.poll() is None, f"the run ended before that: {run.text()}"
            return any(map(wanted, self.events()))

        self.wait_for(seen, PATIENCE_S, "the moment to strike")


class Run:
    """A playbook that runs: its process, its output so far."""

    def __init__(self, words, log):
        self.log = log
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
            )

    @property
    def code(self):
        return self.process.returncode

    def wait(self):
        self.process.wait(PATIENCE_S)
        return self.code

    def text(self):
        """What it said, in one line: Ansible and the narrow terminal break lines anywhere."""
        return " ".join(self.log.read_text().split())

    def tree(self):
        """Pids of the playbook's process and everything below it, SSH clients included."""
        children = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    children.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(entry.name))
        found = [self.process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found

    def kill_tree(self):
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def interrupt(self):
        """Ctrl-C: SIGINT to the terminal's foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)


def _lxc(*words):
    return subprocess.run([sys.executable, LXC, *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
