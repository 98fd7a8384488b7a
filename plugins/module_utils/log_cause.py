# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a server whose processes are gone ended, going by what server_log found in its log."""

from __future__ import annotations

from .signatures import BY_ID, HOST_OUT_OF_MEMORY, SIGNATURES


def cause(reader, *, exit_code, killed_role=None, kernel_lines=()):
    """Why a server whose processes are gone ended: {signature, summary, advice, evidence [{rank, line}]}, or None for a normal stop.

    exit_code: of the process that went first (the launcher, or the one named by `killed_role`), None if unknown; negative or above 128
    for a signal. SGLang's launcher always ends by killing itself, so its -9 or 137 proves nothing. kernel_lines: lines of the kernel log
    or of memory.events by which the OOM killer chose a process of this server. `reader.facts["sglang"]` may be set by the caller.
    """
    reader.finish()
    if kernel_lines:
        return _tell(HOST_OUT_OF_MEMORY, {}, [{"rank": None, "line": line} for line in kernel_lines], reader)
    if reader.facts["drained"] and killed_role is None:
        return None
    blocks = dict(reader.blocks)
    if "exception" in blocks and blocks["exception"]["lines"][0] not in reader.last_lines():
        del blocks["exception"]  # logged and survived
    ended_by = blocks.get("scheduler_exception") or blocks.get("exception")
    if ended_by:
        for signature in SIGNATURES:
            found = signature.uncaught and signature.regex.search(ended_by["groups"]["error"])
            if found:
                blocks[signature.id] = {"groups": found.groupdict(), "lines": ended_by["lines"]}
    name = min(blocks, key=lambda name: BY_ID[name][0], default=None)
    signature = BY_ID[name][1] if name else None
    if killed_role and (signature is None or signature.consequence):
        return _killed(reader, killed_role, exit_code)
    if signature:
        return _tell(signature, blocks[name]["groups"], blocks[name]["lines"], reader)
    return _silent(reader, "", exit_code)


def _tell(signature, groups, lines, reader):
    version = reader.facts["sglang"]
    words = {"sglang": f"SGLang {version}" if version else "this SGLang", **_named(groups)}
    summary = signature.summary.format(**words)
    text = "\n".join(line["line"] for line in lines)
    for regex, template in signature.details:
        found = regex.search(text)
        if found:
            summary += template.format(**_named(found.groupdict()))
    evidence = [dict(line) for line in lines]
    if groups.get("rank") and evidence[0]["rank"] is None:
        evidence[0]["rank"] = f"rank {groups['rank']}"
    return {"signature": signature.id, "summary": summary, "advice": signature.advice.format(**words), "evidence": evidence}


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
    return _tell(known, {"role": role, "signal": str(signal)}, reader.last_lines(), reader)


def _silent(reader, who, exit_code):
    where = reader.phase
    if where == "ready_line":
        where = "serving"
    elif reader.total:
        where += f" {reader.done}/{reader.total}"
    code = "" if exit_code is None else f" (exit {exit_code})"
    if _signal(exit_code) == 9 and not who:
        code = f" (exit {exit_code} says nothing: the launcher ends by killing itself)"
    return {
        "signature": "silent",
        "summary": f"{who}ended without a message during {where}",
        "advice": f"look in the kernel log for a signal or the OOM killer{code}",
        "evidence": reader.last_lines(),
    }
