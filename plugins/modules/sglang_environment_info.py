#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_environment_info
short_description: Which SGLang environments a host has, and what its server runs
version_added: 0.1.0
description:
  - Tells of every environment below O(home) whether it is whole, in force or in use, and of the unit O(unit) whether a restart is due.
  - Changes nothing.
options:
  home:
    description: Directory of all environments.
    type: path
    default: /opt/sglang
  unit:
    description: The systemd unit that serves.
    type: str
  name:
    description: Environment of which RV(engine) is to be told.
    type: str
  current:
    description: Environment that C(restart_due) of RV(service) is to take for the one in force, as check mode does.
    type: str
  sizes:
    description: Also tell how much room each takes, which reads every directory.
    type: bool
    default: false
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Look
  ringmaster.gpu.sglang_environment_info:
    unit: sglang
    sizes: true
  register: there
"""

RETURN = r"""
environments:
  description: Each with C(name), C(whole), C(fault), C(current), C(previous), C(users), C(versions), C(built) and C(size_mib).
  returned: success
  type: list
  elements: dict
current:
  description: The one in force.
  returned: success
  type: str
previous:
  description: The one that was in force before.
  returned: success
  type: str
busy:
  description: What change of O(home) is going on; null for none.
  returned: success
  type: str
service:
  description: The unit, with C(exists), C(active), C(environment), C(restart_due), C(kept_flags), the flags that C(tune.yml) keeps,
    and C(foreign), the unit's file when role C(sglang) did not write it.
  returned: when O(unit) is given
  type: dict
engine:
  description: Versions and flag names of the environment O(name); null where it is not there.
  returned: when O(name) is given
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, engine_info, environments, environments_service


def argument_spec():
    return {
        "home": {"type": "path", "default": "/opt/sglang"},
        "unit": {"type": "str"},
        "name": {"type": "str"},
        "current": {"type": "str"},
        "sizes": {"type": "bool", "default": False},
    }


def look(given):
    home, name = given["home"], given["name"]
    found = {
        "environments": environments.listing(home, given["sizes"]),
        "current": environments.linked(home),
        "previous": environments.linked(home, "previous"),
        "busy": environments.holder(home),
    }
    if given["unit"]:
        found["service"] = environments_service.look(given["unit"], home, given["current"])
    if name:
        environments.check_name(name)
        python = environments.python(home, name)
        found["engine"] = engine_info.read(python) if os.path.exists(python) else None
    return found


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    answer.give(module, lambda: look(module.params), module.params["home"])


if __name__ == "__main__":
    main()
