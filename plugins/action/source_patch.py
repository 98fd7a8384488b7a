# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.source_patch: reads the diffs, found as the files of a role or a playbook are."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import controller_files


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if isinstance(arguments.get("patches"), list):  # the module says what is wrong with anything else
            read = controller_files.reader(self, task_vars)
            try:
                arguments["patches"] = [_with_diff(item, read) for item in arguments["patches"]]
            except RingmasterError as error:
                return {**result, "failed": True, "msg": f"A patch could not be read on the controller: {error}"}
        return {**result, **self._execute_module(module_name="ringmaster.gpu.source_patch", module_args=arguments, task_vars=task_vars)}


def _with_diff(item, read):
    """ITEM with the text of the file that it names. One that is to be absent goes by its record and needs none."""
    if not isinstance(item, dict) or item.get("patch") is None or item.get("diff") is not None:
        return item
    rest = {key: value for key, value in item.items() if key != "patch"}
    try:
        return {**rest, "diff": read(item["patch"])[1]}
    except RingmasterError:
        if item.get("state") == "absent":
            return rest
        raise
