# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.sglang_trial: one launch by the same engine as a whole run."""

from __future__ import annotations

import json
import os

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.ringmaster.gpu.plugins.action.trial_plan import QUIET
from ansible_collections.ringmaster.gpu.plugins.action.trial_plan import ActionModule as TrialPlan
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.server_command import MODULE, flag_name
from ansible_collections.ringmaster.gpu.plugins.modules.sglang_trial import argument_spec
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import plans
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.progress import Narrator


class ActionModule(TrialPlan):
    """A plan of one step whose only arm is what the task describes."""

    def run(self, tmp=None, task_vars=None):
        result = super(TrialPlan, self).run(tmp, task_vars)
        self._vars = {**task_vars, **QUIET}
        self._parent = os.getppid()
        host = task_vars["inventory_hostname"]
        checked = ArgumentSpecValidator(argument_spec()).validate(json.loads(json.dumps(self._task.args)))
        if checked.error_messages:
            return {**result, "failed": True, "msg": f"sglang_trial: {'; '.join(checked.error_messages)}"}
        args = checked.validated_parameters
        self._task.args["state_dir"] = args["state_dir"]
        if self._task.check_mode:
            return {**result, "changed": False, "msg": "Would launch the server once."}
        try:
            trial = self._one(self._plan_of(host, args))
        except RingmasterError as error:
            return {**result, "failed": True, "msg": f"{host}: {error}"}
        facts = {**task_vars.get("ringmaster_trials", {}), trial["id"]: trial}
        return {**result, "changed": False, "trial": trial, "ansible_facts": {"ringmaster_trials": facts}}

    @staticmethod
    def _plan_of(host, args):
        flags = {flag_name(name): value for name, value in args["flags"].items()}
        configuration = {
            "label": "as given",
            "nccl": {"scope": args["scope"], "override": False, "settings": args["nccl"]},
            "server": {
                "python": args["python"],
                "module": MODULE,
                "flags": {**flags, "model-path": args["model_path"]},
                "listen": {"host": "127.0.0.1", "port": 30000},
                "user": args["user"],
            },
            "environment": args["environment"],
            "patches": [],
        }
        settings = {
            **args,
            "on_lost_controller": "abort",
            "log_cap_bytes": args["log_cap_mib"] << 20,
            "time_budget_s": plans.seconds("time_budget", args["time_budget"]),
            "nccl_capture": "all" if args["nccl_capture"] else "off",
        }
        return {
            **plans.frame(host, settings),
            "arms": {"trial": {"configuration": configuration, "in_force": False}},
            "steps": [{"arm": "trial", "block": 1, "discard": False}],
            "workloads": [plans.workload(number, row) for number, row in enumerate(args["workloads"])],
        }

    def _one(self, plan):
        self._plan = plan
        self._narrator = Narrator(plan["host"], 1)
        self._seen, self._trials, self._last = 0, [], {}
        self._call(command="begin", plan=plan)
        if self._follow(until="waiting") is not None:
            self._decide({"command": "release"})
        ended = self._follow(until="ended")
        if not self._trials or ended["outcome"] != "released":
            raise RingmasterError(f"the launch was not finished: {ended.get('reason') or 'no result'}")
        return self._trials[0]
