# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process on the target that owns a plan: runs its steps, restores after each, keeps or gives back at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback

from . import commit, engine_info, files, nccl_site, procfs, transaction, units
from .errors import RingmasterError
from .state import State, now
from .trial import Interrupted, Trial

POLL_S = 0.2


class Events:
    """The append-only file that a controller reads: one JSON object a line, numbered."""

    def __init__(self, path):
        self._path = path
        self._count = (files.content(path) or b"").count(b"\n")  # a guardian goes on where its supervisor was cut off
        self.problem = None  # why a line was lost: a RingmasterError

    def add(self, kind, **fields):
        self._count += 1
        line = json.dumps({"n": self._count, "t": round(time.time(), 3), "kind": kind, **fields})
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(("\n" if self.problem else "") + line + "\n")  # half a line may be there
        except OSError as error:  # a full disk: `check` ends the plan, what restores goes on
            self.problem = files.explain(self._path, "write", error)


class Supervisor:
    """Runs the plan in STATE/plans/PLAN/plan.json: {plan, host, who, arms, steps, workloads, settings, unit}."""

    def __init__(self, state, plan):
        self.state = state
        self.plan = files.read_json(state.plan_path(plan, "plan.json"))
        if self.plan is None:
            raise RingmasterError(f"{state.plan_path(plan)} holds no plan.")
        self.name = plan
        self.settings = self.plan["settings"]
        self.events = Events(state.plan_path(plan, "events.jsonl"))
        self._signalled = None
        self._asking = False  # only a controller can answer: it must not be lost now
        self._engines = {}
        self._rehearsed = set()
        self._launched = set()
        budget_s = self.settings["time_budget_s"]
        self._deadline = time.monotonic() + budget_s if budget_s else None

    # --- why to stop ----------------------------------------------------------------------------------------------

    def check(self):
        """Raises Interrupted when the plan must end: a signal, an abort, a lost controller, no room for events (nor for results)."""
        if self._signalled:
            raise Interrupted(f"stopped by {self._signalled}")
        if self.decision().get("command") == "abort":
            raise Interrupted(f"aborted by {self.decision().get('who', 'somebody')}")
        if self.events.problem:
            raise Interrupted(str(self.events.problem))
        if self._deadline and time.monotonic() > self._deadline:
            raise Interrupted(f"tune_time_budget: its {self.settings['time_budget_s']:.0f} s are used up")
        may_be_lost = self.settings["on_lost_controller"] == "finish" and not self._asking
        if not may_be_lost and self.state.lease_left_s(self.name, self.settings["lease_s"]) <= 0:
            raise Interrupted(f"the controller was not heard of for {self.settings['lease_s']:.0f} s")

    def decision(self):
        """What the controller decided: {} so far, or {command: continue|commit|release|abort, step, ...}."""
        return files.read_json(self.state.plan_path(self.name, "decision.json"), {})

    # --- the plan -------------------------------------------------------------------------------------------------

    def run(self):
        """The whole plan. Returns the exit status. Whatever happens, the target is in known-good afterwards."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        procfs.become_subreaper()
        try:
            lock = self.state.take_lock({"who": self.plan["who"], "plan": self.name, "since": now(), "pid": os.getpid()})
        except RingmasterError as error:  # nothing to restore: the journal is the other plan's
            self.events.add("ended", outcome="failed", reason=str(error), restored=[])
            return 1
        try:
            self.events.add("started", pid=os.getpid(), plan=self.name)
            self._work()
            return 0
        except Interrupted as reason:
            self._end("interrupted", str(reason))
        except RingmasterError as error:
            self._end("failed", str(error))
        except Exception as error:  # the target is restored even after a fault of ours, which is then reported as one
            self._end("failed", f"internal error: {error!r}", trace=traceback.format_exc())
        finally:
            lock.close()
        return 1

    def _work(self):
        changes = transaction.Transaction.begin(self.state, plan=self.name, unit=self._unit())
        self.events.add("held", unit=changes.journal["unit"]) if changes.journal["unit"] else None
        for index, step in enumerate(self.plan["steps"]):
            if step.get("ask") and self._wait_for_word(index) != "continue":
                break
            result = self._step(index, step, changes)
            if step.get("discard") and result["outcome"] != "ready":
                break  # it does not even start: measuring it three more times would tell nothing new
        self.events.add("measured")
        if self._wait_for_word(len(self.plan["steps"])) == "commit":
            outcome = commit.commit(self.state, changes, self.decision(), self.settings, self._report)
            self.events.add("ended", outcome="committed", **outcome)
        else:
            self._end("released", "")

    def _step(self, index, step, changes):
        self.check()
        arm = self.plan["arms"][step["arm"]]
        configuration = arm["configuration"]
        trial_id = f"{self.name}-{index + 1:02d}"
        log = self.state.trial_path(trial_id, "server.log")
        self._report("step", index=index, arm=step["arm"], block=step.get("block"), discard=step.get("discard", False), log=log)
        if not arm.get("in_force"):  # the baseline is what is there: nothing to write, nothing to get wrong
            path, data = transaction.site_file(configuration, self.state)
            if data is not None and configuration["label"] not in self._rehearsed:
                nccl = configuration["nccl"]
                nccl_site.rehearse(configuration["server"]["python"], data, nccl["settings"], path)
                self._rehearsed.add(configuration["label"])
            changes.change(path, data)
        trial = Trial(
            trial_id=trial_id,
            host=self.plan["host"],
            configuration=configuration,
            workloads=[_brief(workload) for workload in self.plan["workloads"]] if step.get("discard") else self.plan["workloads"],
            settings=self.settings,
            state=self.state,
            software=self._software(configuration["server"]["python"]),
            check=self.check,
            report=self._report,
            factor=self._factor(arm),
            first=self.settings["smoke"] and configuration["label"] not in self._launched,
            capture=self._captures(step),
        )
        self._launched.add(configuration["label"])
        result, unwritten = {}, None
        try:
            result = trial.run()
        finally:
            changes.put_back_files()
            result = result or trial.result
            result.update(arm=step["arm"], block=step.get("block"), discard=step.get("discard", False), plan=self.name)
            try:
                files.write_json(self.state.trial_path(trial_id, "trial.json"), result)
            except RingmasterError as error:
                unwritten = error
        if unwritten:  # a full disk: the controller would wait for a result that it can never read
            raise unwritten
        self.events.add("trial", trial=trial_id)
        return result

    def _factor(self, arm):
        """The NCCL settings of ARM that the baseline does not have so, None for one that it has and ARM does not."""
        baseline = self.plan["arms"].get("baseline")
        former = baseline["configuration"]["nccl"]["settings"] if baseline else {}
        settings = arm["configuration"]["nccl"]["settings"]
        return {name: settings.get(name) for name in sorted({*former, *settings}) if former.get(name) != settings.get(name)}

    def _captures(self, step):
        """Whether NCCL writes down what it does in this launch: it costs time, so by default only where nothing is counted."""
        return self.settings["nccl_capture"] in (("all", "discarded") if step.get("discard") else ("all",))

    def _software(self, python):
        """engine_info of PYTHON, read once a plan."""
        if python not in self._engines:
            self._engines[python] = engine_info.read(python)
        return self._engines[python]

    def _wait_for_word(self, step):
        """The controller's decision about what follows STEP; raises Interrupted when it is lost."""
        self.events.add("waiting", step=step)
        self._asking = True
        while True:
            self.check()
            decision = self.decision()
            if decision.get("command") in ("commit", "release") or decision.get("step", -1) >= step:
                self._asking = False
                return decision["command"]
            time.sleep(POLL_S)

    def _end(self, outcome, reason, **fields):
        """Stop what is left, restore, gate the production server, and say so."""
        procfs.kill_descendants(20.0)
        done = []
        try:
            journal = self.state.journal()
            done = transaction.recover(self.state)
            if journal and journal["unit_was_active"] and not self._signalled:  # signalled: the machine may be going down
                gate = commit.gate(self.state, journal["unit"], None, self.settings, self._report)
                fields["service"] = gate
        except RingmasterError as error:
            fields["restore_error"] = str(error)
        self.events.add("ended", outcome=outcome, reason=reason, restored=done, **fields)

    def _unit(self):
        """The production unit to hold: only where it exists, and where the plan may touch it."""
        unit = self.plan.get("unit")
        return unit if unit and units.show(unit) is not None else None

    def _report(self, kind, **fields):
        self.events.add(kind, **fields)

    def _on_signal(self, number, _frame):
        self._signalled = signal.Signals(number).name


def _brief(workload):
    """WORKLOAD for a discarded launch: one round, just to fill the compile and page caches at that concurrency."""
    return {**workload, "requests": workload["concurrency"], "warmup_requests": 0}


def guard(state, plan):
    """Where no systemd watches: run the supervisor as a child, and clean up after it should it be killed.

    Being subreaper above it, this process inherits whatever a killed supervisor leaves behind.
    """
    procfs.become_subreaper()
    child = os.fork()
    if child == 0:
        procfs.die_with_parent(signal.SIGTERM)
        os._exit(Supervisor(State(state.directory), plan).run())
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_arguments: os.kill(child, signal.SIGTERM))
    while True:
        with contextlib.suppress(InterruptedError):
            _pid, status = os.waitpid(child, 0)
            break
    procfs.kill_descendants(20.0)
    journal = state.journal()
    if journal is not None and journal["plan"] == plan:
        done = transaction.mend(state, "the guardian", plan)
        Events(state.plan_path(plan, "events.jsonl")).add(
            "ended", outcome="failed", reason="the supervisor was killed", restored=done, code=os.waitstatus_to_exitcode(status)
        )
    return 0


def main(arguments):
    """`pyz run|guard|recover STATE [PLAN]`"""
    command, directory, *rest = arguments
    state = State(directory)
    os.umask(0o022)
    if command == "run":
        return Supervisor(state, rest[0]).run()
    if command == "guard":
        return guard(state, rest[0])
    if command == "recover":
        try:
            sys.stdout.write("".join(f"{line}\n" for line in transaction.mend(state, "recovery")))
        except RingmasterError as error:  # another plan runs: what is in the journal is that one's
            sys.stderr.write(f"{error}\n")
        return 0
    sys.stderr.write(f"unknown command {command}\n")
    return 2
