# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cause that the last lines of a dead server's log give, kind by kind; whole logs cut at any line; the catalogue itself."""

from __future__ import annotations

import random
import re
import string
from pathlib import Path

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import log_marks, signatures
from ansible_collections.ringmaster.gpu.plugins.module_utils.log_cause import cause
from ansible_collections.ringmaster.gpu.plugins.module_utils.server_log import LogReader, whole

DATA = Path(__file__).parent / "data"
CASES = yaml.safe_load((DATA / "causes.yml").read_text())
LOGS = sorted((DATA / "server_logs").glob("*.log"))
ROLES = Path(__file__).resolve().parents[2] / "roles"
# What a log may give as the cause wherever it is cut off; all else would be wrong.
CAUSES_OF_CUTS = {
    "cpu-bad_flag": {"silent", "flag_unknown"},
    "cpu-missing_model": {"silent", "model_path"},
    "cpu-no_weights": {"silent", "process_exception", "no_weights"},
    "cpu-port_in_use": {"silent", "port_in_use"},
    "cpu-sigkill_scheduler": {"silent", "subprocess_killed"},
    "crash-jit-build-2xH200-tp2": {"silent", "jit_build"},
    "crash-missing-module-cpu": {"silent", "process_exception", "missing_module"},
}


def lines_of(case):
    """The log of a case; `error` is what ends a scheduler, as SGLang writes it."""
    found = list(case.get("before", []))
    if "error" in case:
        found.append(f"[2026-11-01 10:00:05 {case.get('rank', 'TP1')}] Scheduler hit an exception: Traceback (most recent call last):")
        found += ['  File "scheduler.py", line 4623, in run_scheduler_process', "    scheduler = Scheduler(", "                ^^^^^^^^^^"]
        found.append(case.get("frame", '  File "y.py", line 2, in g'))
        found += [f"    {case.get('source', 'f(x)')}", "    ~~^^^", *case["error"].splitlines(), ""]
        found.append("[2026-11-01 10:00:05] Received sigquit from a child process. It usually means the child failed.")
    return [*found, *case.get("lines", []), *case.get("after", [])]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines_of(case)) + "\n")
    exit_code = case.get("exit", -9 if "error" in case else None)
    found = cause(whole(log), exit_code=exit_code, killed_role=case.get("killed_role"), kernel_lines=case.get("kernel", ()))
    assert found["signature"] == case["signature"], found
    assert case.get("summary", "") in found["summary"]
    assert case.get("advice", "") in found["advice"]
    evidence = "\n".join(line["line"] for line in found["evidence"])
    assert case.get("evidence", "") in evidence
    assert evidence
    if "rank" in case:
        assert found["evidence"][0]["rank"] == case["rank"]
    elif "error" in case and case["signature"] != "host_out_of_memory" and "before" not in case:
        assert found["evidence"][0]["rank"] == "TP1"


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_growing_log_gives_the_same_cause(case, tmp_path):
    data, log = ("\n".join(lines_of(case)) + "\n").encode(), tmp_path / "server.log"
    log.write_bytes(data)
    known = {"exit_code": case.get("exit"), "killed_role": case.get("killed_role"), "kernel_lines": case.get("kernel", ())}
    expected = cause(whole(log), **known)
    dice = random.Random(case["name"])
    log.write_bytes(b"")
    reader, at = LogReader(log), 0
    with open(log, "ab", buffering=0) as file:
        while at < len(data):
            step = dice.choice((1, 3, 20, 300))
            file.write(data[at : at + step])
            at += step
            reader.poll()
    assert cause(reader, **known) == expected


def test_every_signature_has_a_case():
    cases = yaml.safe_load((DATA / "server_logs.yml").read_text())
    whole_logs = set().union(*CAUSES_OF_CUTS.values())
    tried = {case["signature"] for case in CASES} | whole_logs
    by_words = {
        "flag_renamed", "rank_signal", "child_failed",  # in server_logs.yml, by their summaries
    }  # fmt: skip
    summaries = " ".join(str(case.get("cause", "")) for case in cases)
    for words in ("was renamed", "killed by signal 6", "failed without saying why"):
        assert words in summaries
    rare = {
        "aborted", "package_version", "permission", "symmetric_memory_allocation", "warm_up_failed", "rank_exit",
        "subprocess_exit", "peer_lost",
    }  # fmt: skip
    assert set(signatures.BY_ID) - tried - by_words == rare


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        ("Exception: flashinfer_python is installed with version 0.5.0, which is less than the minimum 0.6.1", "package_version"),
        ("PermissionError: [Errno 13] Permission denied: '/models/m/config.json'", "permission"),
        ("OSError: [Errno 24] Too many open files", "too_many_files"),
        ("RuntimeError: can't start new thread", "too_many_files"),
        (
            "ERROR: NCCL symmetric memory allocation failed. Most likely out of device memory.",
            "symmetric_memory_allocation",
        ),
        ("[2026-11-01 10:00:00] Initialization failed. warmup error: Traceback (most recent call last):", "warm_up_failed"),
        ("[2026-11-01 10:00:00] Rank 0 scheduler died during initialization (exit code: 1).", "rank_exit"),
        ("[2026-11-01 10:00:00] Subprocess detokenizer (pid=77) crashed with exit code 3. Triggering SIGQUIT", "subprocess_exit"),
        ("Fatal Python error: Aborted", "aborted"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:34567", "peer_lost"),
    ],
)
def test_rare_ones(line, signature, tmp_path):
    log = tmp_path / "server.log"
    log.write_text(line + "\n")
    assert cause(whole(log), exit_code=1)["signature"] == signature


@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
def test_cut_off_at_any_line(log, tmp_path):
    """Phases never go back, progress is within its bar, and with the processes gone a cause is given, and never a wrong one."""
    data = log.read_bytes()
    allowed = CAUSES_OF_CUTS.get(log.stem, {"silent"})
    drained_at = data.find(b"Remaining number of requests 0.")
    growing = tmp_path / "server.log"
    growing.write_bytes(b"")
    reader, names = LogReader(growing), ["spawn"]
    for end in _ends(data):
        with open(growing, "ab") as file:
            file.write(data[reader.size : end])
        reader.poll()
        before, names = names, [phase["name"] for phase in reader.phases]
        assert names[: len(before)] == before
        assert reader.total is None or 0 <= reader.done <= reader.total
        found = cause(reader, exit_code=-9)
        if found is None:
            assert 0 <= drained_at < end
            continue
        assert found["signature"] in allowed
        if found["signature"] == "silent":
            assert found["summary"].startswith("ended without a message during ")
        assert found["evidence"]


def _ends(data):
    """Ends of lines; of a help text or NCCL's trace only some, for it is long and says the same."""
    ends = [found.end() for found in re.finditer(rb"[\r\n]", data)]
    return ends if len(ends) < 400 else sorted({*ends[::7], *ends[-40:]})


@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
def test_cut_off_within_lines(log, tmp_path):
    data, cut = log.read_bytes(), tmp_path / "cut.log"
    for end in range(1, len(data), max(1, len(data) // 37)):
        cut.write_bytes(data[:end])
        found = cause(whole(cut), exit_code=-9)
        allowed = CAUSES_OF_CUTS.get(log.stem, {"silent"})
        half_a_text = {"exception", "command_line"} if len(allowed) > 1 else set()
        assert found is None or found["signature"] in allowed | half_a_text


def test_tables_are_sound():
    ids = [entry.id for entry in signatures.SIGNATURES]
    assert len(ids) == len(set(ids))
    for entry in (*signatures.SIGNATURES, signatures.HOST_OUT_OF_MEMORY):
        groups = {name.rstrip("0123456789") for name in entry.regex.groupindex} | {"sglang"}
        if entry.regex.pattern == "(?!)":
            groups.add("error")
        advices = [entry.advice, *(text for _phases, text in entry.advice_in)]
        for template in (entry.summary, *advices):
            assert fields(template) <= groups, entry.id
        for regex, template in entry.details:
            assert fields(template) <= {name.rstrip("0123456789") for name in regex.groupindex}, entry.id
        assert entry.scope in {"ended", "error", "nccl", "line"}
        assert {phase for phases, _text in entry.advice_in for phase in phases} <= set(log_marks.PHASES)
    assert {phase for phase, _regex in (*log_marks.PHASE_ENDS, *log_marks.BARS)} <= set(log_marks.PHASES)
    consequences = [entry.consequence for entry in signatures.SIGNATURES]
    assert consequences == sorted(consequences)  # root causes first


def fields(template):
    return {field for _text, field, _spec, _conversion in string.Formatter().parse(template) if field}


def test_advice_names_variables_that_exist():
    known = set()
    for specs in ROLES.glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(specs.read_text())["argument_specs"].values():
            known |= set(entry.get("options", {}))
    texts = " ".join(f"{entry.advice} {entry.advice_in}" for entry in signatures.SIGNATURES)
    named = set(re.findall(r"\b(?:sglang|tune|nccl|ringmaster)_\w+", texts))
    assert {"sglang_flags", "tune_flags", "nccl_algo", "sglang_model_path", "tune_port"} <= named
    assert named <= known
