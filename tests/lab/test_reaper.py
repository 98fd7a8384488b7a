# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reaper on the host of two real LXC containers, one unprivileged, each with a server that is well and with orphaned workers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import container
import lxc
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit")]

import reap_lab  # noqa: E402

module = reap_lab.module
DEVICES = ("/dev/nvidia0=c:1:3", "/dev/nvidiactl=c:1:3")
MODULE_UTILS = "ansible_collections/ringmaster/gpu/plugins/module_utils"
SCRIPTS = {
    "orphan": 'exec python3 -S -E -c "$(cat /opt/lab/process)" "$@" </dev/null >/run/orphan 2>&1',
    "server": 'export LAB_PROCESS="$(cat /opt/lab/process)" PYTHONPATH=/opt/lab/run; exec python3 -m sglang.launch_server "$@"',
    "both": "/opt/lab/orphan sglang::scheduler_TP7 /dev/nvidia0 fork; . /opt/lab/server",
}


class Guest:
    """A container with the stand-ins, and what they are called on the host."""

    def __init__(self, name, unprivileged):
        self.name = name
        lxc.up(name, "bookworm", unprivileged, DEVICES)
        place = container.CONTAINERS / name / "rootfs" / "opt" / "lab"
        shutil.copytree(ROOT / "roles" / "lab" / "files" / "standin", place / "standin")
        shutil.copytree(ROOT / "plugins" / "module_utils", place / "collections" / MODULE_UTILS)
        (place / "run" / "sglang").mkdir(parents=True)
        (place / "run" / "sglang" / "__init__.py").touch()
        (place / "run" / "sglang" / "launch_server.py").write_text(reap_lab.LAUNCHER, encoding="utf-8")
        (place / "process").write_text(reap_lab.PROCESS, encoding="utf-8")
        for script, text in SCRIPTS.items():
            (place / script).write_text(f"#!/bin/sh\nexport LAB_STANDIN=/opt/lab/standin\n{text}\n", encoding="utf-8")
            (place / script).chmod(0o755)
        self.unit("healthy", "/opt/lab/server", "1", "listen")
        self.until(lambda: self.classes().count("serving") == 3)

    def unit(self, name, *command):
        self.run("systemd-run", "--quiet", f"--unit={name}", "-p", "KillMode=process", *command)

    def run(self, *command):
        return container.attach(self.name, list(command))

    def orphan(self, title="sglang::scheduler_TP0", words=""):
        """The host's pid of a new orphan that has the GPU open."""
        known = {worker["pid"] for worker in self.workers()}
        self.run("/opt/lab/orphan", title, "/dev/nvidia0 /dev/nvidiactl", f"fork {words}")
        self.until(lambda: len(self.workers()) > len(known))
        return next(worker["pid"] for worker in self.workers() if worker["pid"] not in known)

    def workers(self):
        return module("gpu_worker_info", container=self.name)["workers"]

    def classes(self):
        return [worker["class"] for worker in self.workers()]

    def serving(self):
        return [worker["pid"] for worker in self.workers() if worker["class"] == "serving"]

    @staticmethod
    def until(holds, timeout_s=120.0):
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def guests():
    if os.geteuid() != 0 or not shutil.which("lxc-start") or not shutil.which("debootstrap"):
        pytest.skip("needs root and LXC (tests/lab/lxc.py install)")
    names = [f"rm-test-reap-{os.getpid()}-{end}" for end in "ab"]
    try:
        yield [Guest(name, unprivileged) for name, unprivileged in zip(names, (True, False), strict=True)]
    finally:
        for name in names:
            lxc.down(name)


def test_processes_are_told_with_their_container_and_their_pids_in_it(guests):
    for guest in guests:
        guest.orphan()
    found = module("gpu_worker_info")
    assert found["seen"] == {"complete": True, "why": ""}
    for guest, user in zip(guests, ("100000", "root"), strict=True):
        rows = [worker for worker in found["workers"] if worker["container"] == guest.name]
        assert sorted((row["class"], row["title"]) for row in rows) == [
            ("orphaned", "sglang::scheduler_TP0"),
            ("serving", "python3"),
            ("serving", "sglang::detokenizer"),
            ("serving", "sglang::scheduler_TP0"),
        ]
        assert {(row["container_kind"], row["user"]) for row in rows} == {("lxc", user)}
        assert {row["unit"] for row in rows if row["class"] == "serving"} == {"healthy.service"}
        assert [row["nodes"] for row in rows if row["title"].endswith("TP0")] == [["/dev/nvidia0", "/dev/nvidiactl"]] * 2
        (orphan,) = [row for row in rows if row["class"] == "orphaned"]
        inside = guest.run("sh", "-c", f"cat /proc/{orphan['pids_inside'][0]}/comm").strip()
        assert inside == "sglang::schedul"
        assert "its launcher is gone, its parent is pid " in orphan["reason"]
    for guest in guests:
        module("gpu_worker", container=guest.name)


def test_only_the_orphans_of_the_named_container_end(guests):
    a, b = guests
    mine, other = [a.orphan(), a.orphan("sglang::scheduler_TP1", "ignore")], b.orphan()
    well = [*a.serving(), *b.serving()]
    said = module("gpu_worker", container=a.name, _ansible_check_mode=True)
    assert reap_lab.alive(*mine, other, *well) == [*mine, other, *well]
    done = module("gpu_worker", container=a.name, term_timeout_s=1)
    assert reap_lab.alive(*mine, other, *well) == [other, *well]
    assert [entry["pid"] for entry in said["reaped"]] == [entry["pid"] for entry in done["reaped"]] == mine
    assert [entry["ended_by"] for entry in done["reaped"]] == ["TERM", "KILL"]
    assert module("gpu_worker", container=a.name)["changed"] is False
    assert [entry["pid"] for entry in module("gpu_worker", container=b.name)["reaped"]] == [other]


def test_workers_of_a_launcher_that_was_killed(guests):
    a = guests[0]
    well = a.serving()
    a.unit("lost", "/opt/lab/server", "1", "listen")
    a.until(lambda: len(a.serving()) == 6)
    (launcher,) = [row["pid"] for row in a.workers() if row["unit"] == "lost.service" and row["role"] == "launcher"]
    os.kill(launcher, 9)  # a process of this test's own making
    a.until(lambda: a.classes().count("orphaned") == 2)
    done = module("gpu_worker", container=a.name)
    assert sorted(entry["title"] for entry in done["reaped"]) == ["sglang::detokenizer", "sglang::scheduler_TP0"]
    assert a.serving() == well


def test_a_live_launcher_in_its_unit_protects_a_worker(guests):
    b = guests[1]
    b.unit("mixed", "/opt/lab/both", "1", "listen")
    b.until(lambda: [row["unit"] for row in b.workers()].count("mixed.service") == 4)
    b.until(lambda: b.classes().count("serving") == 7)
    assert module("gpu_worker", container=b.name)["changed"] is False
    (row,) = [row for row in b.workers() if row["title"] == "sglang::scheduler_TP7"]
    assert row["reason"].startswith("no launcher is its parent, but there is one in its unit mixed.service; its launcher, pid ")
    (launcher,) = [row["pid"] for row in b.workers() if row["unit"] == "mixed.service" and row["role"] == "launcher"]
    os.kill(launcher, 15)
    b.until(lambda: b.classes().count("orphaned") == 1)
    assert [entry["title"] for entry in module("gpu_worker", container=b.name)["reaped"]] == ["sglang::scheduler_TP7"]


@pytest.mark.parametrize("number", [0, 1])
def test_from_inside_a_container_its_own_are_ended(guests, number):
    guest, other = guests[number], guests[1 - number]
    mine, others = guest.orphan(), other.orphan()
    well = guest.serving()
    code = "import json; from {} import gpu_reap; print(json.dumps({{**gpu_reap.reap(''), 'failure': None}}))"
    command = ["python3", "-c", code.format(MODULE_UTILS.replace("/", "."))]
    result = json.loads(guest.run("sh", "-c", f"cd /opt/lab/collections && {shlex.join(command)}"))
    assert [entry["signals"] for entry in result["reaped"]] == [["TERM"]]
    assert {row["class"] for row in result["left"]} == {"serving"}
    assert reap_lab.alive(mine, others, *well) == [others, *well]
    module("gpu_worker", container=other.name)


def test_force_ends_the_servers_of_the_named_container_alone(guests):
    a, b = guests
    mine, others = a.serving(), b.serving()
    done = module("gpu_worker", container=a.name, force=True)
    assert sorted(entry["pid"] for entry in done["reaped"]) == sorted(mine)
    assert reap_lab.alive(*mine, *others) == others
    assert done["notes"] == ["healthy.service may start its server again: stop the unit to keep it down"]


def test_a_container_that_does_not_run_and_one_that_there_is_not(guests):
    a, b = guests
    container.kill(a.name)
    stopped = module("gpu_worker", container=a.name, lxc_paths=[str(container.CONTAINERS)])
    assert (stopped.get("failed", False), stopped["msg"]) == (False, f"container {a.name}: no GPU worker to reap")
    unknown = module("gpu_worker", container=a.name)
    assert unknown["failed"] is True
    assert f"This machine has no container '{a.name}'. It has: " in unknown["msg"]
    assert b.name in unknown["msg"]
