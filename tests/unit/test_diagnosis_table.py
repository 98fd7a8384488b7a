# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of diagnose.yml."""

from __future__ import annotations

import re

from ansible_collections.ringmaster.gpu.plugins.plugin_utils import diagnosis_table

AGAIN = "ansible-playbook ringmaster.gpu.diagnose"
GPU = {"index": 0, "problems": []}


def server(**special):
    plain = {
        "verdict": "serving", "state": "serving", "certainty": "proven", "why": "it answers", "managed_by": "unit",
        "unit": "sglang.service", "trial": None, "pid": 10, "pids": [10, 11], "kind": "server",
        "origin": {"user": "root", "container": None}, "port": 8000,
        "phase": "ready_line", "done": None, "total": None, "cause": None, "simulated": False, "next": "", "command_problem": None,
        "log": {"path": "/var/log/sglang.log", "kind": "file", "age_s": 3.2, "note": None}, "nccl": None,
    }  # fmt: skip
    return {**plain, **special}


def host(name, *servers, **special):
    found = {"servers": list(servers), "gpus": [GPU], "gpu_problem": None, "gpu_memory": [], "ringmaster": {}, "notes": []}
    return {"host": name, "found": {**found, **special}, "nccl": None, "problem": None}


def value(value, source="sitecustomize", certainty="proven", proof="environ"):
    return {"value": value, "source": source, "certainty": certainty, "proof": proof}


HUNG = server(
    verdict="hung", state="hung", certainty="inferred", why="phase weights 3/12, its port is closed; no sign of life for 400 s",
    phase="weights", done=3, total=12, next="py-spy dump --pid 11 shows where it waits; systemctl restart sglang.service ends it",
)  # fmt: skip
ADA = {"user": "ada", "container": "ct-101"}
MINE = server(verdict="unmanaged", managed_by=None, unit=None, pid=77, pids=[77], next="kill 77 ends it", origin=ADA)


def report(*hosts, **asked):
    return diagnosis_table.report(list(hosts), again=AGAIN, encoding="utf-8", **asked)


def test_a_host_that_serves_is_one_line():
    memory = [{"server": 10, "memory_mib": 90000.0, "index": 0, "pid": 11, "name": "p"}]
    lines = report(host("gpu1", server(), gpu_memory=memory)).splitlines()
    assert lines[-3].split() == ["gpu1", "serving", "sglang", "8000", "-", "90000"]
    assert lines[-2:] == ["", f"next: {AGAIN}"]


def test_what_does_not_serve_has_a_block():
    text = report(host("gpu1", HUNG, MINE), host("gpu2", server()))
    assert "gpu1: sglang: hung (inferred)" in text
    assert "why: phase weights 3/12" in " ".join(text.split())
    assert re.search(r"^  log: +/var/log/sglang.log  ?\(last line 3 s ago\)$", text, re.M)
    assert "gpu1: pid 77 of ada in ct-101: unmanaged, serving" in text
    assert "gpu2:" not in text
    assert text.endswith("next: on gpu1: py-spy dump --pid 11 shows where it waits; systemctl restart sglang.service ends it\n")


def test_nothing_but_paths_commands_and_quotes_exceeds_the_width():
    cause = {"summary": "flag --x " * 20, "advice": "do " * 50, "evidence": [{"rank": None, "line": "y" * 100}]}
    crashed = server(verdict="crashed", state="crashed", why="it " * 60, cause=cause, next="less /var/log/sglang.log")
    long_name = {"host": "a-host-with-a-long-name.example.net", "found": None, "nccl": None, "problem": "no route " * 20}
    text = report(host("gpu1", HUNG, MINE, crashed, gpu_problem="nvidia-smi " * 20), long_name, details=True)
    for line in text.splitlines():
        assert len(line) <= 80 or line.startswith(("    |", "  next:", "  log:", "next:")), line


def test_ranks_that_are_alike_are_told_once():
    ranks = {
        "sglang::scheduler_TP0": {"NCCL_PROTO": value("LL")},
        "sglang::scheduler_TP1": {"NCCL_PROTO": value("LL")},
    }
    nccl = {
        "site": {"path": "/s/sitecustomize.py", "ours": True, "values": {"NCCL_PROTO": "LL"}, "changed": True, "problem": None},
        "conf": [{"path": "/etc/nccl.conf", "values": {"NCCL_ALGO": "Ring"}, "problem": None}],
        "effective": ranks,
    }
    text = " ".join(report(host("gpu1", server(nccl=nccl)), details=True).split())
    assert "/s/sitecustomize.py (Ringmaster's) sets NCCL_PROTO=LL; it was changed after the server had started" in text
    assert "conf: /etc/nccl.conf: NCCL_ALGO=Ring" in text
    assert "ranks: all 2: NCCL_PROTO=LL (sitecustomize, proven by environ)" in text
    ranks["sglang::scheduler_TP1"] = {"*": value(None, "unknown", "unknown", None)}
    text = " ".join(report(host("gpu1", server(nccl=nccl)), details=True).split())
    assert "ranks: TP0: NCCL_PROTO=LL" in text
    assert "ranks: TP1: what else is set is unknown" in text


def test_a_variable_that_nccl_does_not_read_is_told_of_a_serving_host_too():
    site = {"path": None, "ours": False, "values": {"NCCL_PROTO": "LL"}, "changed": False, "problem": None}
    rank = {"NCCL_BUFSIZE": value("8388608", "environment"), "NCCL_NVLS_ENABLE": value("0"), "NCCL_VERSION": value("2.28.3-1")}
    nccl = {"site": site, "conf": [], "effective": {"sglang::scheduler_TP0": rank}}
    words = "ignored: {}NCCL has no NCCL_BUFSIZE, and reports no unknown name; did you mean NCCL_BUFFSIZE?"
    for details, whose in ((False, "sglang: "), (True, "")):
        text = " ".join(report(host("gpu1", server(nccl=nccl)), details=details).split())
        assert words.format(whose) in text
        assert text.count("ignored:") == 1
    del rank["NCCL_BUFSIZE"]
    assert "ignored" not in report(host("gpu1", server(nccl=nccl)), details=True)


def test_trouble_with_a_gpu_is_shown_of_a_serving_host_too():
    text = report(host("gpu1", server(), gpus=[{"index": 3, "problems": ["PCIe runs 8 of 16 lanes: check seat"]}]))
    assert "gpu 3: PCIe runs 8 of 16 lanes: check seat" in " ".join(text.split())


def test_the_worst_says_the_next_command():
    steps = [
        (host("a", server(verdict="loading", state="loading", next="tail -f /log")), "on a: tail -f /log"),
        (host("b", HUNG), "on b: py-spy dump"),
        (host("c", server(verdict="crashed", state="crashed", next="systemctl restart sglang.service")), "on c: systemctl restart"),
    ]
    hosts = []
    for one, expected in steps:
        hosts.append(one)
        assert diagnosis_table.next_step(hosts, AGAIN).startswith(expected)
    abort = server(verdict="hung", state="hung", next="ansible-playbook ringmaster.gpu.abort")
    assert diagnosis_table.next_step([host("d", abort)], AGAIN) == "ansible-playbook ringmaster.gpu.abort"


def test_a_stand_in_says_so():
    text = report(host("lab", server(simulated=True)))
    assert "serving SIMULATED" in text
    assert "SIMULATED: lab runs a stand-in engine." in text


def test_a_host_that_could_not_be_looked_at():
    text = report({"host": "gone", "found": None, "nccl": None, "problem": "ssh: connect to host gone port 22"})
    assert "gone not looked at" in text
    assert "why: ssh: connect to host gone port 22" in " ".join(text.split())
