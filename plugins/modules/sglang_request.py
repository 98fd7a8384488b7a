#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_request
short_description: Check what role sglang is asked for
version_added: 0.1.0
description:
  - Reads the variables of role C(ringmaster.gpu.sglang) as they are for the host, and checks them against each other, the flags of that
    version of SGLang, its lock file, the patch files and the bundle. Everything that is wrong is told in one message.
  - Works on the controller only, asks nothing of the host, and changes nothing. The host need not be there yet.
options:
  names:
    description: Names of the flags of this version, where it is not on record. Without them its flags are not checked.
    type: list
    elements: str
    default: []
  kept:
    description: Flags that C(tune.yml) keeps on the host in a file that is not to be written anew, so that an old name is an error, too.
    type: dict
    default: {}
  manifest:
    description: Manifest of the bundle, with C(sglang_source=bundle).
    type: dict
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: What is asked for can be
  ringmaster.gpu.sglang_request:
  register: asked
"""

RETURN = r"""
flags:
  description: The flags of the server as this version wants them.
  returned: success
  type: dict
  sample: {cuda-graph-max-bs-decode: "128"}
notes:
  description: Sentences on the flags for a person.
  returned: success
  type: list
  elements: str
checked:
  description: Whether the version's flags are known.
  returned: success
  type: bool
secret:
  description: Whether a value among the flags is a secret. Then the result is not shown.
  returned: success
  type: bool
lock:
  description: Path of the lock file on the controller; null with C(sglang_source=bundle).
  returned: success
  type: str
versions:
  description: Versions of each package in the lock file; several where they go by the interpreter.
  returned: success
  type: dict
  sample: {torch: ["2.11.0"]}
patches_suffix:
  description: What the name of an environment with these patches ends in.
  returned: success
  type: str
  sample: -p1a2b3c4d
"""

from ansible.module_utils.basic import AnsibleModule


def argument_spec():
    return {
        "names": {"type": "list", "elements": "str", "default": []},
        "kept": {"type": "dict", "default": {}},
        "manifest": {"type": "dict"},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    module.fail_json(msg="ringmaster.gpu.sglang_request works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
