#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: trial_plan
short_description: Run a plan of server starts on a host, and leave it in known-good
version_added: 0.1.0
description:
  - Hands a plan of launches to a supervisor on the host, follows it, decides by statistics, and keeps the candidate or gives it back.
  - The supervisor owns the transaction. Whatever happens to the controller, the host is back in known-good within the lease
    and 20 seconds.
  - With O(command=run) the action part on the controller does all of this. The other commands are single steps, for playbooks
    such as C(status.yml) and C(abort.yml).
options:
  command:
    description:
      - V(run) does the whole job.
      - V(begin), V(poll) and V(decide) are its parts.
      - V(status) reads, V(abort) ends what runs and waits until known-good is back, V(recover) restores after a plan that was cut off.
    type: str
    choices: [run, begin, poll, decide, status, abort, recover]
    default: run
  state_dir:
    description: Ringmaster's state directory on the host.
    type: path
    default: /var/lib/ringmaster
  plan:
    description: The plan for V(run) and V(begin), as the role P(ringmaster.gpu.tune#role) makes it.
    type: dict
  name:
    description: Name of the plan, for V(poll) and V(decide).
    type: str
  after:
    description: Number of the last event that is known, for V(poll).
    type: int
    default: 0
  wait_s:
    description: Longest time to wait for news (V(poll)) or for the end (V(abort)), in seconds.
    type: float
    default: 0
  decision:
    description: What to do next, for V(decide).
    type: dict
  who:
    description: Who asks, for messages on the host.
    type: str
    default: somebody
  ledger:
    description: The ledger on the controller, for V(run).
    type: path
attributes:
  check_mode:
    description: With V(run), the plan and its cost are returned and nothing is started.
    support: full
  diff_mode:
    description: A kept candidate shows as the difference of its files.
    support: none
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Who runs what here
  ringmaster.gpu.trial_plan:
    command: status
  register: found

- name: End it
  ringmaster.gpu.trial_plan:
    command: abort
    wait_s: 140
"""

RETURN = r"""
status:
  description: Holder of the lock, step, last phase, versions of known-good.
  returned: with command status
  type: dict
events:
  description: What happened after RV(ignore:after).
  returned: with command poll
  type: list
  elements: dict
trials:
  description: Results of the trials that the events name.
  returned: with command poll or run
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, control, transaction
from ..module_utils.errors import RingmasterError
from ..module_utils.state import State


def argument_spec():
    return {
        "command": {"type": "str", "choices": ["run", "begin", "poll", "decide", "status", "abort", "recover"], "default": "run"},
        "state_dir": {"type": "path", "default": "/var/lib/ringmaster"},
        "plan": {"type": "dict"},
        "name": {"type": "str"},
        "after": {"type": "int", "default": 0},
        "wait_s": {"type": "float", "default": 0.0},
        "decision": {"type": "dict"},
        "who": {"type": "str", "default": "somebody"},
        "ledger": {"type": "path"},
    }


def do(state, params):
    """Carry out one command; returns the result's fields."""
    command = params["command"]
    if command == "begin":
        return {"changed": True, **control.begin(state, params["plan"])}
    if command == "poll":
        return {"changed": False, **control.poll(state, params["name"], after=params["after"], wait_s=params["wait_s"])}
    if command == "decide":
        control.decide(state, params["name"], params["decision"])
        return {"changed": True}
    if command == "status":
        return {"changed": False, "status": control.status(state)}
    if command == "abort":
        ended = control.abort(state, who=params["who"], wait_s=params["wait_s"])
        return {"changed": bool(ended["holder"] or ended["restored"]), **ended}
    if command == "recover":
        done = transaction.mend(state, params["who"])
        return {"changed": bool(done), "restored": done}
    raise RingmasterError("command=run needs the action plugin of ringmaster.gpu.", "Run it from a playbook on the controller.")


def main():
    module = AnsibleModule(
        argument_spec(),
        supports_check_mode=True,
        required_if=[("command", "begin", ["plan"]), ("command", "poll", ["name"]), ("command", "decide", ["name", "decision"])],
    )
    if module.check_mode and module.params["command"] not in ("poll", "status"):
        module.exit_json(changed=True)
    directory = module.params["state_dir"]
    answer.give(module, lambda: do(State(directory), module.params), directory, "use")


if __name__ == "__main__":
    main()
