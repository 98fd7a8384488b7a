# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a server whose processes are gone ended, going by what server_log found in its log."""

from __future__ import annotations

from .signatures import BY_ID, HOST_OUT_OF_MEMORY


def cause(reader, *, exit_code, killed_role=None, kernel_lines=()):
    """Why a server whose processes are gone ended: {signature, summary, advice, evidence [{rank, line}]}, or None for a normal stop.

    exit_code: of the process that went first (the launcher, or the one named by `killed_role`), None if unknown; negative or above 128
    for a signal. SGLang's launcher always ends by killing itself, so its -9 or 137 proves nothing. kernel_lines: lines of the kernel log
    or of memory.events by which the OOM killer chose a process of this server. `reader.facts["sglang"]` may be set by the caller.
    """
    reader.finish()
    if kernel_lines:
        return _tell(HOST_OUT_OF_MEMORY, {"groups": {}, "lines": [{"rank": None, "line": line} for line in kernel_lines]}, reader)
    if reader.facts["drained"] and killed_role is None:
        return None
    blocks = reader.evidence.blocks(killed=killed_role is not None and _signal(exit_code) not in (None, 6))  # who aborts says why
    name = min(blocks, key=lambda name: BY_ID[name][0], default=None)
    if killed_role and (name is None or BY_ID[name][1].consequence):
        return _killed(reader, killed_role, exit_code)
    if name:
        return _tell(BY_ID[name][1], blocks[name], reader)
    if _signal(exit_code) not in (None, 9):
        return _killed(reader, "launcher", exit_code)
    return _silent(reader, "", exit_code)


def _tell(signature, block, reader):
    groups, lines = block["groups"], block["lines"]
    version = reader.facts["sglang"]
    words = {"sglang": f"SGLang {version}" if version else "this SGLang", **_named(groups)}
    summary = signature.summary.format(**words)
    text = "\n".join(line["line"] for line in lines)
    for regex, template in signature.details:
        found = regex.search(text)
        if found:
            summary += template.format(**_named(found.groupdict()))
    advice = next((advice for phases, advice in signature.advice_in if block["phase"] in phases), signature.advice)
    evidence = [dict(line) for line in lines]
    if groups.get("rank") and evidence[0]["rank"] is None:
        evidence[0]["rank"] = f"rank {groups['rank']}"
    if signature.id.startswith("nccl_"):
        evidence += [line for line in reader.evidence.nccl_warnings if line not in evidence]
    return {"signature": signature.id, "summary": summary, "advice": advice.format(**words), "evidence": evidence}


def _named(groups):
    return {name.rstrip("0123456789"): value for name, value in groups.items() if value is not None}


def _signal(exit_code):
    if exit_code is None:
        return None
    return -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else None


def _killed(reader, role, exit_code):
    signal = _signal(exit_code)
    if signal is None:
        return _silent(reader, f"{role} ", exit_code)
    known = BY_ID["subprocess_killed" if signal == 9 else "subprocess_signal"][1]
    return _tell(known, {"groups": {"role": role, "signal": str(signal)}, "lines": reader.last_lines()}, reader)


def _silent(reader, who, exit_code):
    where = reader.phase
    if where == "ready_line":
        where = "serving"
    elif reader.total:
        where += f" {reader.done}/{reader.total}"
    code = "" if exit_code is None else f" (exit {exit_code})"
    if _signal(exit_code) == 9:
        code = f" (exit {exit_code} says nothing: the launcher ends by killing itself)"
    return {
        "signature": "silent",
        "summary": f"{who}ended without a message during {where}",
        "advice": f"look in the kernel log for a signal or the OOM killer{code}",
        "evidence": reader.last_lines(),
    }
