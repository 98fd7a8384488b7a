# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that a run has to know of a target before it plans anything, in one read-only look."""

from __future__ import annotations

import os

from . import (
    control,
    engine_info,
    files,
    gpus,
    kernel_log,
    nccl_site,
    procfs,
    redaction,
    server_command,
    server_trees,
    sockets,
    transaction,
    units,
)
from .errors import RingmasterError


def survey(state, asked):
    """ASKED is the inventory's word: {server {python, flags, environment, host, port, user}, scope, unit, trial_port, benchmark_tool,
    aiperf}.

    Returns {status, configuration (in force, or as first contact would adopt it), adopted_from, unit {name, active, exists},
    engine, site (nccl_site.probe), gpus, gpu_users, link, changed_files, systemd, problems [str], warnings [str]}. Changes nothing.
    Secrets in the configuration are hidden; `redaction.reveal` puts them back on the host.
    """
    problems, warnings = [], []
    unit = asked.get("unit") or None
    properties = units.show(unit)
    if unit and properties is None and units.available():
        warnings.append(f"sglang_service: this host has no unit {units.unit_name(unit)}; nothing serves that would have to be stopped.")
    try:
        record = state.known_good()
    except PermissionError as error:
        raise RingmasterError(f"{state.directory} cannot be read: {error.strerror}.", "Run the play with `become: true`.") from error
    if record:
        configuration, source = record["configuration"], f"known-good version {record['version']}"
    else:
        configuration, source = found(state, asked)
    server = configuration["server"]
    engine = engine_info.read(server["python"])
    if engine["sglang"] is None:
        problems.append(f"sglang_python: {server['python']} has no SGLang.")
    models = {server["flags"].get("model-path"), asked["server"]["flags"].get("model-path")}
    problems += filter(None, map(engine_info.model_problem, models))
    given = asked["server"].get("python")
    if given and not os.access(given, os.X_OK):
        problems.append(f"sglang_python: {given} does not exist on this host, or is not executable.")
    elif given and given != server["python"]:
        if engine_info.read(given)["sglang"] is None:
            problems.append(f"sglang_python: {given} has no SGLang.")
        warnings.append(f"sglang_python is {given}, but {source} runs {server['python']}, which is what is measured.")
    if server_command.flag_int(server, "nnodes", 1) > 1:
        problems.append(f"sglang_flags: nnodes {server['flags']['nnodes']}: groups of several nodes are not supported yet.")
    for name in server["flags"]:
        if len(engine["flags"]) > 20 and name not in engine["flags"]:
            warnings.append(f"sglang_flags: SGLang {engine['sglang']} seems to know no --{name}.")
    problems += _tool_problems(asked, engine)
    warnings += _other_servers(properties)
    port = asked.get("trial_port") or 0
    if not 0 <= port <= 65535:
        problems.append(f"tune_port is {port}. Give a port from 1 to 65535, or leave tune_port at 0 for any free one.")
    elif port and not sockets.is_free(port):
        problems.append(f"tune_port: port {port} is in use on this host. Free it, or leave tune_port at 0 for any free one.")
    site = nccl_site.probe(server["python"])
    if configuration["nccl"]["scope"] == "interpreter":
        path = nccl_site.target_file("interpreter", python=server["python"], found=site, site_dir=transaction.site_directory(state))
        if not os.access(path if os.path.exists(path) else os.path.dirname(path), os.W_OK):
            remedy = "Run the play with `become: true`, or use nccl_scope=service."
            problems.append(f"{path} cannot be written by user {os.geteuid()}. {remedy}")
        main_pid = units.main_pid(properties)
        own = {main_pid, *(process.pid for process in procfs.descendants(main_pid))} if main_pid else set()
        others = [user for user in nccl_site.users_of(site, path) if user["pid"] not in own]
        if others:
            who = "; ".join(f"pid {user['pid']}: {user['cmdline'][:60]}" for user in others)
            problems.append(f"nccl_scope: {path} is read by another server ({who}). Stop that one, or use nccl_scope=service.")
    status = control.status(state)
    if status["unfinished"]:
        warnings.append("An earlier plan was cut off here; what it changed is put back before anything else.")
    present = gpus.read()
    warnings += _gpu_problems() if present else []
    return {
        "status": status,
        "configuration": redaction.configuration(configuration),
        "adopted_from": source,
        "unit": {"name": unit, "exists": properties is not None, "active": bool(properties) and units.is_active(unit)},
        "engine": engine,
        "site": site,
        "gpus": present,
        "link": gpus.link() if present else None,
        "changed_files": _changed_files(record, state.journal()),
        "gpu_users": gpus.users() if present else [],
        "systemd": units.available(),
        "problems": problems,
        "warnings": warnings,
    }


def _tool_problems(asked, engine):
    """Why the load cannot be made by the tool that is asked for."""
    tool, aiperf = asked.get("benchmark_tool"), asked.get("aiperf")
    if tool == "sglang" and not engine["bench_serving"]:
        return [f"tune_benchmark_tool: SGLang {engine['sglang']} of this host has no bench_serving. Use tune_benchmark_tool=ringmaster."]
    if tool == "aiperf" and not (aiperf and os.access(aiperf, os.X_OK)):
        return [f"tune_aiperf: {aiperf or 'nothing'} is no executable of this host. Install AIPerf there in an environment of its own."]
    return []


def _other_servers(properties):
    """SGLang servers beside the unit's: they share the machine with what is measured."""
    main_pid = units.main_pid(properties)
    own = {main_pid, *(process.pid for process in procfs.descendants(main_pid))} if main_pid else set()
    pids = [tree.root.pid for tree in server_trees.find() if tree.root.pid not in own]
    if not pids:
        return []
    return [f"Other SGLang servers run on this host (pid {', '.join(map(str, pids))}): what they do shows in the figures."]


def _gpu_problems():
    """What is wrong with the GPUs before anything runs on them; an idle clock is none."""
    try:
        found = gpus.health(xids=kernel_log.xids())
    except RingmasterError as error:
        return [str(error)]
    return [f"GPU {gpu['index']}: {problem}" for gpu in found or () for problem in gpu["problems"]]


def _changed_files(record, journal):
    """Files that somebody changed since the known-good version RECORD was written. What the JOURNAL will put back is a plan's doing."""
    ours = {former["path"] for former in (journal or {}).get("before", [])}
    return [former["path"] for former in record["files"] if former["path"] not in ours and not files.same(former)] if record else []


def found(state, asked):
    """The configuration in force at first contact, and where it was read: the unit if there is one, else the inventory."""
    unit = asked.get("unit")
    properties = units.show(unit)
    if properties is not None:
        server = server_command.parse(units.command(unit, properties))
        server.update(user=properties.get("User") or None, directory=properties.get("WorkingDirectory", "").lstrip("-!") or None)
        environment = units.environment(properties)
        source = f"the unit {units.unit_name(unit)}"
    else:
        given = [(server_command.flag_name(name), server_command.flag_value(value)) for name, value in asked["server"]["flags"].items()]
        flags = {name: value for name, value in given if value is not None}
        if not asked["server"].get("python") or "model-path" not in flags:
            raise RingmasterError(
                "Nothing is known of this host's server: no unit, and sglang_python or sglang_model_path is not set.",
                "Set them in the inventory, or name the unit that serves in sglang_service.",
            )
        listen = {"host": asked["server"].get("host") or "127.0.0.1", "port": int(asked["server"].get("port") or 30000)}
        server = {"python": asked["server"]["python"], "module": server_command.MODULE, "flags": flags, "listen": listen}
        server.update(user=asked["server"].get("user") or None, directory=None)
        environment, source = dict(asked["server"]["environment"]), "the inventory"
    if not os.path.exists(server["python"]):
        raise RingmasterError(f"sglang_python: {server['python']} (of {source}) does not exist on this host.")
    scope = asked.get("scope") or "service"
    site = transaction.site_directory(state)
    python_path = ":".join(part for part in (site if scope == "service" else "", environment.get("PYTHONPATH", "")) if part)
    in_force = nccl_site.probe(server["python"], environment={"PYTHONPATH": python_path} if python_path else {})["nccl"]
    return {
        "label": "as found",
        "nccl": {"scope": scope, "override": False, "settings": in_force},
        "server": server,
        "environment": environment,
        "patches": [],
    }, source
