# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the simulated machine is told: `lab.json` in the model directory, and the faults asked for there or in the environment.

A fault is `word[:argument]`, alone or as `{"fault": "word:argument", "when": {"NCCL_PROTO": "LL128", "disable-radix-cache": "true"}}`:
it then strikes only in workers whose environment (names in capitals) and flags (other names) say so. The words:

    crash_at_phase:PHASE         the last rank raises; phases: distributed, weights, kv_cache, graphs
    hang_at_phase:PHASE          nothing goes on, no CPU time
    spin_at_phase:PHASE          nothing goes on, rank 0 burns one core
    kill_at_phase:PHASE          the last rank is killed by signal 9
    lose_scheduler_after_s:S     the last rank kills itself S seconds after serving began
    leave_zombies                the last rank leaves a process of its own name behind that ignores SIGTERM
    no_answer                    health says 200, a completion never comes
    slow_drain_s:S               after SIGTERM and the last stream, S seconds more
    nan                          every token is token 0, no log-probability is a number
    corrupt[:NATS]               log-probabilities are NATS (1) too low in the mean
    nccl_ignores:NAME            NCCL of every rank acts, and logs, as if this variable were not set
"""

from __future__ import annotations

import json
import os

from .latency import COEFFICIENTS

FAULTS = (
    "crash_at_phase", "hang_at_phase", "spin_at_phase", "kill_at_phase", "lose_scheduler_after_s",
    "leave_zombies", "no_answer", "slow_drain_s", "nan", "corrupt", "nccl_ignores",
)
DEFAULTS = {
    "load_s": 1.5,  # launch to port open
    "warmup_s": 0.1,  # port open to first answer
    "shards": 12,
    "drain_poll_s": 0.25,  # after SIGTERM: how often it is looked whether all requests are done
    "crash_settle_s": 0.0,  # SGLang waits 5 s for the GPUs to settle after it lost a worker
    "detokenizer_loss_s": 65.0,  # from the detokenizer's death to the launcher's
    "health_timeout_s": 20.0,
    "kv_tokens_per_fraction": 700000,  # KV cache size in tokens for --mem-fraction-static 1.0
    "coefficients": {},  # over latency.COEFFICIENTS
    "faults": [],
}
PHASES = ("distributed", "weights", "kv_cache", "graphs")


def read(model_path: str) -> dict:
    """`lab.json` of a model directory over the defaults; ValueError for a key or fault that nobody knows. No file: the defaults."""
    path = os.path.join(model_path, "lab.json")
    given = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as source:
            given = json.load(source)
    for known, found in ((DEFAULTS, given), (COEFFICIENTS, given.get("coefficients", {}))):
        unknown = sorted(set(found) - set(known))
        if unknown:
            raise ValueError(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    lab = dict(DEFAULTS, **given)
    lab["coefficients"] = dict(COEFFICIENTS, **lab["coefficients"])
    lab["faults"] = [_fault(one) for one in _as_list(lab["faults"]) + _as_list(os.environ.get("RINGMASTER_LAB_FAULT", ""))]
    return lab


def _as_list(text_or_list) -> list:
    if isinstance(text_or_list, list):
        return text_or_list
    if isinstance(text_or_list, dict):
        return [text_or_list]
    text = text_or_list.strip()
    if text[:1] in ("[", "{"):
        return _as_list(json.loads(text))
    return [text] if text else []


def _fault(one) -> dict:
    spec = one if isinstance(one, dict) else {"fault": one}
    word, _unused, argument = spec["fault"].partition(":")
    if word not in FAULTS:
        raise ValueError(f"unknown fault {word}; known are {', '.join(FAULTS)}")
    if word.endswith("_phase") and argument not in PHASES:
        raise ValueError(f"{word}: unknown phase {argument!r}; known are {', '.join(PHASES)}")
    return {"word": word, "argument": argument, "when": spec.get("when", {})}


def active(faults: list, env: dict, flags: dict) -> dict:
    """{word: argument} of the faults whose conditions hold for this environment and these flags (argparse names)."""
    def holds(name: str, wanted: str) -> bool:
        found = env.get(name) if name.isupper() else flags.get(name.lstrip("-").replace("-", "_"))
        return str(found).lower() == str(wanted).lower()

    return {f["word"]: f["argument"] for f in faults if all(holds(*pair) for pair in f["when"].items())}
