# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""However a trial ends, nothing of it is left within the drain budget and 20 seconds; with the controller lost, within the lease and that.

Each kind of end three times: while the server loads, while it is measured, while it stops. Each test begins its trial as soon as the one
before has gone, and so shows that the next one works at once. The production server beside is not touched by any of it.
"""

from __future__ import annotations

import time

import pytest
import test_ends
from trials import DRAIN_S, KEY, LEASE_S, LONG_LEASE_S, MOMENTS, SETTLE_S, USER, Trials


@pytest.fixture(scope="module")
def users(host):
    made = {user: Trials(host, user) for user in ("root", USER)}
    yield made
    for trials in made.values():
        trials.remove()


# --- the ends: each strikes in the middle of a trial and returns what undoes what it did to the way there -----------------


def success(_trials, _run):
    pass


def crash(trials, _run):
    trials.kill("sglang::scheduler_TP1")


def ctrl_c(trials, run):
    return test_ends.ctrl_c(trials.host, run)


def controller_killed(trials, run):
    return test_ends.kill_9(trials.host, run)


def supervisor_killed(trials, _run):
    trials.kill_supervisor()


def ssh_cut(trials, run):
    return test_ends.ssh_cut(trials.host, run)


def disk_full(trials, _run):
    trials.fill()
    return trials.empty


LOST = " was ended from outside. The host is back in known-good."
ENDS = {  # name: (end, whose trial, the controller is lost, in what the run says)
    "disk_full": (disk_full, "root", False, "The disk is full: free some space and run again"),
    "ssh_cut": (ssh_cut, "root", True, f"not heard of for {LEASE_S} s"),
    "controller_killed": (controller_killed, "root", True, ""),
    "ctrl_c": (ctrl_c, "root", True, ""),
    "supervisor_killed": (supervisor_killed, "root", False, LOST),
    "no_systemd": (supervisor_killed, USER, False, "the supervisor was killed"),
    "crash": (crash, "root", False, ""),
    "success": (success, "root", False, ""),
}


def test_a_disk_that_is_full_from_the_start_is_named(users):
    trials = users["root"]
    trials.fill()
    try:
        run = trials.start("loading")
        assert run.wait() != 0
        assert f"{trials.directory}/" in run.text(), run.text()
        assert "The disk is full: free some space and run again" in run.text(), run.text()
        assert "Traceback" not in run.text()
        assert trials.left() == []
    finally:
        trials.empty()
    again = trials.start("loading", lease_s=LONG_LEASE_S)
    assert again.wait() == 0, again.text()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ENDS)
def test_nothing_is_left(host, users, measured, name, moment):
    end, user, is_lost, words = ENDS[name]
    trials, before, undo = users[user], production(host), None
    run = trials.start(moment, short=end is success, lease_s=LEASE_S if is_lost else LONG_LEASE_S)
    trials.wait_for(moment, run)
    begun = time.monotonic()
    try:
        undo = end(trials, run)
        while left := trials.left():
            assert time.monotonic() - begun < DRAIN_S + SETTLE_S + LEASE_S * is_lost, f"{left}; {run.text()[-200:]}"
            time.sleep(0.1)
        seconds = time.monotonic() - begun
    finally:
        if undo:
            undo()
    run.wait()
    trial, ended = trials.trial(), trials.events()[-1]
    outcome = trial["outcome"] if trial and end in (crash, success) else ended.get("outcome")
    measured.append((name, moment, seconds, outcome, run.code))
    assert words in run.text(), run.text()
    assert KEY not in run.text()
    assert "Traceback" not in run.text()
    if end is not disk_full:  # a server that cannot write its log may crash, which is a result
        assert (run.code == 0) == (end in (crash, success)), run.text()
    if end in (crash, success):
        assert trial["ended"]["left"] == []
        assert trial["ended"]["released_after_s"] is not None
        assert trial["outcome"] == {crash: {"loading": "crashed", "measuring": "killed"}, success: {}}[end].get(moment, "ready")
    if is_lost:
        assert f"not heard of for {LEASE_S} s" in ended["reason"], ended
    assert production(host) == before


def production(host):
    """The server of the unit: since when, by which process, and that it answers."""
    shown = host.inside("systemctl", "show", "sglang", "-p", "MainPID,ActiveEnterTimestampMonotonic,ActiveState")
    seen = host.look()
    return shown, seen["completion"], seen["files"], seen["version"]


def test_the_key_of_a_server_is_nowhere_but_in_the_order_to_start_it(host, users):
    """plan.json is what the supervisor starts the server by: closed to others. Modules log their arguments unless told not to."""
    flags = {"tp-size": "4", "disable-custom-all-reduce": True, "api-key": KEY}
    run = host.play("tune.yml", nccl_channels=2, sglang_flags=flags, tune_allow_downtime=False)
    assert (run.code != 0, "Look at the host" in run.text(), KEY in run.text()) == (True, True, False), run.text()[-900:]
    assert users["root"].holding_key() <= {("plan.json", "0o600")}
    assert KEY not in host.inside("journalctl", "--no-pager", "-o", "cat")
