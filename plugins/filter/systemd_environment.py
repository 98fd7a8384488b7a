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

import re

from ansible.errors import AnsibleFilterError


def _systemd_environment(variables):
    lines = []
    for name, value in sorted(variables.items()):
        if value is None:
            continue
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise AnsibleFilterError(f"sglang_environment: {name!r} is no name of an environment variable.")
        if isinstance(value, bool):
            raise AnsibleFilterError(f"sglang_environment: {name} is {str(value).lower()}; write it as text, such as '1'.")
        if not str(value).isprintable():
            raise AnsibleFilterError(f"sglang_environment: the value of {name} has a line break or another control character.")
        quoted = str(value).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'{name}="{quoted}"\n')
    return "".join(lines)


class FilterModule:
    def filters(self):
        return {"systemd_environment": _systemd_environment}
