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


# NCCL's own log


def capture(rank=0, settings=None, **more):
    base = {"version": "2.28.9" if rank == 0 else None, "settings": settings or {}, "invalid": [], "warnings": [], "complete": True}
    return {**base, "rank": rank, "ranks": 2, "channels": {"coll": 2}, "transports": {}, "collectives": [], **more}


def heard(nccl, captured, *, asked=None, witnessed=True, given=None, **more):
    """`effective` of two ranks whose processes have NCCL and whose NCCL logs CAPTURED."""
    asked = nccl if asked is None else asked
    witnesses = {pid: {"pid": pid, "applied": asked, "nccl": nccl} for pid in (9, 10, 11)} if witnessed else {}
    captures = {pid: capture(rank, captured, **more) for rank, pid in enumerate((10, 11))}
    seen = proof.effective(RANKS, LAUNCHER, witnesses, configured=asked, given=given or {}, captures=captures, environ={}.get)
    assert seen["sglang::scheduler_TP0"] == seen["sglang::scheduler_TP1"]
    return seen


def test_nccl_itself_is_the_best_proof_and_an_unlogged_variable_keeps_its_witness():
    asked = {"NCCL_MAX_NCHANNELS": "2", "NCCL_IB_TC": "1"}
    seen = heard(asked, {"NCCL_MAX_NCHANNELS": "2"})
    assert seen["sglang::scheduler_TP1"] == {
        "NCCL_IB_TC": {"value": "1", "source": "sitecustomize", "proof": "witness"},
        "NCCL_MAX_NCHANNELS": {"value": "2", "source": "sitecustomize", "proof": "nccl log"},
    }
    assert proof.problems(asked, seen, 2) == []


def test_the_log_proves_a_rank_that_nothing_else_can():
    seen = heard({"NCCL_ALGO": "Ring", "NCCL_IB_TC": "1"}, {"NCCL_ALGO": "Ring", "NCCL_NTHREADS": "64"}, witnessed=False)
    assert seen["sglang::scheduler_TP0"]["NCCL_ALGO"] == {"value": "Ring", "source": "sitecustomize", "proof": "nccl log"}
    assert seen["sglang::scheduler_TP0"]["NCCL_NTHREADS"]["source"] == "unknown"
    assert proof.problems({"NCCL_ALGO": "Ring"}, seen, 2) == []
    assert len(proof.problems({"NCCL_ALGO": "Ring", "NCCL_IB_TC": "1"}, seen, 2)) == 2


def test_what_only_nccl_knows_comes_from_a_conf_file():
    seen = heard({}, {"NCCL_PROTO": "Simple"}, asked={})
    assert seen["sglang::scheduler_TP0"] == {"NCCL_PROTO": {"value": "Simple", "source": "conf file", "proof": "nccl log"}}
    assert proof.contradictions({"NCCL_PROTO": None}, seen)[0].endswith("NCCL_PROTO is 'Simple' (from conf file), asked for 'unset'")


@pytest.mark.parametrize(
    ("name", "has", "logged"),
    [
        ("NCCL_BUFFSIZE", "0x400000", "4194304"), ("NCCL_NTHREADS", "0100", "64"), ("NCCL_BUFFSIZE", "16M", "16"),
        ("NCCL_P2P_LEVEL", "5", "SYS"), ("NCCL_P2P_LEVEL", "1", "PIX"), ("NCCL_P2P_LEVEL", "SYS", "SYS"),
    ],
)  # fmt: skip
def test_nccl_logs_what_it_has_read(name, has, logged):
    seen = heard({name: has}, {name: logged})
    assert seen["sglang::scheduler_TP0"][name] == {"value": has, "source": "sitecustomize", "proof": "nccl log"}
    assert proof.problems({name: has}, seen, 2) == []


def test_nccls_word_wins_over_the_witness():
    seen = heard({"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": "Ring"})
    assert seen["sglang::scheduler_TP0"]["NCCL_ALGO"]["value"] == "Ring"
    assert "NCCL_ALGO is 'Ring'" in proof.problems({"NCCL_ALGO": "Tree"}, seen, 2)[0]
    assert "environment plugin" in proof.problems({"NCCL_ALGO": "Ring"}, seen, 2)[0]


@pytest.mark.parametrize(
    ("nccl", "more", "denied"),
    [
        ({"NCCL_NTHREADS": "64"}, {}, True),
        ({"NCCL_NTHREADS": "64"}, {"complete": False}, False),
        ({"NCCL_NTHREADS": "64"}, {"ranks": 1}, False),
        ({"NCCL_NTHREADS": ""}, {}, False),
        ({"NCCL_IB_TC": "1"}, {}, False),
        ({"NCCL_SHM_DISABLE": "1"}, {}, False),
        ({"NCCL_P2P_LEVEL": "SYS"}, {}, True),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, {}, False),
    ],
)
def test_nccl_never_read_it_is_said_only_of_what_it_always_logs(nccl, more, denied):
    seen = heard(nccl, {}, **more)
    assert any("never read it" in text for text in proof.problems(nccl, seen, 2)) == denied


def test_p2p_off_is_logged_by_older_ones_as_a_level():
    seen = heard({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"})
    assert set(seen["sglang::scheduler_TP0"]) == {"NCCL_P2P_DISABLE"}


def test_a_value_that_nccl_refused_is_not_in_force():
    line = "Invalid NCCL_NTHREADS 100 (must be a multiple of 32)"
    seen = heard({"NCCL_NTHREADS": "100"}, {"NCCL_NTHREADS": "100"}, invalid=[line])
    assert proof.problems({"NCCL_NTHREADS": "100"}, seen, 2)[0].endswith(line)


def test_felt_wants_all_to_be_idle_or_one_to_be_denied():
    ring = {"function": "AllReduce", "bytes": [8192, 8192], "algorithm": "Ring", "protocol": "LL", "channels": 2, "count": 9}
    captures = {
        10: capture(0, collectives=[ring], max_threads={}, p2p_chunk_bytes=16384),
        11: capture(1, max_threads={}, p2p_chunk_bytes=16384),
    }
    assert proof.felt({"NCCL_BUFFSIZE": "131072", "NCCL_ALGO": "Ring"}, captures) == []
    assert "no collective with Simple" in proof.felt({"NCCL_BUFFSIZE": "131072", "NCCL_DEBUG": "INFO", "NCCL_NTHREADS": None}, captures)[0]
    assert "AllReduce with Ring and LL, in spite of NCCL_ALGO=Tree" in proof.felt({"NCCL_ALGO": "Tree"}, captures)[0]
    assert proof.felt({}, captures) == proof.felt({"NCCL_ALGO": "Ring"}, {}) == proof.felt({"NCCL_ALGO": "Ring"}, None) == []
