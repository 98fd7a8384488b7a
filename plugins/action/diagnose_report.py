# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.diagnose_report: the table and the blocks of diagnose.yml."""

from __future__ import annotations

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import diagnosis_table, tables

_AGAIN = "ansible-playbook ringmaster.gpu.diagnose"


class ActionModule(ActionBase):
    """Runs once for all hosts of the play."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hosts = [_host(name, task_vars["hostvars"][name]) for name in task_vars["ansible_play_hosts_all"]]
        width = tables.terminal_width()
        details = boolean(self._task.args.get("details", len(hosts) == 1))
        self._display.display("\n" + diagnosis_table.report(hosts, width=width, details=details, again=_AGAIN))
        result.update(changed=False, verdicts={host["host"]: host["found"]["verdict"] for host in hosts if host["found"]})
        missed = [f"{host['host']}: {host['problem']}" for host in hosts if host["problem"]]
        if missed:
            result.update(failed=True, msg="; ".join(missed))
        return result


def _host(name, variables):
    found, nccl = (variables.get(key) or {} for key in ("__diagnose_servers", "__diagnose_nccl"))
    looked = "servers" in found
    reason = found.get("msg") or (variables.get("__diagnose_failure") or {}).get("msg") or "no answer"
    return {
        "host": name,
        "found": found if looked else None,
        "nccl": nccl if "servers" in nccl else None,
        "problem": None if looked else " ".join(str(reason).split()),
    }
