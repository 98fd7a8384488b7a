#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_environment
short_description: Build, put in force and remove SGLang environments
version_added: 0.1.0
description:
  - Keeps Python environments with SGLang side by side. One is in force, by a link that is switched atomically.
  - An environment is built from a lock file, every file checked by its checksum. What its own Python says of itself is compared with the
    lock, and only then it gets its stamp. One without is half-built, and built anew.
  - A build touches neither the environment in force nor a running server. It keeps a log below O(home)C(/log).
  - Needs no Python library, no pip and no C(python3-venv) on the host, only an interpreter.
options:
  state:
    description:
      - V(built) makes the environment O(name) whole.
      - V(current) puts it in force for whatever starts from then on. In check mode one that is not whole is taken to be by then.
      - V(absent) removes it. It must be neither in force nor in use.
      - V(pruned) removes all but the one in force, those in use, and O(keep) more.
    type: str
    choices: [built, current, absent, pruned]
    default: built
  home:
    description: Directory of all environments.
    type: path
    default: /opt/sglang
  name:
    description: Name of the environment. Needed unless O(state=pruned).
    type: str
  lock:
    description: Text of the lock file. Needed with O(state=built).
    type: str
  uv_lock:
    description: Text of the lock file of uv. Needed with O(state=built) unless O(site) is given.
    type: str
  index_url:
    description: Package index to install from. A password in it is not shown.
    type: str
  wheels:
    description: Directory with wheels to install from, without any network.
    type: path
  site:
    description: A trimmed site-packages directory to copy. What it lacks, the base interpreter has.
    type: path
  below:
    description: Packages that O(site) lacks because the base interpreter is to have them. It is refused where one is missing.
    type: list
    elements: str
    default: []
  base_python:
    description: Interpreter to build from. Without it the first of python3.12, 3.11, 3.13, 3.10 and python3 that the lock allows.
    type: str
  tool:
    description: What installs. V(auto) is uv, and pip where there is no uv for this machine.
    type: str
    choices: [auto, uv, pip]
    default: auto
  timeout_s:
    description: A build that takes longer is ended.
    type: int
    default: 7200
  keep:
    description: With O(state=pruned), how many to keep beside the one in force.
    type: int
    default: 2
attributes:
  check_mode:
    description: Tells what it would do, and refuses what it would refuse, without doing it.
    support: full
  diff_mode:
    description: Shows names of environments.
    support: full
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Build an environment beside the one in force
  ringmaster.gpu.sglang_environment:
    name: 0.5.23-cu130-0a1b2c3d
    lock: "{{ lookup('ansible.builtin.file', 'locks/0.5.23-cu130.txt', rstrip=false) }}"
    uv_lock: "{{ lookup('ansible.builtin.file', 'locks/uv.txt', rstrip=false) }}"
    index_url: https://pypi.org/simple

- name: Put it in force
  ringmaster.gpu.sglang_environment:
    state: current
    name: 0.5.23-cu130-0a1b2c3d

- name: Remove what nobody needs
  ringmaster.gpu.sglang_environment:
    state: pruned
    keep: 1
"""

RETURN = r"""
name:
  description: The environment.
  returned: success, unless O(state=pruned)
  type: str
python:
  description: Its interpreter.
  returned: success, unless O(state=pruned)
  type: str
fault:
  description: Why it had to be built; null where it was whole.
  returned: O(state=built)
  type: str
environment:
  description: What was built, its versions among others. Empty in check mode where there is none yet.
  returned: O(state=built)
  type: dict
log:
  description: Log of the build.
  returned: O(state=built)
  type: str
before:
  description: The environment that was in force.
  returned: O(state=current)
  type: str
removed:
  description: What was removed.
  returned: O(state=pruned)
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, environments, environments_build, environments_lock, environments_uv
from ..module_utils.errors import RingmasterError


def argument_spec():
    return {
        "state": {"type": "str", "choices": ["built", "current", "absent", "pruned"], "default": "built"},
        "home": {"type": "path", "default": "/opt/sglang"},
        "name": {"type": "str"},
        "lock": {"type": "str", "no_log": True},  # no secret: hundreds of kilobytes that no log needs
        "uv_lock": {"type": "str", "no_log": True},
        "index_url": {"type": "str"},
        "wheels": {"type": "path"},
        "site": {"type": "path"},
        "below": {"type": "list", "elements": "str", "default": []},
        "base_python": {"type": "str"},
        "tool": {"type": "str", "choices": ["auto", "uv", "pip"], "default": "auto"},
        "timeout_s": {"type": "int", "default": 7200},
        "keep": {"type": "int", "default": 2},
    }


def _built(given, check):
    home, name = given["home"], given["name"]
    environments.check_name(name)
    lock = environments_lock.parse(given["lock"])
    fault = environments.fault(home, name, lock["sha256"])
    result = {"name": name, "python": environments.python(home, name), "log": environments.log_path(home, name), "fault": fault}
    if fault is None:
        stamp = environments.stamp(home, name)
        _check_base(stamp, given["base_python"])
        return {**result, "environment": stamp}
    environments_build.check_way(home, name, lock["sha256"])
    source = {kind: given[kind] for kind in ("site", "below", "wheels", "index_url") if given[kind]}
    environments_build.plan(home, name, given["lock"], given["base_python"], source)
    before = environments.names(home)
    diff = {"before": _lines(before), "after": _lines(sorted({*before, name})), "before_header": home, "after_header": home}
    if check:
        return {**result, "changed": True, "environment": {}, "diff": diff}
    stamp = environments_build.build(
        home, name, given["lock"], source=source, uv_lock_text=given["uv_lock"], asked_python=given["base_python"], tool=given["tool"],
        timeout_s=given["timeout_s"],
    )  # fmt: skip
    return {**result, "changed": True, "environment": stamp, "diff": diff}


def _check_base(stamp, asked):
    if asked:
        _path, version = environments_build.base_python(asked, "")
        if version.split(".")[:2] != stamp["python"].split(".")[:2]:
            what = f"sglang_base_python: {asked} is {version}, but {stamp['name']} was built with {stamp['python']}."
            raise RingmasterError(what, "Remove it (state=absent) to have it built anew, or leave sglang_base_python out.")


def _current(given, check):
    home, name = given["home"], given["name"]
    environments.check_name(name)
    former = environments.linked(home)
    fault = environments.fault(home, name)
    if fault and not check:
        raise RingmasterError(f"{environments.path(home, name)} {fault}.", "Build it first (state=built).")
    result = {"name": name, "python": environments.python(home, name), "before": former, "changed": former != name}
    result["diff"] = {"before": _lines([former or ""]), "after": _lines([name]), "before_header": f"{home}/current"}
    if former != name and not check:
        with environments.locked(home, f"the switch to {name}"):
            environments.switch(home, name)
    return result


def _absent(given, check):
    home, name = given["home"], given["name"]
    environments.check_name(name)
    there = name in environments.names(home)
    if there:
        environments.refuse_removal(home, name)
    if there and not check:
        with environments.locked(home, f"the removal of {name}"):
            environments.remove(home, name)
    diff = {"before": _lines([name] * there), "after": ""}
    return {"name": name, "python": environments.python(home, name), "changed": there, "diff": diff}


def _pruned(given, check):
    home = given["home"]
    removed = environments.superfluous(home, given["keep"])
    if removed and not check:
        with environments.locked(home, "the removal of what nobody needs"):
            for name in removed:
                environments.refuse_removal(home, name)
                environments.remove(home, name)
    return {"removed": removed, "changed": bool(removed), "diff": {"before": _lines(removed), "after": ""}}


def _lines(names):
    return "".join(f"{name}\n" for name in names)


def main():
    module = AnsibleModule(
        argument_spec(),
        supports_check_mode=True,
        mutually_exclusive=[["index_url", "wheels", "site"]],
        required_if=[
            ["state", "built", ["name", "lock"]],
            ["state", "built", ["index_url", "wheels", "site"], True],
            ["state", "current", ["name"]],
            ["state", "absent", ["name"]],
        ],
    )
    module.no_log_values.update(environments_uv.secrets_of(module.params["index_url"]))
    work = {"built": _built, "current": _current, "absent": _absent, "pruned": _pruned}[module.params["state"]]
    answer.give(module, lambda: work(module.params, module.check_mode), module.params["home"], "change")


if __name__ == "__main__":
    main()
