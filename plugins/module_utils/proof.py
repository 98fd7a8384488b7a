# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's workers really have in their environment, and whether that is what was asked for."""

from __future__ import annotations

import contextlib
import json
import os

from . import procfs


def read_witnesses(directory):
    """{pid: witness} of the files that our sitecustomize left in DIRECTORY."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            if entry.name.endswith(".json"):
                with contextlib.suppress(OSError, ValueError), open(entry.path, encoding="utf-8") as file:
                    witness = json.load(file)
                    found[witness["pid"]] = witness
    return found


def effective(ranks, launcher_pid, witnesses, *, configured, given, environ=procfs.environment):
    """{title: {NAME: {value, source, proof}}} for the schedulers RANKS {title: Process}.

    CONFIGURED {NAME: value} is what sitecustomize is to set, GIVEN the environment that the server was started with.
    proof: `witness` (the worker's own Python wrote it down after sitecustomize), `environ` (what the worker was started with) or
    None, under the name "*": unknown. A renamed process has overwritten part of its environ, unless SPT_NOENV was set: then
    what is not there proves nothing.
    source: `sitecustomize`, `environment`, or `sglang`, which puts some of its own there before it starts the workers.
    """
    result = {}
    for title, process in sorted(ranks.items()):
        witness = witnesses.get(process.pid)
        if witness is not None:
            values, proof = witness["nccl"], "witness"
        else:
            values, proof = environ(process.pid), "environ"
        if values is None or (proof == "environ" and "SPT_NOENV" not in values):
            result[title] = {"*": {"value": None, "source": "unknown", "proof": None}}
            continue
        applied = {**configured, **(witnesses.get(launcher_pid) or {}).get("applied", {})}
        result[title] = {
            name: {"value": value, "source": _source(name, value, applied, given), "proof": proof}
            for name, value in sorted(values.items())
            if name.startswith("NCCL_")
        }
    return result


def _source(name, value, applied, given):
    if given.get(name) == value:
        return "environment"
    return "sitecustomize" if applied.get(name) == value else "sglang"


def problems(expected, found, rank_count):
    """Why EXPECTED {NAME: value, or None for "not set"} is not proven in FOUND (of `effective`): [] when it is, on every rank."""
    return [*unknown(expected, found, rank_count), *contradictions(expected, found)]


def unknown(expected, found, rank_count):
    """The ranks of which EXPECTED can be said neither to be in force nor not to be."""
    if not expected:
        return []
    if len(found) < rank_count:
        return [f"{len(found)} of {rank_count} ranks could be looked at"]
    return [f"{title}: its environment cannot be read" for title, values in found.items() if "*" in values]


def contradictions(expected, found):
    """What is in FOUND and is not as EXPECTED."""
    trouble = []
    for title, values in found.items():
        for name, value in sorted(expected.items()) if "*" not in values else ():
            there = values.get(name, {}).get("value")
            if there != value:
                said = "not set" if there is None else f"{there!r} (from {values[name]['source']})"
                trouble.append(f"{title}: {name} is {said}, asked for {value if value is not None else 'unset'!r}")
    return trouble
