# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server is, judged from evidence alone. Pure: it looks at nothing but its arguments.

Processes, answers and progress decide; what a log says only explains. Each finding is *proven* (seen), *inferred* (follows from what
was seen, unless something unusual is the case) or *unknown*.

Evidence of one server, {name: value}; None where a thing could not be seen:

kind            server | embedded | orphans | none (a unit, a trial or a host without processes)
managed_by      unit | ringmaster | None for somebody else
unit            {name, ActiveState, SubState, Result, NRestarts, held (bool)} of the production unit, for managed_by unit
pids            of its live processes
dead            roles of workers that have ended; missing: how many schedulers or "detokenizer" an open port says there must be
frozen          titles of processes that a signal has stopped (state T)
age_s           of its youngest process
port, listening whether a process of this server listens on it (any process, where its sockets are `hidden` from us)
holder          {pid, command} of another process that listens there
http            {path: status (int) or what went wrong (str)} of model_info, server_info, ready, completion; None: it was not asked, for
                the reason http_note
progress        names of what grew within a second ([]: nothing), None when not sampled
phase, done, total, log_age_s, log_note, log_port_taken, cause    of the log; all None where it is not known
ended           the launcher was there at the first look and not at the second
trial           the last trial's {id, outcome, cause, finished}, for kind none
run             {holder {who, plan, since} or None} of Ringmaster's state directory, for kind none
drained         whether the log says that the last request was finished before it ended
stall_timeout_s
"""

from __future__ import annotations

VERDICTS = ("serving", "loading", "hung", "crashed", "unmanaged", "stopped")
TIMED_OUT = "timed out"


def judge(evidence):
    """{state, certainty, why, verdict} of one server. `state` is one of VERDICTS but unmanaged; `verdict` says that for a live server
    which neither the unit nor Ringmaster started."""
    if evidence["kind"] == "none":
        state, certainty, why = _without_processes(evidence)
    elif evidence["kind"] == "orphans":
        count = len(evidence["pids"])
        why = f"{count} worker process{'es' if count > 1 else ''} left without a launcher; GPU memory stays taken until they end"
        state, certainty = "crashed", "proven"
    elif evidence["kind"] == "embedded":
        state, certainty, why = "serving", "unknown", "workers of a Python program that embeds SGLang: it has no port that could be asked"
    else:
        state, certainty, why = _alive(evidence)
        if evidence["hidden"] and evidence["listening"] and certainty == "proven" and state == "serving":
            certainty, why = "inferred", f"{why}, if port {evidence['port']} is its own: its sockets cannot be seen without root"
    foreign = evidence["managed_by"] is None and evidence["kind"] in ("server", "embedded")
    return {"state": state, "certainty": certainty, "why": why, "verdict": "unmanaged" if foreign else state}


def _alive(evidence):
    if evidence["ended"]:
        return "stopped", "inferred", "it ended while it was looked at"
    gone = evidence["dead"] or evidence["missing"]
    if gone:
        return "crashed", "proven", f"{' and '.join(gone)} ended, though the launcher still runs"
    if evidence["frozen"]:
        return "hung", "proven", f"stopped by a signal (state T): {', '.join(evidence['frozen'])}"
    if not evidence["listening"]:
        return _not_listening(evidence)
    if evidence["http"] is None:
        return "serving", "inferred", f"it listens on port {evidence['port']}, but could not be asked: {evidence['http_note']}"
    return _answers(evidence)


def _not_listening(evidence):
    holder = evidence["holder"]
    conflict = f"; port {evidence['port']} is taken by pid {holder['pid']} ({holder['command']})" if holder else ""
    if conflict and evidence["log_port_taken"]:
        return "hung", "inferred", f"it could not take its port{conflict}"
    return _getting_on(evidence, f"its port is closed{conflict}")


def _answers(evidence):
    http = evidence["http"]
    known, scheduler, ready, completion = (http.get(name) for name in ("model_info", "server_info", "ready", "completion"))
    silent_s = evidence["log_age_s"]
    if completion is not None:
        if completion == 200:
            return "serving", "proven", "it completed a request"
        if completion == TIMED_OUT:
            return "hung", "inferred", "it took a request and did not answer it"
        return "serving", "inferred", f"it answers, but a completion fails: {completion}"
    if known == "refused":  # closed between the two looks
        return _getting_on(evidence, "its port is closed")
    if not isinstance(known, int):
        return "hung", "inferred", f"it accepts connections, but does not answer ({known})"
    if ready == 503:
        if evidence["phase"] == "ready_line":
            return "serving", "inferred", "it answers, but takes no new requests: it is draining, or told that it is unhealthy"
        return _getting_on(evidence, "it answers, but is not ready: warming up")
    if scheduler == TIMED_OUT:
        if silent_s is not None and silent_s > evidence["stall_timeout_s"] and not evidence["progress"]:
            return "hung", "inferred", f"its scheduler does not answer, and its log is silent for {silent_s:.0f} s"
        return "serving", "inferred", "it answers, but its scheduler does not at the moment: a long prefill, or it hangs"
    return "serving", "proven", "it answers" + (" (a wrong or missing API key)" if known in (401, 403) else "")


def _getting_on(evidence, status):
    """Loading or hung, of a server that does not answer yet, as far as one short look can tell."""
    stall_s, progress, age_s, log_age_s = (evidence[name] for name in ("stall_timeout_s", "progress", "age_s", "log_age_s"))
    where = f"phase {_where(evidence)}" if evidence["phase"] else "phase not known"
    if progress:
        return "loading", "proven", f"{where}, {status}; within a second there was progress: {', '.join(progress)}"
    silent_s = age_s if log_age_s is None else min(age_s, log_age_s)
    if silent_s <= stall_s:
        return "loading", "inferred", f"{where}, {status}; last sign of life {silent_s:.0f} s ago (hung after {stall_s:.0f} s)"
    if log_age_s is None:
        return "loading", "unknown", f"{status}; no progress within a second, and its log is not known: {evidence['log_note']}"
    return "hung", "inferred", f"{where}, {status}; no sign of life for {silent_s:.0f} s"


def _where(evidence):
    return f"{evidence['phase']} {evidence['done']}/{evidence['total']}" if evidence["total"] else evidence["phase"]


def _without_processes(evidence):
    trial, holder = evidence["trial"], (evidence["run"] or {}).get("holder")
    if evidence["managed_by"] == "unit":
        return _unit_down(evidence["unit"], evidence)
    if holder:
        return "stopped", "proven", f"no server at this moment: {holder['who']} runs plan {holder['plan']} here since {holder['since']}"
    if trial is None:
        return "stopped", "proven", "no SGLang process runs, and Ringmaster has started none here"
    if trial["outcome"] in ("crashed", "killed", "hung"):
        return "crashed", "proven", f"no SGLang process runs; the last trial, {trial['id']}, {trial['outcome']}"
    if trial["outcome"] is None:
        return "crashed", "inferred", f"no SGLang process runs; the last trial, {trial['id']}, was cut off"
    return "stopped", "proven", f"no SGLang process runs; the last trial, {trial['id']}, ended as planned"


def _unit_down(unit, evidence):
    name = f"unit {unit['name']}"
    result = unit["Result"] or "unknown"
    if unit["held"]:
        return "stopped", "proven", f"{name} is held stopped by a run of Ringmaster"
    if unit["SubState"] == "auto-restart" or unit["ActiveState"] == "failed":
        if result == "signal" and evidence["drained"]:
            return "stopped", "inferred", f"{name} had finished its requests and then ended itself by SIGKILL, as SGLang does"
        again = f"; systemd starts it again ({unit['NRestarts']} times so far)" if unit["SubState"] == "auto-restart" else ""
        return "crashed", "proven", f"{name} failed ({result}){again}"
    if unit["ActiveState"] in ("active", "activating", "deactivating", "reloading"):
        return "loading", "unknown", f"{name} is {unit['ActiveState']} ({unit['SubState']}), but no SGLang process of it was found"
    return "stopped", "proven", f"{name} is {unit['ActiveState']}"


def host_verdict(servers):
    """Index in SERVERS [{managed_by, kind, state, verdict}] of the one that speaks for its host: what serves, or is meant to, comes
    first; then what Ringmaster starts; then trouble; then the rest."""
    return min(range(len(servers)), key=lambda index: _weight(servers[index]))


def _weight(server):
    alive = server["kind"] in ("server", "embedded")
    if server["managed_by"] == "unit":
        return 0 if alive else {"crashed": 2}.get(server["state"], 6)
    if server["managed_by"] == "ringmaster":
        return 1 if alive else {"crashed": 5}.get(server["state"], 7)
    return 4 if server["kind"] == "orphans" else 3


def next_step(judged, evidence, *, command="", log=None):
    """A command for a person: what to do now. COMMAND is what looks again."""
    state, owner, pids = judged["state"], evidence["managed_by"], " ".join(map(str, evidence["pids"]))
    unit = evidence["unit"] if owner == "unit" else None
    root = evidence["pids"][0] if evidence["pids"] else None
    worker = evidence["worker"] or root
    restart = f"systemctl restart {unit['name']}" if unit else f"kill {root}"
    by_owner = {"unit": restart, "ringmaster": "ansible-playbook ringmaster.gpu.abort", None: f"kill {root}"}[owner]
    if evidence["kind"] == "orphans":
        return f"kill -KILL {pids}"
    if state == "serving":
        return "" if owner else f"ps -o user,lstart,args -p {root} shows whose it is; kill {root} ends it"
    if state in ("loading", "hung") and evidence["holder"]:
        return f"ps -o user,lstart,args -p {evidence['holder']['pid']} shows who has its port {evidence['port']}, which it will not get"
    if state == "loading":
        return f"tail -f {log}" if log else command
    if state == "hung" and evidence["frozen"]:
        return f"kill -CONT {pids}"
    if state == "hung":
        return f"py-spy dump --pid {worker} shows where it waits; {by_owner} ends it"
    if state == "crashed":
        if evidence["kind"] == "server":
            return by_owner
        if unit and unit["SubState"] == "auto-restart":
            return f"systemctl stop {unit['name']} ends the restarts until the cause is mended"
        return f"systemctl start {unit['name']}, once the cause is mended" if unit else f"less {log}" if log else command
    if unit and unit["held"]:
        return "ansible-playbook ringmaster.gpu.status"
    return f"systemctl start {unit['name']}" if unit else ""
