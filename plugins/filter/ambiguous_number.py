# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A version without quotes that YAML reads as a number, and thereby as another version."""

from __future__ import annotations

DOCUMENTATION = r"""
name: ambiguous_number
short_description: Why a number is no version that can be relied on
version_added: 0.1.0
description:
  - Without quotes YAML reads C(3.10) as the number 3.1. Gives a sentence that says so for a number that ends in .1, and empty text
    for everything else.
positional: _variable
options:
  _input:
    description: The version.
    type: raw
    required: true
  _variable:
    description: Name of the variable, for the sentence.
    type: str
    required: true
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: The version says what it means
  ansible.builtin.assert:
    that: problem == ''
    fail_msg: "{{ problem }}"
  vars:
    problem: "{{ cuda_version | ringmaster.gpu.ambiguous_number('cuda_version') }}"
"""

RETURN = r"""
_value:
  description: The sentence, or empty text.
  type: str
"""

from ansible_collections.ringmaster.gpu.plugins.plugin_utils.given import ambiguous


class FilterModule:
    def filters(self):
        return {"ambiguous_number": ambiguous}
