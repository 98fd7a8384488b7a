# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is proven of a setting, from witnesses and environments of workers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import proof

RANKS = {"sglang::scheduler_TP0": SimpleNamespace(pid=10), "sglang::scheduler_TP1": SimpleNamespace(pid=11)}
LAUNCHER = 9


def witness(pid, applied, **nccl):
    return {"pid": pid, "applied": applied, "nccl": {**applied, **nccl}}


def effective(witnesses, environ=None, configured=None, given=None):
    return proof.effective(RANKS, LAUNCHER, witnesses, configured=configured or {}, given=given or {}, environ=(environ or {}).get)


def test_a_witness_of_every_rank_is_the_best_proof():
    settings = {"NCCL_ALGO": "Ring"}
    seen = effective({pid: witness(pid, settings, NCCL_CUMEM_ENABLE="0") for pid in (9, 10, 11)}, configured=settings)
    assert seen["sglang::scheduler_TP1"] == {
        "NCCL_ALGO": {"value": "Ring", "source": "sitecustomize", "proof": "witness"},
        "NCCL_CUMEM_ENABLE": {"value": "0", "source": "sglang", "proof": "witness"},
    }
    assert proof.problems(settings, seen, 2) == []


def test_without_a_witness_the_environ_of_a_worker_counts_only_when_it_is_whole():
    whole = {"NCCL_ALGO": "Ring", "SPT_NOENV": "1", "HOME": "/root"}
    seen = effective({}, {10: whole, 11: {"NCCL_ALGO": "Ring"}})
    assert seen["sglang::scheduler_TP0"]["NCCL_ALGO"]["proof"] == "environ"
    assert seen["sglang::scheduler_TP1"] == {"*": {"value": None, "source": "unknown", "proof": None}}
    assert proof.problems({"NCCL_ALGO": "Ring"}, seen, 2) == ["sglang::scheduler_TP1: its environment cannot be read"]
    assert proof.contradictions({"NCCL_ALGO": "Ring"}, seen) == []


def test_what_the_server_was_given_is_told_apart():
    seen = effective({10: witness(10, {}, NCCL_ALGO="Tree")}, given={"NCCL_ALGO": "Tree"})
    assert seen["sglang::scheduler_TP0"]["NCCL_ALGO"]["source"] == "environment"


@pytest.mark.parametrize(
    ("expected", "nccl", "said"),
    [
        ({"NCCL_PROTO": "LL"}, {}, "NCCL_PROTO is not set, asked for 'LL'"),
        ({"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}, "NCCL_PROTO is 'Simple' (from sglang), asked for 'LL'"),
        ({"NCCL_PROTO": None}, {"NCCL_PROTO": "LL"}, "NCCL_PROTO is 'LL' (from sglang), asked for 'unset'"),
    ],
)
def test_one_rank_that_differs_is_named(expected, nccl, said):
    right = {name: value for name, value in expected.items() if value is not None}
    seen = effective({10: witness(10, {}, **right), 11: witness(11, {}, **nccl)})
    assert proof.problems(expected, seen, 2) == [f"sglang::scheduler_TP1: {said}"]


def test_a_missing_rank_is_no_proof_and_nothing_asked_needs_none():
    seen = effective({pid: witness(pid, {"NCCL_ALGO": "Ring"}) for pid in (10, 11)})
    assert proof.problems({"NCCL_ALGO": "Ring"}, seen, 8) == ["2 of 8 ranks could be looked at"]
    assert proof.problems({}, {}, 8) == []


def test_witnesses_are_read_and_damaged_ones_passed_over(tmp_path):
    (tmp_path / "10.json").write_text(json.dumps(witness(10, {"NCCL_ALGO": "Ring"})))
    (tmp_path / "11.json").write_text('{"pid": 1')
    (tmp_path / "12.json.new").write_text("{}")
    assert set(proof.read_witnesses(str(tmp_path))) == {10}
    assert proof.read_witnesses(str(tmp_path / "none")) == {}
