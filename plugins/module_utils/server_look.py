# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One short look at every SGLang server of this machine: the evidence that `diagnosis` judges. Changes nothing, generates nothing
unless a probe is asked for; never /health, which generates a token and can mark a busy server unhealthy."""

from __future__ import annotations

import os
import re
import time

from . import (
    diagnosis,
    loadgen,
    log_cause,
    nccl_look,
    parallel,
    procfs,
    readiness,
    redaction,
    server_absent,
    server_ask,
    server_command,
    server_output,
    server_result,
    server_trees,
    sockets,
    units,
)
from .errors import RingmasterError

SAMPLE_S = 1.0
_WITNESS = re.compile(r"(?P<state>.*)/trials/(?P<trial>[^/]+)/witness/?")


def look(state, *, unit=None, stall_timeout_s=300.0, timeout_s=2.5, probe_timeout_s=None):
    """[server] of this machine, at least one: where nothing runs, one that says why. With PROBE_TIMEOUT_S each is asked for one completion.

    A server: {verdict, state, certainty, why, kind, managed_by (unit | ringmaster | None), unit, trial, pid, pids, origin, port, url,
    model, version, simulated, flags (no secrets), python, phase, done, total, cause, log {path, kind, age_s, note}, http,
    ranks {title: pid}, nccl (of nccl_look.look), age_s, next}.
    """
    context = {"state": state, "stall_timeout_s": stall_timeout_s, "timeout_s": timeout_s, "probe_timeout_s": probe_timeout_s}
    context["unit"] = {"name": units.unit_name(unit)} if unit else None
    trees = server_trees.find()
    jobs = {tree.root.pid: lambda tree=tree: _server(tree, context) for tree in trees}
    jobs["unit"] = lambda: server_absent.unit(unit)
    limit_s = timeout_s + (probe_timeout_s or 0.0)
    found = parallel.together(jobs, limit_s + 0.5)
    properties, text = found.pop("unit") if isinstance(found["unit"], tuple) else (None, "")
    servers = [_finished(found[tree.root.pid], tree, context) for tree in trees]
    if properties and not any(server["managed_by"] == "unit" for server in servers):
        servers.append(server_absent.of_unit(unit, properties, text, context))
    if not servers:
        servers.append(server_absent.of_host(context))
    return servers


def _finished(server, tree, context):
    """SERVER, or what can be said of TREE when looking at it failed or took too long."""
    if isinstance(server, Exception):
        pids = [process.pid for process in tree.processes]
        evidence = server_result.evidence(context, kind=tree.kind, pids=pids, managed_by=_owner(tree, context)[0])
        judged = {"state": "loading", "certainty": "unknown", "why": f"it could not be looked at: {server}"}
        server = server_result.told(evidence, judged, {"pid": tree.root.pid})
        server["verdict"] = server["state"] if server["managed_by"] else "unmanaged"
    return server


# --- a server with processes ------------------------------------------------------------------------------------------


def _server(tree, context):
    owner, trial = _owner(tree, context)
    root = tree.root.pid
    server, problem = _parsed(tree)
    flags = server["flags"] if server else {}
    port = server["listen"]["port"] if server and tree.kind == "server" else None
    same_net = server_trees.namespace(root, "net") == server_trees.namespace("self", "net")
    pids = [process.pid for process in tree.processes]
    listening = bool(port) and _listens(port, pids, root)
    output = server_output.Output("file", trial["log"], f"/proc/{root}/root{trial['log']}") if trial else server_output.of_process(root)
    begun = time.monotonic()
    before = readiness.sample(tree.processes, 0)
    size = _size(output)
    jobs = {"log": lambda: server_output.read(output, timeout_s=context["timeout_s"])}
    jobs["nccl"] = lambda: nccl_look.look(tree, timeout_s=context["timeout_s"])
    questions = _questions(server, context) if port and same_net else {}
    answers = parallel.together({**jobs, **(questions if listening else {})}, context["timeout_s"] + (context["probe_timeout_s"] or 0.0))
    time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - begun)))
    now = next((one for one in server_trees.find() if one.root[:1] + one.root[7:8] == tree.root[:1] + tree.root[7:8]), None)
    current = now or tree
    if port and not listening and _listens(port, [process.pid for process in current.processes], root):
        listening = True  # it has just opened its port
        answers.update(parallel.together(questions, context["timeout_s"] - SAMPLE_S + (context["probe_timeout_s"] or 0.0)))
    log = answers["log"] if isinstance(answers["log"], server_output.Log) else server_output.Log(output, None, None, None)
    http = {name: server_ask.status_of(answers[name]) for name in (*server_ask.PATHS, "completion") if name in answers} or None
    grown = 0 if listening or size is None else max(0, (_size(output) or 0) - size)  # our own requests make a server write lines
    evidence = server_result.evidence(
        context,
        kind=tree.kind,
        managed_by=owner,
        ended=now is None,
        pids=[process.pid for process in current.processes],
        worker=next(iter(current.schedulers().values()), current.root).pid,
        dead=[role for role, _pid in current.dead],
        missing=_missing(current, server, listening),
        frozen=[_title(process, current) for process in current.processes if process.state in "Tt"],
        age_s=min(map(server_trees.age_s, current.processes)) if current.processes else 0.0,
        port=port,
        listening=listening,
        hidden=not os.access(f"/proc/{root}/fd", os.R_OK),
        holder=None if listening or not port else _holder(port, root),
        http=http,
        http_note=None if same_net else "it is in another network namespace",
        progress=_progress(before, readiness.sample(current.processes, grown)),
        log_age_s=log.age_s,
        log_note=log.output.note,
        **server_result.of_log(log.reader),
    )
    judged = diagnosis.judge(evidence)
    if judged["state"] == "crashed" and log.reader and tree.kind == "server":
        gone = " and ".join(evidence["dead"] or evidence["missing"])
        exit_code = procfs.exit_code(current.dead[0][1]) if current.dead else None
        evidence["cause"] = log_cause.cause(log.reader, exit_code=exit_code, killed_role=gone or None)
    info = {name: answers[name][1] or {} for name in ("model_info", "server_info") if isinstance(answers.get(name), tuple)}
    version = info.get("server_info", {}).get("version") or (log.reader.facts["sglang"] if log.reader else None)
    nccl = answers["nccl"] if isinstance(answers["nccl"], dict) else None
    if nccl and set(nccl["effective"]) != set(current.schedulers()):  # ranks that have come meanwhile
        nccl["effective"] = nccl_look.ranks(current, nccl)
    told = server_result.told(
        evidence,
        judged,
        {
            "trial": trial and trial["id"],
            "pid": root,
            "origin": server_trees.origin(tree.root),
            "url": server_ask.url_of(server) if server and port else None,
            "model": flags.get("model-path") or info.get("model_info", {}).get("model_path"),
            "version": version,
            "simulated": "+simulated" in (version or ""),
            "flags": redaction.redact(flags),
            "command_problem": problem,
            "python": nccl["python"] if nccl else None,
            "log": server_result.shown_log(log),
            "ranks": {title: process.pid for title, process in sorted(current.schedulers().items())},
            "nccl": nccl,
        },
    )
    return server_result.without(told, server_result.secrets(flags))


def _listens(port, pids, root):
    """Whether one of PIDS listens on PORT; where their sockets are hidden from us, whether anybody does."""
    if os.access(f"/proc/{root}/fd", os.R_OK):
        return bool(sockets.holders(port, pids, root))
    return bool(sockets.listening_inodes(port, root))


def _questions(server, context):
    """Jobs for `together`: what the server with that command is asked."""
    flags, url = server["flags"], server_ask.url_of(server)
    api_key = flags.get("api-key") if isinstance(flags.get("api-key"), str) else None
    limit_s = context["timeout_s"] - SAMPLE_S / 2
    jobs = {
        name: lambda paths=paths: server_ask.get(url, paths, api_key, limit_s, secure="ssl-certfile" in flags)
        for name, paths in server_ask.PATHS.items()
    }
    if context["probe_timeout_s"]:
        jobs["completion"] = lambda: loadgen.complete(url, api_key=api_key, timeout_s=context["probe_timeout_s"]) and (200, None)
    return jobs


def _owner(tree, context):
    """('ringmaster', {id, log}), ('unit', None) or (None, None): who started the server of TREE."""
    pid = tree.root.pid
    environment = procfs.environment(pid) or next(filter(None, (procfs.environment(process.pid) for process in tree.processes)), {})
    found = _WITNESS.fullmatch(environment.get("RINGMASTER_WITNESS", ""))
    if found:
        return "ringmaster", {"id": found["trial"], "log": os.path.join(found["state"], "trials", found["trial"], "server.log")}
    unit = context["unit"]
    if unit and server_trees.origin(tree.root)["unit"] == unit["name"]:
        return "unit", None
    return None, None


def _parsed(tree):
    """(the command's `server` part with `listen`, or None; why it could not be read)."""
    if tree.kind != "server":
        return None, None
    try:
        words = tree.command
        if server_command.MODULE not in words and "serve" not in words:  # python .../sglang/launch_server.py
            script = next(index for index, word in enumerate(words) if word.endswith("/sglang/launch_server.py"))
            words = [words[0], "-m", server_command.MODULE, *words[script + 1 :]]
        return server_command.parse(words), None
    except (RingmasterError, StopIteration) as error:
        return None, str(error)


def _missing(tree, server, listening):
    """What an open port says there must be (it opens once every worker has reported), and is not there."""
    if not (server and listening) or server_command.flag_int(server, "nnodes", 1) > 1:
        return []
    replicas = 1 if "enable-dp-attention" in server["flags"] else server_command.flag_int(server, "dp-size", 1)
    wanted, there = server_command.rank_count(server) * replicas, len(tree.schedulers())
    lost = [f"{wanted - there} of {wanted} schedulers"] if there < wanted else []
    if not any(title.startswith("sglang::detokenizer") for title in tree.members) and "skip-tokenizer-init" not in server["flags"]:
        lost.append("the detokenizer")
    return lost


def _holder(port, pid):
    """{pid, command} of the process that listens on PORT in the network namespace of PID, or None."""
    if not sockets.listening_inodes(port, pid):
        return None
    found = sockets.holders(port, list(procfs.scan()), pid)
    command = _program(procfs.command_line(found[0])) if found else "not visible"
    return {"pid": found[0] if found else None, "command": command}


def _program(words):
    """The command WORDS up to its first long option, which may hold a secret."""
    end = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    return " ".join([os.path.basename(words[0]), *words[1:end]] if words else [])[:60]


def _progress(before, after):
    """Names of what grew between two samples of readiness.sample, by the thresholds of readiness."""
    grown = []
    for name in after:
        progress = readiness.Progress(0.0)
        progress.feed({name: before[name]}, 0.0)
        if progress.feed({name: after[name]}, SAMPLE_S) == 0.0:
            grown.append(name)
    return grown


def _title(process, tree):
    return next((title for title, member in tree.members.items() if member.pid == process.pid), f"pid {process.pid}")


def _size(output):
    try:
        return os.stat(output.source).st_size if output.kind == "file" else None
    except OSError:
        return None
