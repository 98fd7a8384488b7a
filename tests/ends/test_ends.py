# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""However a run ends, the host is back in known-good within the lease and 20 seconds, with no further playbook; then the next run works.

Each kind of end at three points of a plan. RINGMASTER_ENDS=all strikes at all of them, else each kind at one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.ledger import Ledger
from harness import CONTAINERS, DROP_IN, LEASE_S, LINKED_PYTHON, PATIENCE_S, RESTORE_S, ROOT, SITE, STATE

FACTOR = {"nccl_channels": 2}
POINTS = {  # name: the first event that says so
    "loading": lambda event: event["kind"] == "progress" or (event["kind"] == "phase" and event.get("phase") == "weights"),
    "measuring": lambda event: event["kind"] == "workload",
    "deciding": lambda event: event["kind"] == "measured",
}


# --- the ends: each is called in the middle of a run and returns what undoes what it did to the way there ----------------


def ctrl_c(_host, run):
    run.interrupt()


def failed_task(host, _run):
    """The interpreter that Ansible uses vanishes, as in an upgrade: the next poll is a failed task."""
    host.inside("rm", LINKED_PYTHON)
    return lambda: host.inside("ln", "-s", "/usr/bin/python3", LINKED_PYTHON)


def kill_9(_host, run):
    run.kill_tree()


def kill_9_alone(_host, run):
    """Only the parent: its workers would go on, measure, and keep what nobody sees."""
    os.kill(run.process.pid, signal.SIGKILL)


def ssh_cut(host, _run):
    link = host.link()
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    return lambda: subprocess.run(["ip", "link", "set", link, "up"], check=True)


def reboot(host, _run):
    host.inside("systemctl", "reboot", check=False)
    return host.wait_until_up


def power_cut(host, _run):
    where = ["-P", CONTAINERS, "-n", host.name]
    subprocess.run(["lxc-stop", *where, "-k"], check=True)
    subprocess.run(["lxc-start", *where], check=True)
    return host.wait_until_up


ENDS = (ctrl_c, failed_task, kill_9, ssh_cut, reboot, power_cut, kill_9_alone)
CASES = [(end, point) for number, end in enumerate(ENDS) for place, point in enumerate(POINTS)
         if os.environ.get("RINGMASTER_ENDS") == "all" or place == number % len(POINTS)]  # fmt: skip


# --- what must be true ------------------------------------------------------------------------------------------------


def is_known_good(seen):
    """Whether a look shows a host at rest that serves."""
    return bool(seen) and (seen["journal"], seen["lock_free"], seen["trial_pids"], seen["held"], seen["unit"], seen["completion"]) == (
        False, True, [], [], "active", 4,
    )  # fmt: skip


@pytest.fixture
def before(host):
    """The look that every test has to come back to: version 1, whatever a failed test left."""
    if host.look().get("version") != 1:
        host.play("rollback.yml", rollback_version=1)
    seen = host.look()
    assert is_known_good(seen), seen
    return seen


def wait_until_known_good(host, timeout_s):
    """(seconds it took, the look that showed it)."""
    begun, seen = time.monotonic(), {}
    while not is_known_good(seen := host.look()):
        assert time.monotonic() - begun < timeout_s, f"not in known-good after {timeout_s} s: {seen}\n{host.events()[-3:]}"
        time.sleep(0.2)
    return time.monotonic() - begun, seen


@pytest.mark.parametrize(("end", "point"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_known_good_is_back(host, before, measured, end, point):
    undo = None
    run = host.start("tune.yml", **FACTOR)
    host.wait_for_event(POINTS[point], run)
    try:
        undo = end(host, run)
        seconds, after = wait_until_known_good(host, LEASE_S + RESTORE_S)
        run.wait()
    finally:
        if undo:
            undo()
    outcome = ([event["outcome"] for event in host.events() if event["kind"] == "ended"] or ["cut off"])[-1]
    measured.append((end.__name__, point, seconds, outcome, run.code))
    if after["version"] == before["version"]:
        assert (after["files"], after["channels"]) == (before["files"], before["channels"])
    else:  # struck while the decision was carried out: then it was carried out whole
        assert (point, after["version"] > before["version"], after["channels"]) == ("deciding", True, ["2"])
    assert run.code != 0 or outcome == "committed", run.text()
    assert "Traceback" not in run.text()
    if end is ssh_cut:
        assert "went away in the middle of plan" in run.text(), run.text()
    Ledger(str(host.ledger)).runs()
    if point == "deciding" or after["version"] != before["version"]:
        whole_run(host, before)
    else:
        status = host.play("status.yml")
        assert status.code == 0, status.text()
        assert "No run is in progress. target: known-good" in status.text(), status.text()


def whole_run(host, before):
    """The next run measures and keeps, and rollback.yml goes back to what was found, byte for byte."""
    if host.look()["version"] == before["version"]:
        run = host.play("tune.yml", **FACTOR)
        assert run.code == 0, run.text()
        after = host.look()
        assert (is_known_good(after), after["version"] > before["version"], after["channels"]) == (True, True, ["2"]), run.text()
        newest = Ledger(str(host.ledger)).runs()[-1]
        assert (newest["row"]["verdict"], newest["ended"]["outcome"]) == ("better", "committed")
    back = host.play("rollback.yml", rollback_version=before["version"])
    assert back.code == 0, back.text()
    assert host.look() == before


# --- other ends ---------------------------------------------------------------------------------------------------------


def test_a_cut_shorter_than_the_lease_is_survived(host, before):
    run = host.start("tune.yml", **FACTOR)
    host.wait_for_event(POINTS["measuring"], run)
    link_up = ssh_cut(host, run)
    time.sleep(LEASE_S / 3)
    link_up()
    assert run.wait() == 0, run.text()
    assert host.look()["channels"] == ["2"]
    back = host.play("rollback.yml", rollback_version=before["version"])
    assert (back.code, host.look()) == (0, before), back.text()


def test_a_second_run_is_refused_and_abort_ends_the_first(host, before):
    first = host.start("tune.yml", **FACTOR)
    host.wait_for_event(POINTS["measuring"], first)
    plan = host.events()[0]["plan"]
    begun = time.monotonic()
    second = subprocess.run(
        [ROOT / ".venv/bin/ansible-playbook", "-i", host.inventory, "tune.yml", "-e", "nccl_channels=4"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = " ".join((second.stdout + second.stderr).split())
    assert second.returncode != 0
    assert f"runs plan {plan} on this host since 20" in said, said
    assert first.process.poll() is None, f"the first run ended within {time.monotonic() - begun:.0f} s: {first.text()}"
    aborted = host.play_beside("abort.yml")
    assert aborted.code == 0, aborted.text()
    assert is_known_good(host.look())
    assert host.look() == before
    assert first.wait() != 0
    assert "aborted by" in first.text()


def test_a_killed_supervisor_is_cleaned_up_after(host, before):
    run = host.start("tune.yml", **FACTOR)
    host.wait_for_event(POINTS["measuring"], run)
    host.inside("kill", "-9", str(host.events()[0]["pid"]))
    _seconds, after = wait_until_known_good(host, RESTORE_S)
    assert after == before
    assert run.wait() != 0
    assert "was ended from outside. The host is back in known-good." in run.text()


@pytest.mark.parametrize("fault", ["crash_at_phase:weights", "no_answer"])
def test_a_kept_change_that_production_cannot_start_with_goes_back(host, before, fault):
    """Measured on the trial's port the candidate is better; under the unit, on its own port, it does not serve."""
    model = host.root / "opt/lab/model/lab.json"
    former = model.read_text()
    with_fault = json.dumps({**json.loads(former), "faults": [{"fault": fault, "when": {"NCCL_MAX_NCHANNELS": "2", "port": "30000"}}]})
    try:
        model.write_text(with_fault)
        run = host.play("tune.yml", **FACTOR, tune_stall_timeout_s=6)
    finally:
        model.write_text(former)
    assert run.code != 0
    said = run.text()
    why = {"crash_at_phase:weights": "is failed", "no_answer": "made no progress for 6 s"}[fault]
    assert f"Not kept: sglang does not serve: sglang {why}" in said, said
    assert f"It is back on known-good version {before['version']} and answers." in said, said
    assert host.look() == before


@pytest.mark.parametrize("when", ["from the start", "while measuring"])
def test_a_full_disk(host, before, when):
    """The state directory has no room: said before anything is touched, or everything put back."""
    kib = 64 if when == "from the start" else 2048
    host.inside("sh", "-c", f"cp -a {STATE} /var/lib/aside && mount -t tmpfs -o size={kib}k,mode=755 none {STATE}")
    try:
        if when == "from the start":
            run = host.play("tune.yml", **FACTOR)
        else:
            host.inside("sh", "-c", f"cp -a /var/lib/aside/site {STATE}")
            run = host.start("tune.yml", **FACTOR)
            measuring = f"grep -q workload {STATE}/plans/*/events.jsonl"
            host.inside("sh", "-c", f"for _ in $(seq 3000); do {measuring} && exit; sleep 0.1; done; exit 1")
            host.inside("sh", "-c", f"dd if=/dev/zero of={STATE}/filler bs=1k; true")
            run.wait()
        seen = host.look()
        text = run.text()
        assert run.code != 0, text
        assert "The disk is full" in text, text
        assert "Traceback" not in text
        _seconds, seen = wait_until_known_good(host, RESTORE_S)
        assert seen["files"][DROP_IN] == before["files"][DROP_IN]
        if when != "from the start":
            assert seen["files"][SITE] == before["files"][SITE]
    finally:
        host.inside("umount", "-l", STATE)
        host.inside("rm", "-rf", "/var/lib/aside")
    assert host.look() == before
