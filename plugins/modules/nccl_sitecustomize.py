#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_sitecustomize
short_description: NCCL settings in the sitecustomize file that a server's Python really runs
version_added: 0.1.0
author:
  - Ringmaster contributors (@ringmaster)
description:
  - Puts settings for NCCL into the environment of a Python server, through a C(sitecustomize.py), and reads them back through the
    server's own interpreter. A file that this interpreter does not run, because another one shadows it, is an error.
  - The settings are tried from a temporary directory first. Nothing is written when they would not be in force.
  - A variable that is set already stays as it is, unless O(override=true).
options:
  python:
    description: Path of the interpreter that runs the server. That of a virtual environment is the one inside it.
    type: path
    required: true
  scope:
    description:
      - V(service) writes a whole file to O(site_dir), which belongs on the C(PYTHONPATH) of one server. It runs the sitecustomize
        that it shadows in turn, so no other program notices.
      - V(interpreter) puts a block into the file that O(python) imports, for every program that this interpreter runs. All else
        in the file stays byte for byte. Refused while an SGLang server uses that file.
    type: str
    choices: [service, interpreter]
    default: service
  site_dir:
    description: The directory for O(scope=service). It is made when it is not there.
    type: path
    default: /var/lib/ringmaster/site
  settings:
    description: The environment variables to set. Names start with C(NCCL_). Without any, the file sets nothing.
    type: dict
    default: {}
  override:
    description:
      - Whether to replace what is set already.
      - A server that sets variables for its own workers, as SGLang does, loses what it decided.
    type: bool
    default: false
  state:
    description: V(absent) takes the settings out and leaves every file as it was before.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Says what would change, after a trial of the settings from a temporary directory.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Few channels, for the server whose PYTHONPATH names the directory
  ringmaster.gpu.nccl_sitecustomize:
    python: /opt/sglang/bin/python
    settings:
      NCCL_MIN_NCHANNELS: "1"
      NCCL_MAX_NCHANNELS: "2"

- name: Everything this interpreter runs, in the file that it imports
  ringmaster.gpu.nccl_sitecustomize:
    python: /opt/sglang/bin/python
    scope: interpreter
    settings:
      NCCL_PROTO: LL
  become: true

- name: As it was before
  ringmaster.gpu.nccl_sitecustomize:
    python: /opt/sglang/bin/python
    scope: interpreter
    state: absent
  become: true
"""

RETURN = r"""
path:
  description: The file that holds the settings, as O(python) finds it.
  returned: success
  type: str
  sample: /usr/lib/python3.12/sitecustomize.py
real_path:
  description: The same file where links end. This is the one that is written.
  returned: success
  type: str
  sample: /etc/python3.12/sitecustomize.py
values:
  description: The settings as the interpreter sees them with the file, null where one is not set.
  returned: when O(state=present)
  type: dict
  sample: {NCCL_PROTO: LL}
kept:
  description: Sentences about settings that were set elsewhere before, and so stay as they are.
  returned: when O(state=present)
  type: list
  elements: str
shadowed:
  description: Every other sitecustomize on the path of the interpreter. The first of them is run by the file of O(scope=service).
  returned: when O(state=present) or O(scope=interpreter)
  type: list
  elements: str
  sample: [/usr/lib/python3.12/sitecustomize.py]
"""

import contextlib
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ringmaster.gpu.plugins.module_utils import files, nccl_site
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError


def argument_spec():
    return {
        "python": {"type": "path", "required": True},
        "scope": {"type": "str", "choices": ["service", "interpreter"], "default": "service"},
        "site_dir": {"type": "path", "default": "/var/lib/ringmaster/site"},
        "settings": {"type": "dict", "default": {}},
        "override": {"type": "bool", "default": False},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }


def texts(settings):
    """SETTINGS with values as text. Raises RingmasterError for a truth value, which NCCL would read as 0."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise RingmasterError(f"The value {value!r} of {name} is neither text nor a number.", 'Write what NCCL reads, such as "1".')
    return {name: str(value) for name, value in settings.items()}


def refuse(wanted, found, path, current, import_path):
    """Raise RingmasterError when the file PATH, imported as IMPORT_PATH, must not be changed, whatever it shall hold."""
    if wanted["scope"] == "service" and current is not None and not nccl_site.is_ours(current):
        raise RingmasterError(f"{path} is not a file of Ringmaster.", "Give another site_dir (nccl_site_dir), or move that file away.")
    users = nccl_site.users_of(found, import_path) if wanted["scope"] == "interpreter" else []
    if users:
        who = "; ".join(f"{user['pid']} ({user['cmdline'][:200]})" for user in users)
        raise RingmasterError(f"{path} is in use by SGLang, process {who}.", "Stop that server, or use nccl_scope=service.")
    there = path if current is not None else os.path.dirname(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    directory = there if os.path.isdir(there) else os.path.dirname(there)
    if not os.access(directory, os.W_OK | os.X_OK):
        remedy = "Run the play with `become: true`, or choose a path that it may write."
        raise RingmasterError(f"User {os.geteuid()} cannot write {path}.", remedy)


def write(wanted, path, content):
    if content is not None:
        former = files.snapshot(path)
        files.make_directory(os.path.dirname(path))
        files.write_atomic(path, content, mode=former.get("mode", 0o644))
    else:
        files.remove(path)
    nccl_site.remove_stale_bytecode(path)
    if content is None and wanted["scope"] == "service":
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(path))  # only when it is empty


def run(wanted, check_mode):
    """Bring about the arguments WANTED of the module, or only say what would change. Returns its result."""
    scope, python, present = wanted["scope"], wanted["python"], wanted["state"] == "present"
    settings = texts(wanted["settings"]) if present else None
    found = nccl_site.probe(python) if present or scope == "interpreter" else None
    path = nccl_site.target_file(scope, python=python, site_dir=wanted["site_dir"], found=found)
    real_path = os.path.realpath(path)
    current = files.content(real_path)
    try:
        content = nccl_site.desired(scope, settings, wanted["override"], current)
    except RingmasterError as error:
        raise RingmasterError(f"{real_path}: {error.what}", error.remedy) from error
    changed = content != current
    result = {"changed": changed, "path": path if scope == "service" else found["site_file"] or path, "real_path": real_path}
    if found:
        result["shadowed"] = [other for other in found["shadowed"] if os.path.realpath(other) != real_path]
    if changed:
        refuse(wanted, found, real_path, current, result["path"])
        before, after = ((text or b"").decode(errors="backslashreplace") for text in (current, content))
        result["diff"] = {"before": before, "after": after, "before_header": real_path, "after_header": real_path}
        if content is not None:
            nccl_site.compile_check(python, content, real_path)
        if present:
            seen = nccl_site.rehearse(python, content, settings, real_path)
        if not check_mode:
            former = files.snapshot(real_path)
            write(wanted, real_path, content)
    if not present:
        return result
    written = not (changed and check_mode)
    if written:
        seen = nccl_site.read_back(python, {"PYTHONPATH": wanted["site_dir"]} if scope == "service" else {})
    problems, kept = nccl_site.compare(seen, settings, real_path if written else None)
    if problems:
        if changed:
            files.restore(former)
            nccl_site.remove_stale_bytecode(real_path)
        raise RingmasterError(" ".join(problems), "The file is as it was before." if changed else "")
    return {**result, "values": {name: seen["nccl"].get(name) for name in settings}, "kept": kept}


def main():
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except RingmasterError as error:
        module.fail_json(msg=str(error))
    for sentence in result.get("kept", []):
        module.warn(sentence)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
