# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.sglang_request: the variables of role sglang, checked before any host is touched."""

from __future__ import annotations

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.action.tune_plan import plain
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import controller_files, role_arguments, sglang_request


class ActionModule(ActionBase):
    """Nothing is asked of the host."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = {**super().run(tmp, task_vars), "changed": False}
        values, problems = self._values(role_arguments.specification("sglang"), task_vars)
        options, wrong = sglang_request.options_of(values)
        problems += wrong
        found = {"problems": problems}
        if not problems:
            found = sglang_request.check(options, controller_files.reader(self, task_vars), self._task.args)
        if problems := found.pop("problems"):
            return {**result, "failed": True, "msg": f"{task_vars['inventory_hostname']}: {' '.join(problems)}"}
        return {**result, **found, "_ansible_no_log": found["secret"]}  # among the flags: -v shows results

    def _values(self, names, task_vars):
        """({variable: its value} of NAMES that are set; sentences on those that cannot be read)."""
        values, problems = {}, []
        for name in names:
            try:
                if name in task_vars:
                    values[name] = plain(self._templar.template(task_vars[name]))
            except AnsibleError as error:
                problems.append(f"{name} cannot be read: {error.message}")
        return values, problems
