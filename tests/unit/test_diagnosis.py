# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts from evidence, as a table of cases."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import diagnosis

STALL_S = 300.0
NOTHING = {
    "kind": "server", "managed_by": "unit", "unit": {"name": "sglang.service", "held": False}, "pids": [10, 11], "worker": 11, "dead": [],
    "missing": [], "frozen": [], "age_s": 40.0, "port": 30000, "listening": False, "holder": None, "http": None, "http_note": None,
    "progress": [], "phase": "weights", "done": 3, "total": 12, "log_age_s": 5.0, "log_note": None, "log_port_taken": False, "cause": None,
    "drained": False, "ended": False, "hidden": False, "trial": None, "run": None, "stall_timeout_s": STALL_S,
}  # fmt: skip
ANSWERS = {"model_info": 200, "server_info": 200, "ready": 404}
HOLDER = {"pid": 99, "command": "nc -l"}


def unit(active, sub="dead", result="success", **more):
    return {"name": "sglang.service", "ActiveState": active, "SubState": sub, "Result": result, "NRestarts": "3", "held": False, **more}


def trial(outcome):
    return {"id": "t-01", "outcome": outcome, "cause": None, "finished": None}


CASES = [
    # what is special, verdict, certainty
    ({"listening": True, "http": ANSWERS}, "serving", "proven"),
    ({"listening": True, "http": {**ANSWERS, "ready": 200}}, "serving", "proven"),
    ({"listening": True, "http": dict.fromkeys(ANSWERS, 401)}, "serving", "proven"),
    ({"listening": True, "http": {**ANSWERS, "ready": "timed out"}}, "serving", "proven"),
    ({"listening": True, "http": ANSWERS, "hidden": True}, "serving", "inferred"),
    # /ready says no: before the ready line it warms up, after it it drains
    ({"listening": True, "http": {**ANSWERS, "ready": 503}}, "loading", "inferred"),
    ({"listening": True, "http": {**ANSWERS, "ready": 503}, "phase": "ready_line"}, "serving", "inferred"),
    ({"listening": True, "http": {**ANSWERS, "ready": 503}, "log_age_s": 400.0, "age_s": 900.0}, "hung", "inferred"),
    # its scheduler is mute: busy, unless nothing has happened for long
    ({"listening": True, "http": {**ANSWERS, "server_info": "timed out"}}, "serving", "inferred"),
    ({"listening": True, "http": {**ANSWERS, "server_info": "timed out"}, "log_age_s": 400.0}, "hung", "inferred"),
    ({"listening": True, "http": {**ANSWERS, "server_info": "timed out"}, "log_age_s": None}, "serving", "inferred"),
    ({"listening": True, "http": dict.fromkeys(ANSWERS, "timed out")}, "hung", "inferred"),
    ({"listening": True, "http": dict.fromkeys(ANSWERS, "refused")}, "loading", "inferred"),
    # a real completion has the last word
    ({"listening": True, "http": {**ANSWERS, "completion": 200}}, "serving", "proven"),
    ({"listening": True, "http": {**ANSWERS, "completion": "timed out"}}, "hung", "inferred"),
    ({"listening": True, "http": {**ANSWERS, "completion": "HTTP 400"}}, "serving", "inferred"),
    ({"listening": True, "http": None, "http_note": "another network"}, "serving", "inferred"),
    # not answering yet
    ({"progress": ["read_bytes"], "log_age_s": 4000.0, "age_s": 4000.0}, "loading", "proven"),
    ({}, "loading", "inferred"),
    ({"log_age_s": 400.0, "age_s": 500.0}, "hung", "inferred"),
    ({"log_age_s": 400.0, "age_s": 20.0}, "loading", "inferred"),  # a process was born since
    ({"log_age_s": None, "age_s": 20.0, "log_note": "a terminal"}, "loading", "inferred"),
    ({"log_age_s": None, "age_s": 500.0, "log_note": "a terminal"}, "loading", "unknown"),
    ({"holder": HOLDER, "log_port_taken": True}, "hung", "inferred"),
    ({"holder": HOLDER}, "loading", "inferred"),  # it will fail, but does not know it yet
    ({"log_port_taken": True}, "loading", "inferred"),  # words in a log alone decide nothing
    # members
    ({"dead": ["scheduler"], "listening": True, "http": ANSWERS}, "crashed", "proven"),
    ({"missing": ["1 of 2 schedulers"], "listening": True, "http": ANSWERS}, "crashed", "proven"),
    ({"frozen": ["pid 10"], "listening": True, "http": dict.fromkeys(ANSWERS, "timed out")}, "hung", "proven"),
    ({"ended": True}, "stopped", "inferred"),
    ({"kind": "orphans", "managed_by": None}, "crashed", "proven"),
    # no processes
    ({"kind": "none", "unit": unit("failed", "failed", "exit-code")}, "crashed", "proven"),
    ({"kind": "none", "unit": unit("activating", "auto-restart", "signal")}, "crashed", "proven"),
    ({"kind": "none", "unit": unit("failed", "failed", "signal"), "drained": True}, "stopped", "inferred"),
    ({"kind": "none", "unit": unit("failed", "failed", "signal")}, "crashed", "proven"),
    ({"kind": "none", "unit": unit("inactive")}, "stopped", "proven"),
    ({"kind": "none", "unit": unit("inactive", held=True)}, "stopped", "proven"),
    ({"kind": "none", "unit": unit("active", "running")}, "loading", "unknown"),
    ({"kind": "none", "managed_by": None}, "stopped", "proven"),
    ({"kind": "none", "managed_by": "ringmaster", "trial": trial("ready")}, "stopped", "proven"),
    ({"kind": "none", "managed_by": "ringmaster", "trial": trial("crashed")}, "crashed", "proven"),
    ({"kind": "none", "managed_by": "ringmaster", "trial": trial(None)}, "crashed", "inferred"),
    (
        {"kind": "none", "managed_by": "ringmaster", "trial": trial("crashed"), "run": {"holder": {"who": "a", "plan": "p", "since": "t"}}},
        "stopped",
        "proven",
    ),
]


@pytest.mark.parametrize(("special", "verdict", "certainty"), CASES)
def test_verdict(special, verdict, certainty):
    judged = diagnosis.judge({**NOTHING, **special})
    assert (judged["verdict"], judged["state"], judged["certainty"]) == (verdict, verdict, certainty)
    assert judged["why"]


@pytest.mark.parametrize(
    ("special", "state"),
    [({"listening": True, "http": ANSWERS}, "serving"), ({}, "loading"), ({"log_age_s": 400.0, "age_s": 500.0}, "hung")],
)
def test_an_unmanaged_server_keeps_its_state(special, state):
    judged = diagnosis.judge({**NOTHING, "managed_by": None, **special})
    assert (judged["verdict"], judged["state"]) == ("unmanaged", state)


def test_every_verdict_but_a_served_one_has_a_next_step():
    for special, verdict, _certainty in CASES:
        evidence = {**NOTHING, **special}
        step = diagnosis.next_step(diagnosis.judge(evidence), evidence, command="again", log="/log")
        assert bool(step) == (verdict != "serving" and not (verdict == "stopped" and evidence["managed_by"] != "unit")), special


def test_next_steps_name_the_owner():
    def step(**special):
        evidence = {**NOTHING, "log_age_s": 400.0, "age_s": 500.0, **special}
        return diagnosis.next_step(diagnosis.judge(evidence), evidence)

    assert step() == "py-spy dump --pid 11 shows where it waits; systemctl restart sglang.service ends it"
    assert step(managed_by="ringmaster").endswith("ansible-playbook ringmaster.gpu.abort ends it")
    assert step(managed_by=None).endswith("kill 10 ends it")
    assert step(frozen=["sglang::scheduler_TP0"]) == "kill -CONT 10 11"
    assert step(holder=HOLDER).startswith("ps -o user,lstart,args -p 99 ")
    assert step(kind="orphans", managed_by=None) == "kill -KILL 10 11"


def server(managed_by, state, kind="server"):
    return {"managed_by": managed_by, "state": state, "kind": kind}


@pytest.mark.parametrize(
    ("servers", "speaks"),
    [
        ([server(None, "serving"), server("unit", "hung")], 1),  # what is meant to serve
        ([server("unit", "stopped", "none"), server("ringmaster", "loading")], 1),  # a run holds the unit
        ([server(None, "serving"), server("unit", "crashed", "none")], 1),
        ([server(None, "serving"), server("unit", "stopped", "none")], 0),
        ([server("unit", "stopped", "none"), server(None, "crashed", "orphans")], 1),
        ([server("unit", "stopped", "none")], 0),
    ],
)
def test_one_server_speaks_for_the_host(servers, speaks):
    assert diagnosis.host_verdict(servers) == speaks
