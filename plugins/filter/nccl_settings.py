# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: nccl_settings
short_description: NCCL settings from the variables of role nccl, checked
version_added: 0.1.0
author: Ringmaster contributors (@ringmaster)
description:
  - Turns the variables of role C(ringmaster.gpu.nccl) into environment variables for NCCL, and checks them against the catalogue of
    what NCCL does with each of them.
  - Everything that is wrong is reported at once.
positional: _input
options:
  _input:
    description: The variables, C(nccl_*) by name. One that is null is no opinion.
    type: dict
    required: true
  nccl_version:
    description: The version of NCCL on the target. Without it, only what holds for every version since 2.24 is an error.
    type: str
"""

EXAMPLES = r"""
- name: Show what two channels come to
  ansible.builtin.debug:
    msg: "{{ {'nccl_channels': 2} | ringmaster.gpu.nccl_settings(nccl_version='2.28.9') }}"
"""

RETURN = r"""
_value:
  description: The settings, and what a person should know about them.
  type: dict
  contains:
    settings:
      description: The environment variables.
      type: dict
      sample: {NCCL_MIN_NCHANNELS: "1", NCCL_MAX_NCHANNELS: "2"}
    warnings:
      description: Sentences; empty when there is nothing to say.
      type: list
      elements: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import catalogue


def nccl_settings(given, nccl_version=None):
    """{settings, warnings} of the role variables GIVEN. Raises AnsibleFilterError with every error of the catalogue."""
    if not isinstance(given, dict):
        raise AnsibleFilterError(f"nccl_settings wants a dict of nccl_* variables, not {given!r}.")
    checked = catalogue.check(given, nccl_version=nccl_version)
    if checked.errors:
        raise AnsibleFilterError(" ".join(checked.errors))
    settings = {name: value for name, value in checked.settings.items() if value is not None}
    return {"settings": settings, "warnings": checked.warnings}


class FilterModule:
    """What ansible-core looks for."""

    def filters(self):
        return {"nccl_settings": nccl_settings}
