# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of diagnose.yml as plain text: one table for all hosts, a block for each server that does not serve, the next command."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import nccl_names, nccl_values, tables

_ORDER = ("not looked at", "crashed", "hung", "unmanaged", "loading", "stopped", "serving")  # whose next step is said at the end
_EVIDENCE_LINES = 4
_WHOLE = 1 << 16  # what is there to be copied is not wrapped
_PLAYBOOK = "ansible-playbook "


def report(hosts: list[dict], *, width: int = 80, details: bool = False, again: str = "", encoding: str | None = None) -> str:
    """HOSTS: [{host, found, nccl, problem}]: what ringmaster.gpu.sglang_server_info and .nccl_info returned, or why they did not.

    DETAILS: a block for every server, else for those that do not serve. AGAIN: the command that looks once more. Only paths, commands
    and quoted log lines exceed `width`.
    """
    show = tables.printer(encoding)
    rows = list(_rows(hosts))
    header = ["host", "verdict", "server", "port", "phase", "GPU MiB"]
    lines = tables.grid(header, [[show(cell) for cell in row] for row in rows], width, cut=(0, 2, 4), right=(3, 5))
    for host in hosts:
        lines += _host_block(host, show, width, details)
    simulated = dict.fromkeys(host["host"] for host in hosts for server in _servers(host) if server["simulated"])
    if simulated:
        lines += ["", f"SIMULATED: {', '.join(simulated)} runs a stand-in engine."]
    return tables.joined([*lines, "", "next: " + show(next_step(hosts, again))])


def next_step(hosts: Iterable[dict], again: str) -> str:
    """The one command to go on with: that of the worst server, where there is trouble, else AGAIN."""
    steps = [("not looked at", host["host"], "") for host in hosts if host["problem"]]
    steps += [(server["verdict"], host["host"], server["next"]) for host in hosts for server in _servers(host)]
    trouble = [step for step in steps if step[2] and step[0] != "serving"]
    if not trouble:
        return again
    verdict, host, command = min(trouble, key=lambda step: _ORDER.index(step[0]))
    return command if command.startswith(_PLAYBOOK) else f"on {host}: {command}"


def _servers(host):
    return host["found"]["servers"] if host["found"] else []


def _rows(hosts):
    for host in hosts:
        if host["problem"]:
            yield [host["host"], "not looked at", "-", "-", "-", "-"]
        for server in _servers(host):
            yield [host["host"], _verdict(server), _name(server), server["port"] or "-", _phase(server), _memory(host["found"], server)]


def _verdict(server):
    words = [server["verdict"]] if server["verdict"] == server["state"] else [f"{server['verdict']}, {server['state']}"]
    words += [f"({server['certainty']})"] if server["certainty"] != "proven" else []
    return " ".join(words + ["SIMULATED"] if server["simulated"] else words)


def _name(server):
    if server["managed_by"] == "unit":
        return server["unit"].removesuffix(".service")
    if server["managed_by"] == "ringmaster":
        return f"trial {server['trial']}"
    if server["pid"] is None:
        return "no server"
    origin = server["origin"] or {}
    where = f" in {origin['container']}" if origin.get("container") else ""
    kind = {"orphans": "orphans, pid", "embedded": "program, pid"}.get(server["kind"], "pid")
    return f"{kind} {server['pid']} of {origin.get('user') or 'an unknown user'}{where}"


def _phase(server):
    if server["phase"] is None or server["state"] in ("serving", "stopped"):
        return "-"
    if server["phase"] == "ready_line":
        return "ready"
    return server["phase"].replace("_", " ") + (f" {server['done']}/{server['total']}" if server["total"] else "")


def _memory(found, server):
    own = [row["memory_mib"] for row in found["gpu_memory"] if row["server"] == server["pid"] and row["memory_mib"] is not None]
    return f"{sum(own):.0f}" if own and server["pid"] else "-"


# --- blocks -----------------------------------------------------------------------------------------------------------


def _host_block(host: dict, show: Callable, width: int, details: bool) -> list[str]:
    if host["problem"]:
        return ["", f"{host['host']}: not looked at", *tables.labelled("why", show(host["problem"]), width)]
    found, lines = host["found"], []
    ignored = []
    for server in _servers(host):
        if details or server["verdict"] != "serving":
            lines += ["", f"{host['host']}: {show(_name(server))}: {show(_verdict(server))}", *_server_block(host, server, show, width)]
        else:
            ignored += [("ignored", f"{_name(server)}: {text}") for text in _ignored(server, _library(host, server))]
    about = [*ignored, *_about_host(found, details or bool(lines))]
    lines += ["", f"{host['host']}:"] if about else []
    for name, text in about:
        lines += tables.labelled(name, show(text), width)
    return lines


def _server_block(host, server, show, width):
    cause = server["cause"] or {}
    texts = [("why", server["why"]), ("cause", cause.get("summary")), ("advice", cause.get("advice"))]
    lines = [line for name, text in texts if text for line in tables.labelled(name, show(text), width)]
    lines += [f"    | {show(line['line'])}" for line in (cause.get("evidence") or [])[-_EVIDENCE_LINES:]]
    log = server["log"] or {}
    if log.get("kind") in ("file", "journal"):
        age = "" if log.get("age_s") is None else f"  (last line {log['age_s']:.0f} s ago)"
        lines += tables.labelled("log", show(log["path"]) + age, _WHOLE)
    elif log.get("note"):
        lines += tables.labelled("log", f"unknown: {show(log['note'])}", width)
    if server["command_problem"]:
        lines += tables.labelled("command", show(server["command_problem"]), width)
    for name, text in _nccl(server, _library(host, server)):
        lines += tables.labelled(name, show(text), width)
    return lines + (tables.labelled("next", show(server["next"]), _WHOLE) if server["next"] else [])


def _library(host, server):
    """Version and hash of the NCCL that SERVER has, by nccl_info, which found it by its launcher's pid."""
    known = next((row for row in (host["nccl"] or {}).get("servers", []) if row["pid"] == server["pid"]), {})
    return known.get("library") or {}


def _nccl(server, library):
    if not server["nccl"]:
        return
    site, ranks = server["nccl"]["site"], server["nccl"]["effective"]
    if site["problem"]:
        yield "site", f"unknown: {site['problem']}"
    elif site["path"]:
        values = " ".join(f"{name}={value}" for name, value in site["values"].items()) or "nothing"
        whose = "Ringmaster's" if site["ours"] else "not Ringmaster's"
        changed = "; it was changed after the server had started" if site["changed"] else ""
        yield "site", f"{site['path']} ({whose}) sets {values}{changed}"
    else:
        yield "site", "no sitecustomize"
    for conf in server["nccl"]["conf"]:
        values = " ".join(f"{name}={value}" for name, value in conf["values"].items())
        yield "conf", f"{conf['path']}: {values or conf['problem'] or 'no NCCL variable'}"
    if library.get("path"):
        digest = f", sha256 {library['sha256'][:12]}" if library.get("sha256") else ""
        yield "nccl", f"{library['version'] or 'unknown version'} ({library['certainty']}{digest}), {library['path']}"
    yield from (("ranks", text) for text in _ranks(ranks))
    yield from (("ignored", text) for text in _ignored(server, library))


def _ignored(server, library):
    """Of the NCCL variables that are set anywhere for SERVER those that its NCCL does not read: it says nothing about them."""
    if not server["nccl"]:
        return []
    rows = [*server["nccl"]["effective"].values(), server["nccl"]["site"]["values"], *(conf["values"] for conf in server["nccl"]["conf"])]
    return nccl_names.unread({name for row in rows for name in row or ()}, nccl_values.parse_version(library.get("version")))


def _ranks(ranks: dict) -> list[str]:
    """What each rank has; equal ranks together."""
    together: dict[str, list[str]] = {}
    for title, values in ranks.items():
        words = [_value(name, row) for name, row in values.items() if name != "*"]
        words += ["what else is set is unknown"] if "*" in values else []
        together.setdefault(", ".join(words) or "no NCCL variable", []).append(title.removeprefix("sglang::scheduler").strip("_") or "0")
    return [f"{'all ' + str(len(names)) if len(together) == 1 else ' '.join(names)}: {text}" for text, names in together.items()]


def _value(name, row):
    proof = row["certainty"] if row["certainty"] != "proven" else f"proven by {row['proof']}"
    return f"{name}={row['value']} ({row['source']}, {proof})" + (f" but {row['against']}" if row.get("against") else "")


def _about_host(found, whole):
    if found["gpu_problem"]:
        yield "gpus", found["gpu_problem"]
    for gpu in found["gpus"] or []:
        for problem in gpu["problems"]:
            yield f"gpu {gpu['index']}", problem
    if not whole:
        return
    if found["gpus"] and not any(gpu["problems"] for gpu in found["gpus"]):
        yield "gpus", f"{len(found['gpus'])} without trouble"
    for row in found["gpu_memory"]:
        owner = f"server {row['server']}" if row["server"] else f"no server seen here, {row['name']}"
        amount = "?" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}"
        yield "memory", f"gpu {row['index'] if row['index'] is not None else row['uuid']}: {amount} MiB, pid {row['pid']} ({owner})"
    known = (found["ringmaster"] or {}).get("known_good")
    if known:
        yield "known", f"known-good is version {known['version']} ({known['label']}, {known['created']})"
    holder = (found["ringmaster"] or {}).get("holder")
    if holder:
        yield "run", f"{holder['who']} runs plan {holder['plan']} since {holder['since']}: ansible-playbook ringmaster.gpu.status"
    if (found["ringmaster"] or {}).get("unfinished"):
        yield "run", "a plan was cut off here: the next run, or ansible-playbook ringmaster.gpu.abort, puts known-good back"
    if (found["ringmaster"] or {}).get("problem"):
        yield "state", found["ringmaster"]["problem"]
    for note in found["notes"]:
        yield "note", note
