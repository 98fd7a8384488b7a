# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.tune_plan: checks what was given and makes the plan of a run."""

from __future__ import annotations

import difflib
import importlib.util
import json
import secrets
from pathlib import Path

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import compatibility, plans, resolve, variables

ROOT = Path(__file__).resolve().parents[2]
TYPES = {
    int: ("starts", "max_starts", "port", "keep_trials", "log_cap_bytes", "keep_cores"),
    float: ("margin_percent", "confidence", "lease_s", "stall_timeout_s", "drain_timeout_s"),
    boolean: ("isolate", "keep", "allow_downtime", "allow_gpu_users", "adopt", "smoke", "outputs"),
}
LIMITS = {  # what is outside would hang the controller, end a run at once or break a bind
    "starts": (1, 1000),
    "max_starts": (0, 1000),
    "margin_percent": (0, 100),
    "lease_s": (1, 7 * 86400),
    "stall_timeout_s": (1, 7 * 86400),
    "drain_timeout_s": (0, 86400),
    "port": (0, 65535),
    "keep_cores": (0, 1000),
}
MOST_MISSED = 20  # flags are read from SGLang's sources: a list this short was not understood
FACTS = {"ringmaster_trials"}  # what our own modules return as facts


def coerce(settings):
    """SETTINGS with their types: `-e` gives text, in which even "false" would be true. Raises RingmasterError naming the variable."""
    coerced = dict(settings)
    for kind, names in TYPES.items():
        for name in names:
            try:
                coerced[name] = kind(settings[name])
            except (TypeError, ValueError) as error:
                raise RingmasterError(f"tune_{name} is {settings[name]!r}: {error}.", "See the README of role tune.") from error
    coerced["time_budget_s"] = plans.seconds("tune_time_budget", settings["time_budget_s"])
    if coerced["benchmark_tool"] == "aiperf" and not coerced["aiperf_path"]:
        raise RingmasterError("tune_benchmark_tool is aiperf, but tune_aiperf is not set.", "Set it to the host's aiperf executable.")
    for name, (low, high) in LIMITS.items():
        if not low <= coerced[name] <= high:  # nor is NaN
            remedy = "A verdict needs 2 starts an arm or more; the default is 3." if name == "starts" else "See the README of role tune."
            raise RingmasterError(f"tune_{name} is {settings[name]}, not between {low} and {high}.", remedy)
    if coerced["log_cap_bytes"] < 1 << 20:
        raise RingmasterError(f"tune_log_cap_mib is {coerced['log_cap_bytes'] // (1 << 20)}.", "Give at least 1 (MiB); the default is 64.")
    if not 0.5 <= coerced["confidence"] < 1:
        raise RingmasterError(f"tune_confidence is {coerced['confidence']}.", "It is a probability, such as 0.95.")
    return coerced


def plain(value):
    """VALUE without the tags that Ansible puts on strings, which other libraries do not know."""
    return json.loads(json.dumps(value))


def _misspelt(factors, engine):
    """Errors for flags that this SGLang does not have but has by nearly that name: a start and a load to hear of it would be too dear."""
    known = engine["flags"] if len(engine["flags"]) > MOST_MISSED else []
    unknown = [name for factor in factors for name, value in factor.flags.items() if known and value is not None and name not in known]
    near = {name: difflib.get_close_matches(name, known, 1, 0.85) for name in unknown}
    return [f"tune_flags: SGLang {engine['sglang']} knows no --{name}. Did you mean {found[0]}?" for name, found in near.items() if found]


def _together(host, target, factors):
    """(errors, warnings) about what cannot go together on HOST with each of FACTORS in force; each said once."""
    judged = [compatibility.judge(host, target, resolve.overlay(target["configuration"], [factor])) for factor in factors]
    return tuple(list(dict.fromkeys(text for pair in judged for text in pair[index])) for index in (0, 1))


def _locked(target):
    """The message when somebody else's plan runs on the host, as a list."""
    holder = target["status"]["holder"]
    if not holder:
        return []
    return [
        f"{holder['who']} runs plan {holder['plan']} on this host since {holder['since']}; if that controller is gone, the host "
        f"ends it by itself in {target['status']['lease_left_s'] or 0:.0f} s and some for the restore. "
        "Wait for it, look with `ansible-playbook ringmaster.gpu.status`, or end it with `ansible-playbook ringmaster.gpu.abort`."
    ]


class ActionModule(ActionBase):
    """Everything here happens on the controller; the host was looked at by target_info before."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        result["changed"] = False
        try:
            result.update(self._plan(task_vars))
        except RingmasterError as error:
            result.update(failed=True, msg=str(error))
        return result

    def _plan(self, task_vars):
        args = self._task.args
        host = task_vars["inventory_hostname"]
        unknown = variables.unknown_variables(set(task_vars) - FACTS, variables.known_variables(ROOT))
        if unknown:
            raise RingmasterError(" ".join(variables.misspelt(name, nearest) for name, nearest in unknown), "Nothing was changed.")
        if importlib.util.find_spec("scipy") is None:  # asked now: the verdict wants it after hours of measuring
            raise RingmasterError("The controller has no SciPy, which the verdict needs.", "Install it: pip install -r requirements.txt.")
        if args.get("variables_only"):
            return {}
        target, settings = plain(args["target"]), coerce(plain(args["settings"]))
        if args.get("rollback_version") is not None:
            return {"plan": self._rollback(host, target, settings, args["rollback_version"])}
        given, inventory = self._given(task_vars, args.get("factors") or {})
        resolved = resolve.resolve(given, inventory, target, nccl_version=target["engine"]["nccl"])
        errors = [*target["problems"], *resolved.errors, *self._refusals(target, settings), *_misspelt(resolved.factors, target["engine"])]
        factors = [factor for factor in resolved.factors if args.get("only") in (None, "", factor.label)]
        impossible, doubtful = _together(host, target, factors)
        errors += impossible
        if not errors and len(factors) > 1 and not settings["isolate"]:
            names = ", ".join(factor.label for factor in factors)
            errors.append(
                f"{len(factors)} factors are given at once: {names}. If the server got slower or crashed, nobody could tell which did it. "
                "Give one, or -e tune_isolate=true to measure them one after the other, each in a trial of its own."
            )
        if not errors and not factors and not resolved.in_force:
            empty = "".join(f" {name} is given, but empty." for name in given)
            errors.append(f"No factor is given: nothing to measure.{empty} Give one, for example -e nccl_channels=2.")
        if errors:
            raise RingmasterError(f"{host}: " + " ".join(errors))
        answer = {
            "factors": [factor.label for factor in factors],
            "in_force": resolved.in_force,
            "warnings": [f"{host}: {text}" for text in (*target["warnings"], *resolved.warnings, *doubtful, *resolved.drift)],
            "plan": None,
        }
        if len(factors) == 1:
            answer["plan"] = self._one(host, target, settings, factors[0])
        return answer

    def _given(self, task_vars, more):
        """Factor variables of this run (extra variables and tune_factors), and those of the inventory."""
        extra = load_extra_vars(self._loader)
        for name in ("sglang_flags", "sglang_environment"):
            if name in extra:
                raise RingmasterError(
                    f"{name} given with -e would replace the inventory's whole {name}.",
                    f"To measure a change, say -e {name.replace('sglang', 'tune')}=NAME=VALUE; a permanent one belongs into the inventory.",
                )
        given = {name: task_vars[name] for name in resolve.FACTOR_VARIABLES if name in extra and name in task_vars}
        given.update(more)
        unknown = [name for name in given if name not in resolve.FACTOR_VARIABLES]
        if unknown:
            known = ", ".join(resolve.FACTOR_VARIABLES)
            raise RingmasterError(f"tune_factors: {', '.join(unknown)} is no factor.", f"Factors are {known}.")
        inventory = {name: task_vars[name] for name in resolve.FACTOR_VARIABLES if name in task_vars and name not in extra}
        inventory["sglang_flags"] = task_vars.get("sglang_flags")
        return plain(self._templar.template(given)), plain(self._templar.template(inventory))

    @staticmethod
    def _refusals(target, settings):
        errors = _locked(target)
        unit = target["unit"]
        if unit["active"] and not settings["allow_downtime"]:
            errors.append(
                f"sglang_service: {unit['name']} serves on this host. A run drains and stops it and starts it again at the end. "
                "If it may be down that long, say -e tune_allow_downtime=true."
            )
        if target["gpu_users"] and not unit["active"] and not settings["allow_gpu_users"]:
            users = ", ".join(f"{user['name']} (pid {user['pid']})" for user in target["gpu_users"])
            errors.append(f"The GPUs are in use by {users}. Stop that, or say -e tune_allow_gpu_users=true.")
        if target["changed_files"] and not settings["adopt"]:
            version = target["status"]["known_good"]["version"]
            errors.append(
                f"Changed since known-good version {version} by something else: {', '.join(target['changed_files'])}. Put that version "
                f"back with `ansible-playbook ringmaster.gpu.rollback -e rollback_version={version}`, or take what is there as known-good "
                "with -e tune_adopt=true."
            )
        return errors

    def _rollback(self, host, target, settings, version):
        """A plan without launches: back to known-good VERSION ('previous': the one before the version in force)."""
        versions = [row["version"] for row in target["status"]["versions"]]
        current = (target["status"]["known_good"] or {}).get("version")
        older = [number for number in versions if current is not None and number < current]
        if version == "previous":
            version = older[-1] if older else None
        if _locked(target):
            raise RingmasterError(f"{host}: {_locked(target)[0]}")
        if version is None or str(version) not in map(str, versions):
            known = f"there is version {', '.join(map(str, versions))}" if versions else "nothing was ever kept here"
            what = f"{host}: rollback_version: there is no known-good version {version or f'before version {current}'}; {known}."
            raise RingmasterError(what, "Look with `ansible-playbook ringmaster.gpu.status`.")
        return {
            **self._frame(host, target, settings),
            "factor": f"known-good version {version}",
            "rollback_to": int(version),
            "steps": [],
        }

    def _one(self, host, target, settings, factor):
        known_good, starts = target["configuration"], settings["starts"]
        return {
            **self._frame(host, target, settings),
            "factor": factor.label,
            "cannot_matter": factor.cannot_matter or "",
            "proof_of": sorted(factor.nccl),
            "inventory_lines": resolve.inventory_lines([factor]),
            "adopt": None if target["status"]["known_good"] and not target["changed_files"] else plain(self._task.args["asked"]),
            "arms": {
                "baseline": {"configuration": known_good, "in_force": True},
                "candidate": {"configuration": resolve.overlay(known_good, [factor]), "in_force": False},
            },
            "steps": resolve.steps(starts, max(starts, settings["max_starts"] or starts), secrets.randbelow(1 << 31)),
            "workloads": plans.workloads(settings["workloads"]),
            "judge": {name: settings[name] for name in ("margin_percent", "confidence", "keep")} | {"starts": starts},
        }

    @staticmethod
    def _frame(host, target, settings):
        unit = target["unit"]["name"] if target["unit"]["exists"] else None
        in_force = target["status"]["known_good"] or {"version": 1}
        return {
            **plans.frame(host, settings, unit=unit),
            "known_good_version": in_force["version"],
            "simulated": "+simulated" in (target["engine"]["sglang"] or ""),
        }
