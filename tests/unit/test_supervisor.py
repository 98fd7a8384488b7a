# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole plans against the simulated server, cut short in every way: afterwards the machine is as it was, and the next plan works."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import control, files, procfs
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.server import Member, Server
from trial_lab import FORMER_SITE, WORKLOAD, Lab

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
LONG = {**WORKLOAD, "output_len": 60, "requests": 80}


@pytest.fixture(scope="module")
def machine():
    """One machine for all tests of this file: that a plan works after the one before is part of what they show."""
    lab = Lab()
    yield lab
    assert lab.settle() == []
    lab.remove()


@pytest.fixture
def lab(machine):
    """That machine; whatever a failed test left running is ended, by pid, before the next one."""
    yield machine
    for process in machine.processes():
        procfs.send_signal(process, signal.SIGKILL)
    machine.settle(timeout_s=3, site_kept=False)


def fault(lab, word, **settings):
    configuration = lab.configuration(nccl={"NCCL_MAX_NCHANNELS": "2"}, environment={"RINGMASTER_LAB_FAULT": word})
    return lab.begin(lab.plan(configuration, **settings))


def kill(process):
    """SIGKILL; the time it was sent."""
    moment = time.time()
    assert procfs.send_signal(process, signal.SIGKILL)
    return moment


# --- plans that end as asked ---------------------------------------------------------------------------------------


def test_a_plan_is_measured_and_given_back(lab):
    steps = [{"arm": "candidate", "block": None, "discard": True}, {"arm": "baseline", "block": 1}, {"arm": "candidate", "block": 1}]
    run = lab.begin(lab.plan(steps=steps, outputs=True))
    run.until("step", arm="candidate")
    ended = run.release()
    assert (ended["outcome"], ended["restored"]) == ("released", [f"restored {lab.site}"])
    assert [trial["outcome"] for trial in run.trials] == ["ready"] * 3
    assert [trial["arm"] for trial in run.trials] == ["candidate", "baseline", "candidate"]
    for trial in run.trials:
        assert trial["workloads"][0]["decode_tok_s"] > 0
        assert trial["workloads"][0]["errors"] == []
        assert trial["ended"]["by"] == "SIGTERM"
        assert (trial["ended"]["drained"], trial["ended"]["exit"], trial["ended"]["left"]) == (True, 137, [])
        assert trial["engine"]["simulated"] is True
        assert (trial["outputs"]["error"], len(trial["outputs"]["digest"])) == (None, 16)
    candidate, baseline = run.trials[2], run.trials[1]
    assert candidate["effective_ok"] is True
    last_rank = candidate["effective"]["sglang::scheduler_TP1"]
    assert last_rank["NCCL_MAX_NCHANNELS"] == {"value": "2", "source": "sitecustomize", "proof": "witness"}
    assert "NCCL_MAX_NCHANNELS" not in baseline["effective"]["sglang::scheduler_TP0"]
    assert lab.settle() == []


def test_keep_a_candidate_then_go_back_to_version_1(lab):
    run = lab.begin({**lab.plan(), "adopt": lab.adopted({"random-seed": 0, "tp": 2, "enable-mscclpp": False})})
    found = lab.state.known_good(1)["configuration"]["server"]["flags"]
    assert (found["random-seed"], found["tp-size"], "enable-mscclpp" in found) == ("0", "2", False)
    run.until("waiting")
    candidate = run.plan["arms"]["candidate"]["configuration"]
    run.decide(command="commit", configuration=candidate, label="nccl_channels=2", by="test@here")
    ended = run.until("ended")
    assert (ended["outcome"], ended["version"]) == ("committed", 2)
    assert lab.settle(site_kept=False) == []
    assert b"NCCL_MAX_NCHANNELS" in lab.site.read_bytes()
    assert control.status(lab.state)["known_good"]["label"] == "nccl_channels=2"
    back = lab.begin(lab.plan(steps=0))
    back.until("waiting")
    back.decide(command="commit", version=1)
    assert back.until("ended")["version"] == 1
    assert lab.settle() == []
    assert control.status(lab.state)["known_good"]["version"] == 1
    assert lab.state.versions() == [1, 2]


def test_an_unknown_version_changes_nothing(lab):
    run = lab.begin(lab.plan(steps=0))
    run.until("waiting")
    run.decide(command="commit", version=77)
    ended = run.until("ended")
    assert ended["outcome"] == "failed"
    assert "77" in ended["reason"]
    assert lab.settle() == []


@pytest.mark.parametrize("phase", ["progress", "workload", "waiting"])
def test_abort(lab, phase):
    run = lab.begin(lab.plan(workloads=[LONG] if phase == "workload" else [WORKLOAD]))
    run.until(phase)
    ended = control.abort(lab.state, who="another@here", wait_s=20)
    assert ended["holder"]["plan"] == run.name
    assert ended["restored"] == [f"restored {lab.site}"]
    assert lab.settle(timeout_s=2) == []
    assert "another@here" in run.until("ended")["reason"]


@pytest.mark.measures
def test_the_lease_ends(lab):
    run = lab.begin(lab.plan(workloads=[{**LONG, "requests": 40}], lease_s=3.0))
    run.until("workload")
    left = time.monotonic()
    assert lab.settle(timeout_s=3 + 20) == []
    assert 2.5 < time.monotonic() - left < 8
    assert "not heard of for 3 s" in control.read_events(lab.state, run.name, 0)[-1]["reason"]


def test_with_finish_all_is_measured_without_a_controller_but_nothing_is_kept(lab):
    steps = [{"arm": "candidate", "block": 1}, {"arm": "candidate", "block": 2, "ask": True}]
    run = lab.begin(lab.plan(steps=steps, lease_s=1.0, on_lost_controller="finish"))
    run.until("step")
    assert lab.settle(timeout_s=20) == []
    kinds = [event["kind"] for event in control.read_events(lab.state, run.name, 0)]
    assert kinds.count("trial") == 1, "the second block was to be asked for, and nobody was there to ask"
    assert kinds[-1] == "ended"


def test_more_starts_only_when_asked_for(lab):
    steps = [{"arm": "candidate", "block": 1}, {"arm": "candidate", "block": 2, "ask": True}]
    run = lab.begin(lab.plan(steps=steps))
    run.until("waiting", step=1)
    run.decide(command="continue", step=1)
    run.until("waiting", step=2)
    assert len(run.trials) == 2
    assert run.release()["outcome"] == "released"
    assert lab.settle() == []


# --- killed ----------------------------------------------------------------------------------------------------------

POINTS = {"loading": "progress", "measuring": "workload", "waiting": "waiting"}


@pytest.mark.parametrize("point", POINTS)
def test_supervisor_killed(lab, point):
    run = lab.begin(lab.plan(workloads=[LONG] if point == "measuring" else [WORKLOAD]))
    run.until(POINTS[point])
    kill(run.supervisor)
    ended = run.until("ended")  # the guardian's word reaches a controller that has read all before it
    assert (ended["outcome"], ended["code"], ended["restored"]) == ("failed", -9, [f"restored {lab.site}"])
    assert lab.settle() == []


@pytest.mark.parametrize("point", POINTS)
def test_guardian_killed(lab, point):
    run = lab.begin(lab.plan(workloads=[LONG] if point == "measuring" else [WORKLOAD]))
    run.until(POINTS[point])
    kill(run.guardian)
    assert run.until("ended")["reason"] == "stopped by SIGTERM"
    assert lab.settle() == []


@pytest.mark.parametrize("point", POINTS)
def test_both_killed_then_the_next_begin_restores(lab, point):
    run = lab.begin(lab.plan(workloads=[LONG] if point == "measuring" else [WORKLOAD]))
    run.until(POINTS[point])
    kill(run.guardian)
    kill(run.supervisor)
    deadline = time.monotonic() + 5
    while lab.state.lock_holder() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert control.status(lab.state)["unfinished"] is True
    following = lab.begin(lab.plan(steps=0))
    assert following.begun["recovered"][-1] == f"restored {lab.site}"
    assert lab.site.read_bytes() == FORMER_SITE
    following.release()
    assert lab.settle() == []


def test_a_full_disk_ends_the_plan_at_once(lab):
    """Not only when the lease does: the next run is welcome as soon as there is room again."""
    run = lab.begin(lab.plan(workloads=[LONG], lease_s=60.0))
    run.until("workload")
    events = Path(lab.state.plan_path(run.name, "events.jsonl"))
    kept = events.rename(events.with_suffix(".kept"))
    events.symlink_to("/dev/full")
    assert lab.settle(timeout_s=20) == []
    kept.rename(events)
    trial = files.read_json(lab.state.trial_path(f"{run.name}-01", "trial.json"))
    assert (trial["outcome"], trial["ended"]["drained"], trial["ended"]["left"]) == ("ready", True, [])
    following = lab.begin(lab.plan())
    assert following.release()["outcome"] == "released"
    assert following.trials[0]["outcome"] == "ready"
    assert lab.settle() == []


def test_a_result_that_cannot_be_written_ends_the_plan_with_the_reason(lab):
    run = lab.begin(lab.plan())
    step = run.until("step")
    run.until("phase")  # the trial has its directory
    os.mkdir(os.path.join(os.path.dirname(step["log"]), "trial.json"))
    ended = run.until("ended")
    assert ended["outcome"] == "failed"
    assert re.search("Cannot write .*/trial.json", ended["reason"])
    assert lab.settle() == []


def test_a_controller_whose_lease_cannot_be_written_ends_the_plan(lab):
    run = lab.begin(lab.plan(workloads=[LONG], lease_s=60.0))
    run.until("workload")
    os.mkdir(lab.state.plan_path(run.name, "lease.new"))
    with pytest.raises(RingmasterError, match="Cannot write .*/lease"):
        run.poll()
    assert lab.settle(timeout_s=20) == []
    assert control.read_events(lab.state, run.name, 0)[-1]["reason"] == "stopped by SIGTERM"


# --- the server dies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "member", "outcome"),
    [
        ("progress", "launcher", "crashed"),
        ("progress", "sglang::scheduler_TP1", "crashed"),
        ("workload", "launcher", "crashed"),
        ("workload", "sglang::scheduler_TP1", "killed"),
        ("workload", "sglang::detokenizer", "killed"),
    ],
)
def test_member_killed(lab, point, member, outcome):
    run = lab.begin(lab.plan(workloads=[LONG]))
    run.until(point)
    moment = kill(run.servers()[member])
    died = run.until("died")
    assert died["role"] in (member, "launcher" if point == "progress" else member)  # while it loads the launcher follows at once
    assert died["t"] - moment < 2.0  # before the launcher itself, on any machine; tests/bench/bench_watch.py has the figure
    assert run.release()["outcome"] == "released"
    trial = run.trials[0]
    assert trial["outcome"] == outcome
    assert trial["cause"]["summary"]
    assert lab.settle() == []


def test_a_launcher_that_ends_is_told_from_a_worker_that_does():
    """Its workers may be seen dead before it is, as the kernel ends them before it lets anybody collect the launcher."""
    launcher = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; sleep 60 & echo $!; wait; sleep 60"], stdout=subprocess.PIPE, text=True)
    workers = [Member("scheduler", procfs.read(int(launcher.stdout.readline())), None) for _ in range(2)]
    server = Server([], {}, log_path=os.devnull)
    server.popen = launcher
    try:
        kill(workers[0].process)
        assert [server._went_first(worker) for worker in workers] == [False, False]
        launcher.kill()
        launcher.wait(10)
        assert server._went_first(workers[1])
    finally:
        launcher.kill()
        procfs.send_signal(workers[1].process, signal.SIGKILL)


def test_a_process_that_ends_is_told_before_it_is_collected():
    process = subprocess.Popen(["sleep", "60"])
    assert not procfs.is_exiting(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.is_exiting(process.pid)
    process.wait()
    assert not procfs.is_exiting(process.pid)


def test_an_orphan_at_first_sight_is_no_member():
    """Its death would be told instead of that of its parent, which the kernel lets nobody collect before its children have a new one."""
    server = Server([], {}, log_path=os.devnull)
    server.popen = subprocess.Popen(["sh", "-c", "exec sleep 60"])
    orphan = subprocess.Popen(["sglang::scheduler_TP0", "60"], executable="/bin/sleep")  # whose parent is whoever inherits it: this one
    try:
        while "sglang::scheduler_TP0" not in procfs.command_line(orphan.pid):  # the kernel has not done with its exec
            time.sleep(0.01)
        server._note_members([procfs.read(orphan.pid)])
        assert server.members == {}
        server._note_members([procfs.read(orphan.pid)._replace(ppid=server.popen.pid)])
        assert list(server.members) == ["sglang::scheduler_TP0"]
    finally:
        for child in (server.popen, orphan):
            child.kill()
            child.wait(10)
        server._close()


def eager(lab):
    """A model whose server looks every millisecond whether it is drained."""
    model = lab.directory / "eager-model"
    if not model.exists():
        shutil.copytree(lab.model, model)
        told = json.loads((model / "lab.json").read_text())
        (model / "lab.json").write_text(json.dumps({**told, "drain_poll_s": 0.001}))
    return model


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_somebody_else_stops(lab, number):
    """It drains and ends as it does for us: no crash, but no measurement either.

    On SIGTERM SGLang goes on to take requests until it finds none running: here it looks often enough to find that between two of them.
    """
    run = lab.begin(lab.plan(lab.configuration(**{"model-path": str(eager(lab))}), workloads=[LONG]))
    run.until("workload")
    procfs.send_signal(run.servers()["launcher"], number)
    run.until("died")
    assert run.release()["outcome"] == "released"
    trial = run.trials[0]
    assert (trial["outcome"], trial["cause"]["signature"]) == ("killed", "stopped"), trial["cause"]
    assert trial["ended"]["left"] == []
    assert lab.settle() == []


def test_the_key_of_a_server_stays_between_it_and_us(lab):
    """Its log shows its arguments: not in what is kept of it, and not in what is told of a death in the middle of them."""
    key = "k3y-for-one-server"
    flags = {"api-key": key}
    for word in ("", "crash_at_phase:weights"):
        configuration = lab.configuration(nccl={"NCCL_MAX_NCHANNELS": "2"}, environment={"RINGMASTER_LAB_FAULT": word}, **flags)
        run = lab.begin(lab.plan(configuration))
        run.release()
        assert run.trials[0]["outcome"] == ("crashed" if word else "ready")
        log = Path(run.trials[0]["log"]).read_text()
        assert "api_key='***'" in log
        holding = [path for path in Path(lab.state.directory).rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
        assert {path.name for path in holding} == {"plan.json"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in holding)
        assert lab.settle() == []


def test_a_child_of_the_same_title_does_not_hide_a_dead_scheduler(lab):
    configuration = lab.configuration(environment={"RINGMASTER_LAB_FAULT": "leave_zombies"})
    run = lab.begin(lab.plan(configuration, workloads=[LONG]))
    run.until("workload")
    moment = kill(run.servers()["sglang::scheduler_TP1"])
    assert run.until("died")["t"] - moment < 1.0
    run.release()
    assert lab.settle() == []


@pytest.mark.parametrize(
    ("word", "stall_timeout_s", "outcome"),
    [
        ("crash_at_phase:weights", 20, "crashed"),
        ("crash_at_phase:graphs", 20, "crashed"),
        ("kill_at_phase:kv_cache", 20, "crashed"),
        ("hang_at_phase:weights", 2, "hung"),
        ("spin_at_phase:graphs", 2, "hung"),
        ("no_answer", 2, "hung"),
        ("leave_zombies", 20, "ready"),
        ("lose_scheduler_after_s:1.5", 20, "killed"),
    ],
)
def test_faults(lab, word, stall_timeout_s, outcome):
    run = fault(lab, word, stall_timeout_s=stall_timeout_s, workloads=[LONG] if outcome == "killed" else [WORKLOAD])
    assert run.release()["outcome"] == "released"
    trial = run.trials[0]
    assert trial["outcome"] == outcome, trial["cause"]
    assert (trial["cause"] is None) == (outcome == "ready")
    assert trial["ended"]["left"] == []
    assert trial["ended"]["released_after_s"] is not None
    assert Path(trial["log"]).stat().st_size > 0
    assert lab.settle() == []


def test_a_first_launch_that_fails_ends_the_plan(lab):
    steps = [{"arm": "candidate", "block": None, "discard": True}, {"arm": "candidate", "block": 1}]
    run = fault(lab, "crash_at_phase:weights", steps=steps)
    run.release()
    assert len(run.trials) == 1
    assert lab.settle() == []


# --- the port, the log, another user -----------------------------------------------------------------------------------


@pytest.fixture
def mute():
    """A socket that is bound and listens, and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def test_port_held_by_something_mute(lab, mute):
    run = lab.begin(lab.plan(port=mute.getsockname()[1]))
    run.release()
    assert run.trials[0]["outcome"] == "refused"
    assert str(mute.getsockname()[1]) in run.trials[0]["cause"]["summary"]
    mute.close()
    assert lab.settle() == []


class OtherServer(BaseHTTPRequestHandler):
    """Answers everything as if it were ready."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET

    def log_message(self, *_arguments):
        """Nothing on the test's output."""


def test_port_taken_by_another_server_while_loading(lab):
    slow = lab.directory / "slow"
    slow.mkdir(exist_ok=True)
    (slow / "config.json").write_text("{}")
    (slow / "lab.json").write_text('{"load_s": 4.0}')
    run = lab.begin(lab.plan(lab.configuration(**{"model-path": str(slow)})))
    run.until("phase")
    with HTTPServer(("127.0.0.1", lab.port), OtherServer) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        run.release()
        other.shutdown()
    assert run.trials[0]["outcome"] == "refused"
    assert "not this trial's" in run.trials[0]["cause"]["summary"]
    assert lab.settle() == []


def test_the_log_is_capped(lab):
    run = lab.begin(lab.plan(log_cap_bytes=3000))
    run.release()
    log = Path(run.trials[0]["log"])
    assert 1000 < log.stat().st_size < 3500
    assert "\r" not in log.read_text()
    assert lab.settle() == []


@ROOT_ONLY
def test_a_server_of_another_user_leaves_its_witness(lab):
    site_packages = next(Path(lab.python).parent.parent.glob("lib/python3.*/site-packages"))  # the venv's own Python may lie in /root
    configuration = lab.configuration(nccl={"NCCL_MAX_NCHANNELS": "2"}, user="nobody", environment={"PYTHONPATH": str(site_packages)})
    configuration["server"]["python"] = "/usr/bin/python3"
    lab.site.chmod(0o644)
    lab.before = files.snapshot(str(lab.site))
    run = lab.begin(lab.plan(configuration))
    run.until("ready")
    owner = os.stat(f"/proc/{run.servers()['launcher'].pid}").st_uid
    run.release()
    assert owner != 0
    proofs = {entry["proof"] for rank in run.trials[0]["effective"].values() for entry in rank.values()}
    assert (run.trials[0]["effective_ok"], proofs) == (True, {"witness"})
    assert os.stat(run.trials[0]["log"]).st_mode & 0o077 == 0, "a log may hold prompts: nobody else reads it"
    assert lab.settle() == []
    lab.restore_site()


@ROOT_ONLY
def test_an_interpreter_that_the_server_user_may_not_run(lab):
    private = lab.directory / "private"
    private.mkdir(mode=0o700, exist_ok=True)
    (private / "python").symlink_to("/usr/bin/python3")
    configuration = lab.configuration(user="nobody")
    configuration["server"]["python"] = str(private / "python")
    run = lab.begin(lab.plan(configuration))
    ended = run.until("ended")
    assert ended["outcome"] == "failed"
    assert f"{private}/python as user nobody: " in ended["reason"]
    assert "trace" not in ended
    assert lab.settle() == []


# --- two at once -------------------------------------------------------------------------------------------------------


def test_a_second_plan_is_refused_and_the_first_goes_on(lab):
    run = lab.begin(lab.plan())
    run.until("step")
    with pytest.raises(RingmasterError, match=f"test@here runs plan {run.name}"):
        control.begin(lab.state, {**run.plan, "plan": "another"})
    assert run.release()["outcome"] == "released"
    assert run.trials[0]["outcome"] == "ready"
    assert lab.settle() == []


def test_a_supervisor_that_lost_the_race_for_the_lock_touches_nothing(lab):
    run = lab.begin(lab.plan(workloads=[LONG]))
    run.until("progress")
    journal, changed = lab.state.journal(), lab.site.read_bytes()
    late = {**run.plan, "plan": "late"}
    os.makedirs(lab.state.plan_path("late"))
    files.write_json(lab.state.plan_path("late", "plan.json"), late)
    lab.state.touch_lease("late")
    control._launch(lab.state, "late", None)
    deadline = time.monotonic() + 10
    while not control.read_events(lab.state, "late", 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = control.read_events(lab.state, "late", 0)[-1]
    time.sleep(0.3)  # its guardian, too
    assert ended["kind"] == "ended"
    assert f"runs plan {run.name}" in ended["reason"]
    assert (lab.state.journal(), lab.site.read_bytes()) == (journal, changed)
    control.abort(lab.state, who="test", wait_s=10)
    assert lab.settle() == []
