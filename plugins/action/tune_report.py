# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.tune_report: the table at the end."""

from __future__ import annotations

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
        width = tables.terminal_width()
        show = {"results": self._results, "status": self._status}[self._task.args.get("show", "results")]
        result.update(changed=False, rows=show(hosts, width))
        refused = [row for row in result["rows"] if row.get("verdict") in (self._task.args.get("fail_on") or [])]
        if refused:
            result.pop("rows")  # they stand in the table
            result.update(failed=True, msg="; ".join(f"{row['host']}: {row['factor']} {row['verdict']}" for row in refused))
        return result

    def _results(self, hosts, width):
        rows = [dict(row) for host in hosts for row in host.get("__tune_rows", [])]
        if rows:
            self._display.display("\n" + tables.results_table(rows, width=width))
        for host in hosts:
            lines = host.get("__tune_inventory")
            if lines:
                self._display.display(f"To make it permanent, put into the inventory of {host['inventory_hostname']}:\n")
                self._display.display("\n".join(f"    {line}" for line in lines) + "\n")
        return rows

    def _status(self, hosts, width):
        running = []
        for host in hosts:
            status = (host.get("__tune_status") or {}).get("status")
            name = host["inventory_hostname"]
            if status is None:
                continue
            holder, step, last = status["holder"], status["step"], status["last"] or {}
            if holder:
                running.append(
                    {
                        "host": name, "who": holder["who"], "since": holder["since"], "lease_s": status["lease_left_s"],
                        "step": f"{step['number']}/{step['of']} {step['arm']}" if step else "-",
                        "phase": last.get("phase") or last.get("kind") or "-",
                    }
                )  # fmt: skip
            elif status["unfinished"]:
                self._display.display(f"{name}: a plan was cut off; the next run, or ringmaster.gpu.abort, puts known-good back.")
        self._display.display("\n" + tables.status_table(running, width=width))
        for host in hosts:
            status = (host.get("__tune_status") or {}).get("status") or {}
            current = (status.get("known_good") or {}).get("version")
            rows = [{**row, "date": row["created"], "current": row["version"] == current} for row in status.get("versions", [])]
            self._display.display(f"{host['inventory_hostname']}: known-good\n" + tables.versions_table(rows, width=width))
            if status.get("log"):
                self._display.display(f"  log: {status['log']}\n")
        return running
