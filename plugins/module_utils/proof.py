# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's workers really have in their environment, and whether that is what was asked for."""

from __future__ import annotations

import contextlib
import json
import os

from . import procfs

# What SGLang itself puts into the environment of its workers (facts: its engine module, `_set_envs_and_config`).
_NCCL = "NCCL_"


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


def effective(ranks, launcher_pid, witnesses, environ=procfs.environment):
    """{title: {NAME: {value, source, proof}}} for the schedulers RANKS {title: Process}.

    proof: `witness` (the worker's own Python wrote it down after sitecustomize), `environ` (what it was started with) or
    None (unknown: then the value is None as well, under the name "*").
    source: `sitecustomize`, `sglang` (absent in the launcher at its start, put there before the worker was spawned), or
    `environment`.
    """
    launcher = witnesses.get(launcher_pid)
    result = {}
    for title, process in sorted(ranks.items()):
        witness = witnesses.get(process.pid)
        if witness is not None:
            values, proof = witness["nccl"], "witness"
        else:
            values, proof = environ(process.pid), "environ"
        if values is None:
            result[title] = {"*": {"value": None, "source": "unknown", "proof": None}}
            continue
        result[title] = {
            name: {"value": value, "source": _source(name, value, witness, launcher), "proof": proof}
            for name, value in sorted(values.items())
            if name.startswith(_NCCL)
        }
    return result


def _source(name, value, witness, launcher):
    applied = {**(launcher or {}).get("applied", {}), **(witness or {}).get("applied", {})}
    if applied.get(name) == value:
        return "sitecustomize"
    if launcher is not None and launcher["nccl"].get(name) != value:
        return "sglang"
    return "environment"


def problems(expected, found, rank_count):
    """Why EXPECTED {NAME: value, or None for "not set"} is not proven in FOUND (of `effective`): [] when it is, on every rank."""
    if not expected:
        return []
    if len(found) < rank_count:
        return [f"{len(found)} of {rank_count} ranks could be looked at"]
    trouble = []
    for title, values in found.items():
        if "*" in values:
            trouble.append(f"{title}: its environment cannot be read")
            continue
        for name, value in sorted(expected.items()):
            there = values.get(name, {}).get("value")
            if there != value:
                said = "not set" if there is None else f"{there!r} (from {values[name]['source']})"
                trouble.append(f"{title}: {name} is {said}, asked for {value if value is not None else 'unset'!r}")
    return trouble
