# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a controller may ask of a target: begin a plan, look at it, decide, abort. Each call is short and leaves no process waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from . import commit, cores, files, payload, procfs, redaction, survey, transaction, units
from .errors import RingmasterError
from .state import now

START_TIMEOUT_S = 20.0
POLL_S = 0.2
URGENT = frozenset(("trial", "waiting", "died", "ended"))  # the rest can wait: each answer is a round trip
RECOVER_UNIT = "ringmaster-recover.service"


def begin(state, plan):
    """Start PLAN (docs/architecture.md), restoring first what an earlier one left unfinished. Returns {plan, recovered, pid}.

    Raises RingmasterError when another plan runs here, or the supervisor does not come up.
    """
    state.prepare()
    name = plan["plan"]
    with state.take_lock({"who": plan["who"], "plan": name, "since": now()}):  # until all is ready for the supervisor to take it
        recovered = transaction.recover(state)
        state.prune(plan["settings"]["keep_trials"])
        cores.prune(state.path("trials"), plan["settings"]["keep_cores"])
        os.makedirs(state.plan_path(name), mode=0o700)
        if plan.get("adopt"):
            commit.adopt(state, survey.found(state, plan["adopt"])[0], plan.get("unit"))
        for arm in plan["arms"].values() if state.known_good() else ():
            arm["configuration"] = redaction.reveal(arm["configuration"], state.known_good()["configuration"])
        files.write_json(state.plan_path(name, "plan.json"), plan)
        state.touch_lease(name)
    _launch(state, name, plan.get("unit"))
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for event in read_events(state, name, 0):
            if event["kind"] == "started":
                return {"plan": name, "recovered": recovered, "pid": event["pid"]}
            if event["kind"] == "ended":
                raise RingmasterError(f"The supervisor ended at once: {event['reason']}")
        time.sleep(0.05)
    said = (files.content(state.plan_path(name, "supervisor.log")) or b"").decode(errors="replace")[-800:]
    raise RingmasterError(f"The supervisor did not start within {START_TIMEOUT_S:.0f} s. It said: {said.strip() or 'nothing'}")


def _launch(state, plan, unit):
    # -S -E: a sitecustomize or PYTHONPATH that breaks every other Python must not reach the one that repairs it.
    python = [sys.executable, "-S", "-E", payload.install(state)]
    log_path = state.plan_path(plan, "supervisor.log")
    if units.available():
        _install_recover_unit(state, python, unit)
        done = subprocess.run(
            ["systemd-run", "--quiet", "--collect", f"--unit=ringmaster-{plan}", "-p", "KillMode=mixed", "-p", "TimeoutStopSec=300",
             "-p", "LimitMEMLOCK=infinity", "-p", "LimitNOFILE=1048576", "-p", "OOMScoreAdjust=-500",
             "-p", f"StandardOutput=append:{log_path}", "-p", f"StandardError=append:{log_path}",
             "-p", "ExecStopPost=" + " ".join(units.quote(word) for word in [*python, "recover", state.directory]),
             *python, "run", state.directory, plan],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise RingmasterError(f"systemd-run refused to start the supervisor: {done.stderr.strip()}")
        return
    with open(log_path, "ab") as log:
        subprocess.Popen(
            [*python, "guard", state.directory, plan],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
        )  # fmt: skip


def _install_recover_unit(state, python, unit):
    """After a reboot in the middle of a plan, known-good is back before the server starts."""
    before = f"Before={units.unit_name(unit)}\n" if unit else ""
    text = (
        "# Written by Ringmaster. Does nothing unless a plan was cut off.\n"
        "[Unit]\nDescription=Restore the known-good configuration of Ringmaster\n"
        f"ConditionPathExists={state.path('journal.json')}\n{before}"
        "[Service]\nType=oneshot\n"
        f"ExecStart={' '.join(units.quote(word) for word in [*python, 'recover', state.directory])}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    path = f"/etc/systemd/system/{RECOVER_UNIT}"
    if files.content(path) != text.encode():
        files.write_atomic(path, text.encode(), mode=0o644)
        units.systemctl("daemon-reload")
        units.systemctl("enable", RECOVER_UNIT)


def read_events(state, plan, after):
    """Events of PLAN with a number above AFTER."""
    text = (files.content(state.plan_path(plan, "events.jsonl")) or b"").decode()
    lines = text[: text.rfind("\n") + 1].splitlines()  # a line being written is read the next time
    return [event for event in filter(None, map(_event, lines)) if event["n"] > after]


def _event(line):
    try:
        return json.loads(line)
    except ValueError:  # a full disk cut it short
        return None


def poll(state, plan, *, after, wait_s):
    """Renew the lease and wait up to WAIT_S for something to act on. Returns {events, trials, alive, restored}.

    `trials` holds the results that the events name; `alive`: the supervisor still runs; `restored`: nothing is left to put back.
    """
    if not os.path.isdir(state.plan_path(plan)):
        raise RingmasterError(f"{state.directory} has no plan {plan}.", "Look with `ansible-playbook ringmaster.gpu.status`.")
    deadline = time.monotonic() + wait_s
    while True:
        _renew(state, plan)
        holder = state.lock_holder()  # before the events: a supervisor that ends in between has written its last one
        events = read_events(state, plan, after)
        alive = bool(holder) and holder["plan"] == plan
        mending = not alive and state.journal() is not None  # the supervisor is gone; its guardian, or systemd, puts things back
        if any(event["kind"] in URGENT for event in events) or not (alive or mending) or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    named = [event["trial"] for event in events if event["kind"] == "trial"]
    return {
        "events": events,
        "trials": {trial: files.read_json(state.trial_path(trial, "trial.json")) for trial in named},
        "alive": alive,
        "restored": state.journal() is None,
    }


def decide(state, plan, decision):
    """Tell the waiting supervisor what to do: {command: continue|commit|release|abort, step, who, ...}."""
    _renew(state, plan)
    files.write_json(state.plan_path(plan, "decision.json"), decision)


def _renew(state, plan):
    """Renew the lease of PLAN. Where that fails (a full disk) its controller gives up: then the plan ends now, not with the lease."""
    try:
        state.touch_lease(plan)
    except RingmasterError:
        holder = state.lock_holder() or {}
        supervisor = procfs.read(holder.get("pid", 0)) if holder.get("plan") == plan else None
        if supervisor:
            procfs.send_signal(supervisor, signal.SIGTERM)
        raise


def abort(state, *, who, wait_s):
    """End whatever runs here and wait until known-good is back. Returns {holder, restored [str]}."""
    holder = state.lock_holder()
    if holder is None:
        return {"holder": None, "restored": transaction.mend(state, who)}
    files.write_json(state.plan_path(holder["plan"], "decision.json"), {"command": "abort", "who": who})
    deadline = time.monotonic() + wait_s
    while state.lock_holder() is not None or state.journal() is not None:
        if time.monotonic() > deadline:
            plan = holder["plan"]
            raise RingmasterError(f"Plan {plan} did not end within {wait_s:.0f} s.", f"Its log is in {state.plan_path(plan)}.")
        time.sleep(0.2)
    ended = [event for event in read_events(state, holder["plan"], 0) if event["kind"] == "ended"]
    return {"holder": holder, "restored": ended[-1].get("restored", []) if ended else []}


def status(state):
    """Who runs what since when, the last phase, and which known-good is in force. Read-only."""
    holder = state.lock_holder() if os.path.isdir(state.directory) else None
    record = state.known_good() if os.path.isdir(state.path("known-good")) else None
    events = read_events(state, holder["plan"], 0) if holder else []
    steps = [event for event in events if event["kind"] == "step"]
    phases = [event for event in events if event["kind"] in ("phase", "progress", "workload", "ready", "waiting")]
    plan = files.read_json(state.plan_path(holder["plan"], "plan.json")) if holder else None
    return {
        "holder": holder,
        "step": {"number": steps[-1]["index"] + 1, "of": len(plan["steps"]), "arm": steps[-1]["arm"]} if steps else None,
        "last": phases[-1] if phases else None,
        "lease_left_s": state.lease_left_s(holder["plan"], plan["settings"]["lease_s"]) if plan else None,
        "log": state.trial_path(f"{holder['plan']}-{steps[-1]['index'] + 1:02d}", "server.log") if steps else None,
        "unfinished": state.journal() is not None and holder is None if os.path.isdir(state.directory) else False,
        "known_good": {key: record[key] for key in ("version", "created", "by", "label")} if record else None,
        "versions": [
            {key: known[key] for key in ("version", "created", "by", "label")} for known in map(state.known_good, state.versions())
        ],
    }
