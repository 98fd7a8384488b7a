# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making a configuration permanent, or going back to an earlier version: written, started, answering, proven; else undone."""

from __future__ import annotations

import time

from . import files, nccl_site, procfs, proof, readiness, redaction, server_command, transaction, units
from .errors import RingmasterError
from .server import role_of

GATE_POLL_S = 0.5
MOST_RESTARTS = 2  # each of them grows again, which would look like progress for ever


def commit(state, changes, decision, settings, report):
    """Carry out DECISION: {configuration, label, by} to keep a candidate, or {version: N} to go back to version N.

    CHANGES is the plan's open Transaction. Returns {version, files, service}. On any failure everything is put back, the
    production server is started and gated in known-good, and a RingmasterError says what happened.
    """
    former = state.known_good()
    unit = changes.journal["unit"]
    service = None
    try:
        if "version" in decision:
            target = state.known_good(decision["version"])
            for snapshot in files_at(state, decision["version"]):
                changes.change_to(snapshot)
            configuration = target["configuration"]
        else:
            configuration = redaction.reveal(decision["configuration"], former["configuration"])
            wanted = [transaction.site_file(configuration, state)]
            if unit:
                wanted.append(transaction.unit_file(configuration, state, unit))
            for path, data in wanted:
                changes.change(path, data)
        report("phase", phase="commit")
        if unit:
            units.release(unit)
            if changes.journal["unit_was_active"]:
                units.restart(unit)
                service = gate(state, unit, configuration, settings, report)
                trouble = [*service["problems"], *(service["unknown"] if "version" not in decision else ())]
                if trouble:
                    state_of_it = "runs, but not as asked" if service["ready"] else "does not serve"
                    raise RingmasterError(f"{unit} {state_of_it}: {'; '.join(trouble)}.")
        wanted = files_at(state, decision["version"]) if "version" in decision else ()
        changed = [snapshot["path"] for snapshot in wanted if not files.same(snapshot)]
        if changed:
            raise RingmasterError(f"Something else changed {', '.join(changed)} meanwhile.")
    except RingmasterError as error:
        if service and not service["ready"]:
            units.kill(unit)
        transaction.recover(state)
        after = gate(state, unit, former["configuration"], settings, report) if unit and changes.journal["unit_was_active"] else None
        back = f" It is back on known-good version {former['version']}" + (" and answers." if after and after["ready"] else ".")
        raise RingmasterError(f"Not kept: {error.what}{back}", error.remedy) from error
    if "version" in decision:
        version = decision["version"]
    else:
        touched = [entry["path"] for entry in changes.journal["before"]]
        carried = {snapshot["path"] for snapshot in former["files"]} | set(touched)
        version = state.write_version(
            {
                "by": decision["by"],
                "label": decision["label"],
                "configuration": configuration,
                "files": [files.snapshot(path) for path in sorted(carried)],
                "before": changes.journal["before"],
                "unit": unit,
                "evidence": decision.get("evidence"),
            }
        )
    changes.keep(version)
    return {"version": version, "service": service}


def files_at(state, version):
    """Snapshots of every file that any version carries, as they were when VERSION was in force."""
    records = {number: state.known_good(number) for number in state.versions()}
    found = {snapshot["path"]: snapshot for snapshot in records[version]["files"]}
    for number in sorted(records):
        if number > version:
            for snapshot in records[number].get("before", []):
                found.setdefault(snapshot["path"], snapshot)
    return list(found.values())


def adopt(state, configuration, unit):
    """First contact: what is in force becomes version 1. Returns its record."""
    python, site_dir = configuration["server"]["python"], transaction.site_directory(state)
    paths = [nccl_site.target_file(configuration["nccl"]["scope"], python=python, site_dir=site_dir)]
    if unit:
        paths.append(units.drop_in_path(unit))
    version = state.write_version(
        {
            "by": "first contact",
            "label": "as found",
            "configuration": configuration,
            "files": [files.snapshot(path) for path in paths],
            "before": [],
            "unit": unit,
        }
    )
    state.set_current(version)
    return state.known_good()


def gate(state, unit, configuration, settings, report):
    """Wait until the production server of UNIT answers a completion, and prove CONFIGURATION's settings in its workers.

    Returns {ready, seconds, problems [str], unknown [str], effective}. Ends without readiness when the unit fails or stalls.
    """
    configuration = configuration or state.known_good()["configuration"]
    listen = configuration["server"]["listen"]
    host = "127.0.0.1" if listen["host"] in ("0.0.0.0", "::", "localhost") else listen["host"]
    prober = readiness.Prober(f"http://{host}:{listen['port']}", api_key=configuration["server"]["flags"].get("api-key"))
    begun = time.monotonic()
    progress = readiness.Progress(begun)
    restarts_before = int((units.show(unit) or {}).get("NRestarts") or 0)
    report("phase", phase="production start")
    while True:
        properties = units.show(unit) or {"ActiveState": "gone", "MainPID": "0"}
        tree = _tree(units.main_pid(properties))
        moment = time.monotonic()
        restarts = int(properties.get("NRestarts") or 0) - restarts_before
        if restarts >= MOST_RESTARTS:
            return _gated(False, begun, [f"{unit} was restarted {restarts} times by systemd: see `journalctl -u {unit}`"])
        if properties["ActiveState"] in ("failed", "inactive", "gone") and moment - begun > 2.0:
            return _gated(False, begun, [f"{unit} is {properties['ActiveState']}: see `journalctl -u {unit}`"])
        if tree and readiness.whose_port(listen["port"], tree, host) == "ours" and prober.poll():
            break
        if progress.feed(readiness.sample(tree, 0), moment) > settings["stall_timeout_s"]:
            return _gated(False, begun, [f"{unit} made no progress for {settings['stall_timeout_s']:.0f} s; {prober.last_problem}"])
        time.sleep(GATE_POLL_S)
    ranks = {}
    for process in tree:
        found = role_of(process.pid)
        if found and found[0] == "scheduler":
            ranks.setdefault(found[1], process)  # not a forked child that still has its title
    settings_of = {"configured": configuration["nccl"]["settings"], "given": configuration["environment"]}
    effective = proof.effective(ranks, units.main_pid(properties), {}, **settings_of)
    wanted = {**configuration["nccl"]["settings"], **dict.fromkeys(configuration["nccl"].get("removed", ()))}
    rank_count = server_command.rank_count(configuration["server"])
    # A unit that Ringmaster does not write may hide its workers' environment: then its settings are unknown, which is no fault.
    unknown = proof.unknown(wanted, effective, rank_count)
    return {**_gated(True, begun, proof.contradictions(wanted, effective), effective), "unknown": unknown}


def _tree(main_pid):
    process = procfs.read(main_pid) if main_pid else None
    return [process, *procfs.descendants(main_pid)] if process else []


def _gated(ready, begun, problems, effective=None):
    seconds = round(time.monotonic() - begun, 1)
    return {"ready": ready, "seconds": seconds, "problems": problems, "unknown": [], "effective": effective or {}}
