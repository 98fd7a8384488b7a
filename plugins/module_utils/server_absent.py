# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What there is to say where no SGLang process runs: the unit that is down, the last trial, or nothing."""

from __future__ import annotations

import contextlib
import os

from . import diagnosis, files, log_cause, redaction, server_command, server_output, server_result, units
from .errors import RingmasterError


def unit(name):
    """(its properties or None, the text of its files)."""
    properties = units.show(name)
    return properties, units.systemctl("cat", units.unit_name(name), check=False) if properties else ""


def of_unit(name, properties, text, context):
    """The server of a result for unit NAME of which no process runs. CONTEXT may have `must_run`: then a clean end has a cause, too."""
    output = server_output.of_unit(properties, text)
    log = server_output.read(output, timeout_s=context["timeout_s"])
    shown = {name: properties.get(name, "") for name in ("ActiveState", "SubState", "Result", "NRestarts")}
    context["unit"].update(shown, held=units.is_held(name))
    evidence = server_result.evidence(
        context, kind="none", managed_by="unit", log_age_s=log.age_s, log_note=log.output.note, **server_result.of_log(log.reader)
    )
    judged = diagnosis.judge(evidence)
    if (judged["state"] == "crashed" or context.get("must_run")) and log.reader:
        evidence["cause"] = log_cause.cause(log.reader, exit_code=None)
    flags = {}
    with contextlib.suppress(RingmasterError, ValueError):  # a command of another kind
        server = server_command.parse(units.command(name, properties, must_be_whole=False))
        flags, evidence["port"] = server["flags"], server["listen"]["port"]
    more = {"log": server_result.shown_log(log), "flags": redaction.redact(flags), "model": flags.get("model-path")}
    return server_result.without(server_result.told(evidence, judged, more), server_result.secrets(flags))


def of_host(context):
    """The server of a result for a host where none runs."""
    trial = last_trial(context["state"])
    owner = "ringmaster" if trial else None
    evidence = server_result.evidence(context, kind="none", managed_by=owner, trial=trial, run=running(context["state"]))
    evidence["cause"] = trial["cause"] if trial else None
    log = {"path": trial["log"], "kind": "file", "age_s": None, "note": None} if trial else None
    told = server_result.told(evidence, diagnosis.judge(evidence), {"log": log, "trial": trial and trial["id"]})
    return server_result.without(told, [])


def last_trial(state):
    """{id, outcome, cause, finished, log} of the newest trial in STATE, None without one or where it may not be read."""
    try:
        newest = max(os.scandir(state.path("trials")), key=lambda entry: entry.stat().st_mtime, default=None)
    except OSError:
        return None
    if newest is None:
        return None
    result = {}
    with contextlib.suppress(RingmasterError):
        result = files.read_json(os.path.join(newest.path, "trial.json"), {})
    log = os.path.join(newest.path, "server.log")
    found = {"id": newest.name, "log": log, **{name: result.get(name) for name in ("outcome", "cause", "finished")}}
    if not result and os.path.exists(log):
        found["cause"] = log_cause.cause(server_output.read(server_output.Output("file", log, log), timeout_s=1.0).reader, exit_code=None)
    return server_result.without(found, [])


def running(state):
    """{holder (who runs a plan here, or None), unfinished (a plan was cut off), known_good {version, created, by, label} or None} of
    STATE, and why that could not be read as `problem`."""
    found = {"holder": None, "unfinished": None, "known_good": None, "problem": None}
    try:
        found["holder"] = state.lock_holder()
        found["unfinished"] = found["holder"] is None and state.journal() is not None
        record = state.known_good()
        found["known_good"] = record and {name: record[name] for name in ("version", "created", "by", "label")}
    except (RingmasterError, OSError) as error:
        found["problem"] = str(error)
    return found
