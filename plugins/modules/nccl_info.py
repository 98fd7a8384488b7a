#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_info
short_description: Look at NCCL as an interpreter, and each running SGLang server, has it
version_added: 0.1.0
description:
  - Tells the version and hash of the library, the sitecustomize that the interpreter really imports and what it sets, NCCL's
    configuration files, and the value of each variable on each rank of every running server.
  - A value that a worker shows of itself is V(proven). One that follows from its launcher's environment and its sitecustomize is
    V(inferred). Where neither can be seen it is V(unknown).
  - Changes nothing.
options:
  python:
    description: An interpreter to look at, too, such as that of a server which does not run now.
    type: path
  timeout_s:
    description: Longest time for all of it. What is late is left out, the hash of a library first.
    type: float
    default: 2.5
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Look at NCCL
  ringmaster.gpu.nccl_info:
    python: /opt/sglang/bin/python
  register: nccl
"""

RETURN = r"""
servers:
  description: Each running server.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: Its launcher.
      type: int
    python:
      description: Its interpreter; nothing where it cannot be told, as from outside its container.
      type: str
    library:
      description: Path, version and hash of the library that a worker has loaded (V(proven)) or would load (V(inferred)).
      type: dict
    site:
      description: The sitecustomize it imports, whose it is, what it sets, and whether it has changed since the server started.
      type: dict
    conf:
      description: NCCL's configuration files, the strongest first, with their values.
      type: list
      elements: dict
    effective:
      description: For each rank the value of each variable, its source, proof and certainty.
      type: dict
interpreter:
  description: The same, without ranks, of O(python).
  returned: when O(python) is given
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, nccl_look, parallel, server_trees


def argument_spec():
    return {"python": {"type": "path"}, "timeout_s": {"type": "float", "default": 2.5}}


def look(python, timeout_s):
    """The result's fields."""
    trees = server_trees.find()
    jobs = {tree.root.pid: lambda tree=tree: nccl_look.look(tree, timeout_s=timeout_s, with_hash=True) for tree in trees}
    if python:
        jobs["interpreter"] = lambda: nccl_look.of_interpreter(python, timeout_s=timeout_s)
    found = parallel.together(jobs, timeout_s + 0.25)
    seen = {name: {"problem": str(value)} if isinstance(value, Exception) else {**value, "problem": None} for name, value in found.items()}
    interpreter = {"interpreter": seen.pop("interpreter")} if python else {}
    return {"servers": [{"pid": pid, **value} for pid, value in seen.items()], **interpreter}


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    answer.give(module, lambda: look(module.params["python"], module.params["timeout_s"]), "/proc")


if __name__ == "__main__":
    main()
