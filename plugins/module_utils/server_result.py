# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The evidence that `diagnosis` wants of a server, and what a result says of it: shapes only, no look at anything."""

from __future__ import annotations

import re

from . import diagnosis, log_cause, redaction

_API_KEY = re.compile(r"""(\b(?:admin_)?api[-_]key(?:=|\s+|': )["']?)[^"'\s,)]+""")

_NO_LOG = {"phase": None, "done": None, "total": None, "cause": None, "drained": False, "log_port_taken": False}


def of_log(reader):
    """The part of the evidence that a LogReader, or None, gives."""
    if reader is None:
        return dict(_NO_LOG)
    looks_like = log_cause.cause(reader, exit_code=None) or {}
    return {
        "phase": reader.phase, "done": reader.done, "total": reader.total, "cause": None, "drained": bool(reader.facts["drained"]),
        "log_port_taken": looks_like.get("signature") in ("port_in_use", "address_in_use"),
    }  # fmt: skip


def evidence(context, **found):
    """All of the evidence, what was not FOUND as None or empty. CONTEXT: {unit, stall_timeout_s}."""
    empty = {
        "kind": "none", "managed_by": None, "unit": context["unit"], "pids": [], "worker": None, "dead": [], "missing": [], "frozen": [],
        "age_s": None, "port": None, "listening": None, "holder": None, "http": None, "http_note": None, "progress": None,
        "log_age_s": None, "log_note": None, "trial": None, "run": None, "ended": False, "hidden": False,
        "stall_timeout_s": context["stall_timeout_s"],
        **_NO_LOG,
    }  # fmt: skip
    return {**empty, **found}


def told(evidence, judged, more):
    """One server of a result: what was JUDGED from EVIDENCE, and MORE."""
    log = (more.get("log") or {}).get("path")
    empty = dict.fromkeys(("trial", "pid", "origin", "url", "model", "version", "command_problem", "python", "log", "nccl"))
    return {
        **empty, "simulated": False, "flags": {}, "ranks": {}, **judged,
        **{name: evidence[name] for name in ("kind", "managed_by", "pids", "port", "phase", "done", "total", "cause", "http", "age_s")},
        "unit": evidence["unit"]["name"] if evidence["managed_by"] == "unit" else None,
        "next": diagnosis.next_step(judged, evidence, log=log),
        **more,
    }  # fmt: skip


def secrets(flags):
    """The values of FLAGS that nobody may see."""
    return [value for name, value in flags.items() if redaction.redact({name: value})[name] == "***"]


def without(value, secrets):
    """A copy of VALUE whose texts do not have SECRETS in them, nor an API key where one is named: a log may quote the command line."""
    if isinstance(value, dict):
        return {name: without(item, secrets) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without(item, secrets) for item in value]
    if isinstance(value, str):
        for secret in secrets:
            if isinstance(secret, str) and len(secret) > 3:
                value = value.replace(secret, "***")
        value = _API_KEY.sub(r"\1***", value)
    return value


def shown_log(log):
    """What a result says of a server_output.Log."""
    age_s = None if log.age_s is None else round(log.age_s, 1)
    return {"path": log.output.path, "kind": log.output.kind, "age_s": age_s, "note": log.output.note}
