# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.reap_report: the table of reap.yml."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import reap_table, tables


class ActionModule(ActionBase):
    """Runs once for all hosts of the play."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hosts = [_host(name, task_vars["hostvars"][name]) for name in task_vars["ansible_play_hosts_all"]]
        text = reap_table.report(hosts, width=tables.terminal_width(), only_say=self._task.check_mode)
        self._display.display("\n" + text)
        result.update(changed=False, reaped={host["host"]: len((host["found"] or {}).get("reaped", ())) for host in hosts})
        failed = [f"{host['host']}: {host['problem']}" for host in hosts if host["problem"]]
        if failed:
            result.update(failed=True, msg="; ".join(failed))
        return result


def _host(name, variables):
    found = variables.get("__reap") or {}
    looked = "workers" in found
    reason = found.get("msg") or (variables.get("__reap_failure") or {}).get("msg") or "no answer"
    node = variables.get("proxmox_node")
    if found.get("unreachable"):
        reason = f"{node or name} cannot be reached: {reason}"
    return {
        "host": name,
        "place": f"container {variables.get('proxmox_vmid')} on {node}" if node else "the machine itself",
        "found": found if looked else None,
        "problem": " ".join(str(reason).split()) if found.get("failed") or not looked else None,
    }
