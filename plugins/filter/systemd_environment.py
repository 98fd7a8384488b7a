# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file for EnvironmentFile of a systemd unit."""

from __future__ import annotations

DOCUMENTATION = r"""
name: systemd_environment
short_description: Text of an environment file for systemd
version_added: 0.1.0
description:
  - Writes one line a variable, sorted and quoted so that systemd gives the server exactly the value. Null leaves a variable out.
options:
  _input:
    description: The variables.
    type: dict
    required: true
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Show a file
  ansible.builtin.debug:
    msg: "{{ {'HF_HUB_OFFLINE': '1'} | ringmaster.gpu.systemd_environment }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import environment_file


def _systemd_environment(variables):
    try:
        return environment_file.text(variables, "sglang_environment")
    except RingmasterError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self):
        return {"systemd_environment": _systemd_environment}
