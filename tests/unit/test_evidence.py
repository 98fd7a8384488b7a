# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sentences of the table about proof and care."""

from __future__ import annotations

from ansible_collections.ringmaster.gpu.plugins.plugin_utils import evidence


def start(proof, *, ranks=2, ok=True, **more):
    values = {"NCCL_PROTO": {"value": "LL", "source": "sitecustomize", "proof": proof}, "NCCL_NET": {"proof": "environ"}}
    return {"effective_ok": ok, "effective": {f"TP{rank}": values for rank in range(ranks)}, **more}


def test_proofs_are_counted_best_first_over_starts():
    starts = [start("witness"), start("nccl log"), start("witness"), start("environ", ok=False)]
    said = evidence.proven(starts, ["NCCL_PROTO"])
    assert said == "NCCL's own log (1 of 3 starts), a witness of the worker (2 of 3 starts); each of 2 ranks"
    assert evidence.proven([start("environ", ranks=1)], ["NCCL_PROTO"]) == "the worker's environment (1 of 1 starts); 1 rank"


def test_without_a_setting_or_a_start_nothing_is_claimed():
    assert evidence.proven([start("witness")], []) == evidence.proven([], ["NCCL_PROTO"]) == ""
    assert evidence.proven([start(None)], ["NCCL_PROTO"]) == evidence.proven([start("witness")], ["NCCL_ALGO"]) == ""


def test_warnings_of_starts_that_count_each_once():
    row = {"name": "c1", "warnings": ["too short"]}
    gpu = {"index": 1, "problems": ["runs hot"]}
    trials = [{"id": "20261130T-x-03", "workloads": [row], "gpus": {"health": [gpu]}}] * 2
    trials.append({"id": "20261130T-x-01", "discard": True, "workloads": [{"name": "c1", "warnings": ["warming up"]}], "gpus": {}})
    assert evidence.warnings(trials) == ["start 3, c1: too short", "GPU 1: runs hot"]
    assert evidence.warnings([{"workloads": None, "gpus": {"health": None}}]) == []
