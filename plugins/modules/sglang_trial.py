#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_trial
short_description: Launch SGLang once, measure it, stop it
version_added: 0.1.0
description:
  - Launches a server on 127.0.0.1 and a port of its own, waits until it answers, proves which NCCL settings its workers have,
    measures the workloads, and stops it. The host is as before afterwards, whatever happens.
  - A server that crashes or hangs is a result (RV(trial.outcome)), not a failure of the task.
options:
  python:
    description: The interpreter that has SGLang.
    type: path
    required: true
  model_path:
    description: Directory of the model.
    type: str
    required: true
  flags:
    description: Flags of the server without dashes, V(true) for one without value.
    type: dict
    default: {}
  environment:
    description: Environment variables of the server.
    type: dict
    default: {}
  nccl:
    description: NCCL variables to set through sitecustomize.
    type: dict
    default: {}
  scope:
    description: Where these live.
    type: str
    choices: [service, interpreter]
    default: service
  workloads:
    description: What is asked of the server, each with C(name), C(concurrency), C(input_len), C(output_len), C(requests).
    type: list
    elements: dict
    default: []
  port:
    description: Port of the server; V(0) takes a free one.
    type: int
    default: 0
  user:
    description: User that runs the server.
    type: str
  state_dir:
    description: Ringmaster's state directory on the host.
    type: path
    default: /var/lib/ringmaster
  lease_s:
    description: Seconds without a word from the controller after which the host ends the trial.
    type: int
    default: 120
  stall_timeout_s:
    description: Seconds without progress after which the server counts as hung.
    type: int
    default: 300
  drain_timeout_s:
    description: Seconds that the server gets to finish its requests.
    type: int
    default: 60
  keep_trials:
    description: Trials whose logs stay on the host.
    type: int
    default: 50
  log_cap_mib:
    description: Size in MiB above which the middle of the log is dropped.
    type: int
    default: 64
  benchmark_tool:
    description: What asks; see C(tune_benchmark_tool) of role C(tune).
    type: str
    choices: [ringmaster, sglang, aiperf]
    default: ringmaster
  aiperf_path:
    description: The C(aiperf) executable on the host.
    type: path
  outputs:
    description: Read log-probabilities of fixed prompts.
    type: bool
    default: true
  nccl_capture:
    description: Let NCCL write down what it reads and chooses, a file a process.
    type: bool
    default: false
  smoke:
    description: Try first whether two ranks can all-reduce.
    type: bool
    default: true
  time_budget:
    description: Longest time for it all, as seconds or a span such as V(90m); empty for none.
    type: str
    default: ""
  keep_cores:
    description: Core dumps that stay on the host.
    type: int
    default: 0
attributes:
  check_mode:
    description: Nothing is launched.
    support: full
  diff_mode:
    description: It changes nothing that lasts.
    support: none
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Two channels, once
  ringmaster.gpu.sglang_trial:
    python: /opt/sglang/bin/python
    model_path: /models/m
    flags: {tp-size: 8, disable-custom-all-reduce: true}
    nccl: {NCCL_MAX_NCHANNELS: "2"}
    workloads:
      - {name: decode-1, concurrency: 1, input_len: 64, output_len: 256, requests: 4}
  register: once
"""

RETURN = r"""
trial:
  description: The trial result, also in C(ansible_facts.ringmaster_trials) under its id.
  returned: success
  type: dict
  contains:
    outcome:
      description: V(ready), V(crashed), V(hung), V(killed) or V(refused).
      type: str
    cause:
      description: What went wrong, as C(summary), C(advice) and C(evidence).
      type: dict
    effective:
      description: NCCL variables of each rank with value, source and proof.
      type: dict
    workloads:
      description: A row of figures each.
      type: list
    log:
      description: Path of the server's log on the host.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule


def argument_spec():
    """The options, for the action plugin too."""
    return {
        "python": {"type": "path", "required": True},
        "model_path": {"type": "str", "required": True},
        "flags": {"type": "dict", "default": {}},
        "environment": {"type": "dict", "default": {}},
        "nccl": {"type": "dict", "default": {}},
        "scope": {"type": "str", "choices": ["service", "interpreter"], "default": "service"},
        "workloads": {"type": "list", "elements": "dict", "default": []},
        "port": {"type": "int", "default": 0},
        "user": {"type": "str"},
        "state_dir": {"type": "path", "default": "/var/lib/ringmaster"},
        "lease_s": {"type": "int", "default": 120},
        "stall_timeout_s": {"type": "int", "default": 300},
        "drain_timeout_s": {"type": "int", "default": 60},
        "keep_trials": {"type": "int", "default": 50},
        "log_cap_mib": {"type": "int", "default": 64},
        "benchmark_tool": {"type": "str", "choices": ["ringmaster", "sglang", "aiperf"], "default": "ringmaster"},
        "aiperf_path": {"type": "path"},
        "outputs": {"type": "bool", "default": True},
        "nccl_capture": {"type": "bool", "default": False},
        "smoke": {"type": "bool", "default": True},
        "time_budget": {"type": "str", "default": ""},
        "keep_cores": {"type": "int", "default": 0},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    module.fail_json(msg="ringmaster.gpu.sglang_trial works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
