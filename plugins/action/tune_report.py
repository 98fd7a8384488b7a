# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.tune_report: the table at the end."""

from __future__ import annotations

import shutil

from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import tables


class ActionModule(ActionBase):
    """Runs once for all hosts of the play."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hosts = [task_vars["hostvars"][name] for name in task_vars["ansible_play_hosts_all"]]
        rows = [dict(row) for host in hosts for row in host.get("__tune_rows", [])]
        width = max(80, min(120, shutil.get_terminal_size((80, 24)).columns))
        if rows:
            self._display.display("\n" + tables.results_table(rows, width=width))
        for host in hosts:
            lines = host.get("__tune_inventory")
            if lines:
                self._display.display(f"To make it permanent, put into the inventory of {host['inventory_hostname']}:\n")
                self._display.display("\n".join(f"    {line}" for line in lines) + "\n")
        result.update(changed=False, rows=rows)
        refused = [row for row in rows if row["verdict"] in (self._task.args.get("fail_on") or [])]
        if refused:
            result.update(failed=True, msg="; ".join(f"{row['host']}: {row['factor']} is {row['verdict']}" for row in refused))
        return result
