# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.trial_plan: starts a plan, follows it, decides, and records."""

from __future__ import annotations

import os
import statistics
import time
from datetime import datetime

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import evidence, plans, verdict
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.ledger import Ledger
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.progress import Narrator, duration

POLL_WAIT_S = 3.0
RETRY_S = 3.0
MODULE = "ringmaster.gpu.trial_plan"
QUIET = {"ansible_no_target_syslog": True}  # modules write their arguments to the target's journal: a plan may hold a server's API key


class ActionModule(ActionBase):
    """`command: run` does the whole job; every other command goes to the module as it is."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self._vars = {**task_vars, **QUIET}
        self._parent = os.getppid()
        if self._task.args.get("command", "run") != "run":
            return {**result, **self._single()}
        plan = self._task.args["plan"]
        if self._task.check_mode:
            would = "go" if "rollback_to" in plan else "measure"
            self._display.display(f"{plan['host']}: would {would} {_intention(plan, None)}; nothing is started in check mode")
            return {**result, "changed": True, "plan": plan, "msg": f"Would run {len(plan['steps'])} starts for {plan['factor']}."}
        try:
            ledger = Ledger(self._task.args["ledger"]) if self._task.args.get("ledger") else None
            return {**result, **self._conduct(plan, ledger)}
        except RingmasterError as error:
            return {**result, "failed": True, "msg": f"{plan['host']}: {error}"}

    def _single(self):
        """One command of the module as it is."""
        arguments = {"who": plans.who(), **self._task.args}
        answer = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=self._vars)
        if arguments["command"] == "abort" and not answer.get("failed") and not self._task.check_mode:
            holder = answer.get("holder")
            what = f"plan {holder['plan']} of {holder['who']} is ended" if holder else "no plan was running"
            self._display.display(f"{self._vars['inventory_hostname']}: {what}; {'; '.join(answer['restored']) or 'nothing to put back'}")
        return answer

    # --- the plan -------------------------------------------------------------------------------------------------

    def _conduct(self, plan, ledger):
        self._plan = plan
        self._narrator = Narrator(plan["host"], len(plan["steps"]), simulated=plan["simulated"])
        self._seen, self._trials, self._last = 0, [], {}
        self._say(_intention(plan, ledger))
        if plan["steps"]:
            lease = duration(plan["settings"]["lease_s"])
            at_once = "`ansible-playbook ringmaster.gpu.abort`"
            self._say(f"cut off (Ctrl-C, lost network), it goes back by itself after {lease}; at once with {at_once}")
        begun = self._call(command="begin", plan=plan)
        for line in begun.get("recovered", []):
            self._say(f"after an earlier plan that was cut off: {line}")
        waiting = self._follow(until="waiting")
        while waiting is not None and waiting["step"] < len(plan["steps"]):
            word = "continue" if self._undecided() else "release"
            self._decide({"command": word, "step": waiting["step"]})
            waiting = self._follow(until="waiting", past=waiting["step"])
        if waiting is None:
            return self._report(None, self._follow(until="ended"), ledger)
        if "rollback_to" in plan:
            judged = {"verdict": "rolled back", "keep": True, "reason": "", "simulated": False, "workloads": []}
            self._decide({"command": "commit", "version": plan["rollback_to"]})
        else:
            try:
                judged = self._judge()
            except RingmasterError as error:  # the baseline did not start, for one: the host is not to wait for the lease to hear of it
                self._decide({"command": "release"})
                return self._report(None, {**self._follow(until="ended"), "reason": str(error)}, ledger)
            self._decide(self._commitment(judged) if judged["keep"] and plan["judge"]["keep"] else {"command": "release"})
        return self._report(judged, self._follow(until="ended"), ledger)

    def _commitment(self, judged):
        plan = self._plan
        self._say(f"{plan['factor']} is better: keeping it{'  [SIMULATED]' if judged['simulated'] else ''}")
        return {
            "command": "commit",
            "configuration": plan["arms"]["candidate"]["configuration"],
            "label": plan["factor"],
            "by": plan["who"],
            "evidence": {"plan": plan["plan"], "verdict": judged},
        }

    def _undecided(self):
        """Whether more starts could still help: only when the verdict so far is inconclusive."""
        try:
            return self._judge()["verdict"] == "inconclusive"
        except RingmasterError:
            return False

    def _judge(self):
        judge = self._plan["judge"]
        # Looking several times and stopping at a pleasant sight would find effects that are not there: the looks share the error.
        looks = 1 + len([step for step in self._plan["steps"] if step.get("ask")])
        return verdict.decide(
            self._trials,
            margin=float(judge["margin_percent"]) / 100,
            confidence=1 - (1 - float(judge["confidence"])) / looks,
            cannot_matter=self._plan["cannot_matter"],
        )

    def _follow(self, *, until, past=-1):
        """Poll until an event of kind UNTIL (a `waiting` beyond step PAST), or the end of the plan: then None. Ends are kept."""
        if "ended" in self._last:
            return self._last["ended"] if until == "ended" else None
        while True:
            news = self._call(command="poll", name=self._plan["plan"], after=self._seen, wait_s=POLL_WAIT_S)
            found = None
            for event in news["events"]:
                self._seen = event["n"]
                self._last[event["kind"]] = event
                for line in self._narrator.lines(event):
                    self._display.display(line)
                if event["kind"] == "trial":
                    trial = news["trials"].get(event["trial"])
                    if trial:
                        self._trials.append(trial)
                        self._display.display(self._narrator.trial(trial))
                if event["kind"] == until and event.get("step", past + 1) > past:
                    found = event
            if "ended" in self._last:
                return self._last["ended"] if until == "ended" else None
            if found:
                return found
            if not news["alive"] and not news["events"]:
                return self._gone(news)

    def _gone(self, news):
        """The supervisor is not there any more and said nothing."""
        state = "The host is back in known-good."
        if not news["restored"]:
            state = "Known-good is NOT back yet: run the play again, or `ansible-playbook ringmaster.gpu.abort`."
        raise RingmasterError(f"The supervisor of plan {self._plan['plan']} was ended from outside. {state}")

    def _decide(self, decision):
        self._call(command="decide", name=self._plan["plan"], decision={"who": self._plan["who"], **decision})

    def _call(self, **arguments):
        """One command of the module on the host, through lost connections as long as the lease and the restore may take."""
        if os.getppid() != self._parent:  # killed alone, ansible-playbook leaves its workers behind: nobody would read what comes
            raise RingmasterError("ansible-playbook is gone; the host goes back to known-good by itself.")
        deadline = time.monotonic() + self._plan["settings"]["lease_s"] + 20
        arguments["state_dir"] = self._task.args["state_dir"]
        while True:
            try:
                answer = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=self._vars)
                if not answer.get("unreachable"):
                    break
                problem = answer.get("msg", "unreachable")
            except AnsibleConnectionFailure as error:
                problem = str(error)
            if time.monotonic() > deadline:
                raise RingmasterError(
                    f"The host went away in the middle of plan {self._plan['plan']}: {problem}.",
                    "Its supervisor puts known-good back by itself when the lease has ended, or at the next boot.",
                )
            self._say(f"connection lost ({problem.strip().splitlines()[0][:100]}); trying again")
            self._connection.reset()
            time.sleep(RETRY_S)
        if answer.get("failed"):
            raise RingmasterError(_why(answer))
        return answer

    def _say(self, text):
        self._display.display(f"{self._plan['host']}: {text}")

    # --- the end --------------------------------------------------------------------------------------------------

    def _report(self, judged, ended, ledger):
        plan = self._plan
        primary = (judged or {}).get("workloads") or [{}]
        kept = ended["outcome"] == "committed"
        simulated = plan["simulated"] or bool(judged and judged["simulated"])
        failed_trials = [trial for trial in self._trials if trial["outcome"] != "ready"]
        row = {
            "host": plan["host"],
            "factor": plan["factor"],
            "baseline_tok_s": primary[0].get("baseline_mean"),
            "candidate_tok_s": primary[0].get("candidate_mean"),
            **{name: primary[0].get(name) for name in ("ratio", "low", "high", "starts")},
            "verdict": judged["verdict"] if judged else "not measured",
            "reason": judged["reason"] if judged else _cut_off(plan, ended, len(self._trials)),
            "done": _done(plan, ended, kept),
            "proof": evidence.proven([t for t in self._trials if t["arm"] == "candidate" and t["outcome"] == "ready"], plan["proof_of"]),
            "output": _output(judged),
            "warnings": evidence.warnings(self._trials),
            "log": (failed_trials or self._trials or [{"log": None}])[-1]["log"],
            "simulated": simulated,
            "next": _next(plan, judged, kept),
        }
        problems = [ended[name] for name in ("restore_error",) if ended.get(name)]
        service = ended.get("service")
        if service and not service["ready"]:
            problems.append(f"the production server does not answer: {'; '.join(service['problems'])}")
        run = {
            "id": plan["plan"], "host": plan["host"], "started": plan["started"], "factor": plan["factor"], "row": row,
            "verdict": judged, "ended": ended, "workloads": plan["workloads"], "simulated": simulated,
            "candidate": plan["arms"].get("candidate", {}).get("configuration"),
        }  # fmt: skip
        if ledger:
            for trial in self._trials:
                ledger.add_trial({**trial, "run": plan["plan"]})
            ledger.add_run(run)
        answer = {
            "changed": kept,
            "row": row,
            "verdict": judged,
            "ended": ended,
            "inventory_lines": plan["inventory_lines"] if kept else [],
            "ansible_facts": {"ringmaster_trials": {trial["id"]: trial for trial in self._trials}},
        }
        if judged is None or ended["outcome"] in ("failed", "interrupted") or problems:
            reason = "; ".join(filter(None, [ended.get("reason"), *problems])) or "the plan ended early"
            told = {name: answer[name] for name in ("changed", "row")}  # not all figures: people read this
            return {**told, "failed": True, "msg": f"{plan['host']}: {reason}"}
        return answer


def _intention(plan, ledger):
    """What is about to happen, and how long it may take going by the launches that the ledger knows of this host."""
    if "rollback_to" in plan:
        return f"back to known-good version {plan['rollback_to']}"
    counted = len([step for step in plan["steps"] if not step["discard"]])
    text = (
        f"{plan['factor']} against known-good version {plan['known_good_version']}: {len(plan['steps'])} starts, "
        f"{len(plan['steps']) - counted} to fill caches and {counted // 2} of each arm"
    )
    known = [trial for trial in ledger.trials(host=plan["host"])[-16:] if trial["finished"]] if ledger else []
    if known:
        each = statistics.median(_moment(trial["finished"]) - _moment(trial["started"]) for trial in known)
        text += f"; about {duration(each * len(plan['steps']))}, going by earlier ones"
    return text


def _moment(date):
    return datetime.fromisoformat(date).timestamp()


def _done(plan, ended, kept):
    """What became of the host, in a phrase for the table."""
    if not kept:
        return f"known-good version {plan['known_good_version']} stays"
    service = ended.get("service")
    proven = ""
    if service and service["ready"] and not service["problems"]:
        proven = f"; {plan['unit']} answers, " + ("its settings unknown" if service["unknown"] else "settings proven")
    return ("back on" if "rollback_to" in plan else "kept as") + f" known-good version {ended['version']}{proven}"


def _cut_off(plan, ended, done):
    """Why a plan has no verdict, and how far it came."""
    reason = ended.get("reason") or ""
    return f"{reason} (after {done} of {len(plan['steps'])} starts)" if reason and plan["steps"] else reason


def _next(plan, judged, kept):
    """The command that goes on from here, or None."""
    if kept:
        return None if "rollback_to" in plan else "ansible-playbook ringmaster.gpu.rollback"
    if judged is None or judged["verdict"] in ("failed", "unproven"):
        return f"ansible-playbook ringmaster.gpu.diagnose --limit {plan['host']}"
    needed = judged.get("starts_needed")
    return f"the same with -e tune_starts={needed}" if judged["verdict"] == "inconclusive" and needed else None


def _output(judged):
    """Whether the candidate computes what the baseline computes; where that is not known, the reason of the verdict says so."""
    outputs = (judged or {}).get("outputs") or {}
    if outputs.get("state") == "not asked":
        return "not compared (tune_outputs)"
    return outputs["reason"] if outputs.get("state") == "pass" else ""


def _why(answer):
    """The message of a failed module, or what it printed when it did not get as far as one."""
    said = answer.get("msg") or getattr(getattr(answer.get("exception"), "event", None), "msg", "")
    for name in ("module_stderr", "module_stdout"):
        if not said or said.startswith("MODULE FAILURE"):
            said = str(answer.get(name) or "").strip()[-600:] or said
    return said or "the module failed without a message"
