# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A dictionary variable that may also be given as text on the command line."""

from __future__ import annotations

DOCUMENTATION = r"""
name: as_mapping
short_description: A dictionary, also from text
version_added: 0.1.0
description:
  - Gives a dictionary back as it is, and reads text such as C(a=1 b) as two entries, the second of which is V(true).
positional: _variable
options:
  _input:
    description: A dictionary, text, or nothing.
    type: raw
    required: true
  _variable:
    description: Name of the variable, for messages.
    type: str
    required: true
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Both give the same
  ansible.builtin.debug:
    msg: "{{ 'tp-size=4 trust-remote-code' | ringmaster.gpu.as_mapping('sglang_flags') }}"
"""

RETURN = r"""
_value:
  description: The dictionary.
  type: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.resolve import as_mapping


def _as_mapping(value, variable):
    try:
        return as_mapping(variable, value)
    except RingmasterError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self):
        return {"as_mapping": _as_mapping}
