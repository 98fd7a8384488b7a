# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's workers really have in their environment, what NCCL made of it, and whether that is what was asked for."""

from __future__ import annotations

import contextlib
import json
import os
import re

from . import files, nccl_effect, procfs

WITNESS_BYTES = 1 << 20


def read_witnesses(directory):
    """{pid: witness} of the files that our sitecustomize left in DIRECTORY."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            witness = _witness(entry.path) if entry.name.endswith(".json") else None
            if isinstance(witness, dict) and isinstance(witness.get("pid"), int) and isinstance(witness.get("nccl"), dict):
                found[witness["pid"]] = witness
    return found


def _witness(path):
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, encoding="utf-8", opener=files.plain) as file:
        return json.loads(file.read(WITNESS_BYTES))
    return None


# Read whenever a communicator of two and more ranks is made, and then logged (init.cc, connect.cc, tuning.cc, paths.cc, nvls.cc;
# 2.18 to 2.32). Of all others, as of NCCL_IB_* without InfiniBand, a log that is silent says nothing.
ALWAYS_LOGGED = frozenset(
    f"NCCL_{name}"
    for name in (
        "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "NTHREADS", "LL128_NTHREADS", "BUFFSIZE", "LL_BUFFSIZE",
        "LL128_BUFFSIZE", "PROTO", "ALGO", "P2P_LEVEL", "CUMEM_ENABLE", "NVLS_ENABLE",
    )
)  # fmt: skip
LEVEL = "NCCL_P2P_LEVEL"
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")


def effective(ranks, launcher_pid, witnesses, *, configured, given, captures=None, environ=procfs.environment):
    """{title: {NAME: {value, source, proof}}} for the schedulers RANKS {title: Process}.

    CONFIGURED {NAME: value} is what sitecustomize is to set, GIVEN the environment that the server was started with, CAPTURES
    {pid: capture} what `nccl_log.read` found.
    proof, best first: `nccl log` (NCCL's own word on that very rank), `witness` (the worker's own Python wrote it down after
    sitecustomize), `environ` (what the worker was started with) or None, under the name "*": what is not there is unknown. A renamed
    process has overwritten part of its environ, unless SPT_NOENV was set: then what is not there proves nothing.
    source: `sitecustomize`, `environment`, `sglang` (which puts some of its own there before it starts the workers), `conf file` (NCCL
    reads those itself, no Python sees them) or `unknown`.
    `against`, where there: why a value that the process has is not the one that NCCL uses; then `value` is NCCL's.
    """
    result = {}
    for title, process in sorted(ranks.items()):
        witness = witnesses.get(process.pid)
        values, proof = (witness["nccl"], "witness") if witness is not None else (environ(process.pid), "environ")
        known = values is not None and (proof == "witness" or "SPT_NOENV" in values)
        values = {name: value for name, value in values.items() if name.startswith("NCCL_")} if known else {}
        applied = {**configured, **((witnesses.get(launcher_pid) or {}).get("applied") or {})}
        found = {
            name: {"value": value, "source": _source(name, value, applied, given, "sglang"), "proof": proof}
            for name, value in values.items()
        }
        capture = (captures or {}).get(process.pid)
        if capture is not None:
            for name, value in _only_logged(capture, found).items():
                source = "conf file" if known else _source(name, value, applied, given, "unknown")
                found[name] = {"value": value, "source": source, "proof": "nccl log"}
            _hear(capture, found)
        if not known:
            found["*"] = {"value": None, "source": "unknown", "proof": None}
        result[title] = dict(sorted(found.items()))
    return result


def _source(name, value, applied, given, otherwise):
    if same(name, given.get(name), value):
        return "environment"
    return "sitecustomize" if same(name, applied.get(name), value) else otherwise


def same(name, asked, logged):
    """Whether NCCL's word for a value is the value asked for: it logs numbers as it reads them, and old levels as words."""
    if asked is None or asked == logged:
        return asked == logged
    number = nccl_effect.integer(asked)
    if name == LEVEL:
        return number is not None and number >= 0 and OLD_LEVELS[min(number, len(OLD_LEVELS) - 1)] == logged
    return number is not None and str(number) == logged


def _only_logged(capture, found):
    """{NAME: value} that NCCL has and that nothing else is known of."""
    return {name: value for name, value in capture["settings"].items() if name not in found and not (name == LEVEL and _without_p2p(found))}


def _without_p2p(found):
    """NCCL then looks at no level, and older ones log one that nobody has set."""
    return nccl_effect.integer(found.get("NCCL_P2P_DISABLE", {}).get("value")) == 1


def _hear(capture, found):
    """Lets NCCL's log have the last word about what was FOUND of one rank."""
    read_all = capture["complete"] and capture["ranks"] > 1
    for name, there in found.items():
        logged = capture["settings"].get(name)
        refused = next((line for line in capture["invalid"] if re.search(rf"\b{name}\b", line)), None)
        ignored = name == LEVEL and _without_p2p(found)
        if logged is not None and same(name, there["value"], logged):
            there["proof"] = "nccl log"
        elif logged is not None and not ignored:
            there["against"] = f"NCCL says {logged!r}, the process has {there['value']!r} (an NCCL environment plugin?)"
            there.update(value=logged, source="unknown", proof="nccl log")
        elif read_all and name in ALWAYS_LOGGED and there["value"] and not ignored:
            there["against"] = "NCCL never read it, says its log"
        if refused:
            there["against"] = f"NCCL says: {refused}"


def felt(settings, captures):
    """[reason] why NCCL's log shows that SETTINGS {NAME: value or None} are not felt; [] when it does not show that.

    A log that speaks against one of them is a reason; that a setting cannot have changed anything is one only when that holds for all
    (`nccl_effect.without_effect` says it of each).
    """
    idle = nccl_effect.without_effect(settings, captures)
    wanted = [name for name, value in settings.items() if value is not None and not name.startswith("NCCL_DEBUG")]
    all_idle = wanted and all(name in idle for name in wanted)
    return nccl_effect.speaks_against(settings, captures) + (list(dict.fromkeys(idle.values())) if all_idle else [])


def problems(expected, found, rank_count):
    """Why EXPECTED {NAME: value, or None for "not set"} is not proven in FOUND (of `effective`): [] when it is, on every rank."""
    return [*unknown(expected, found, rank_count), *contradictions(expected, found)]


def unknown(expected, found, rank_count):
    """The ranks of which EXPECTED can be said neither to be in force nor not to be."""
    if not expected:
        return []
    if len(found) < rank_count:
        return [f"{len(found)} of {rank_count} ranks could be looked at"]
    return [
        f"{title}: its environment cannot be read"
        for title, values in found.items()
        if "*" in values and not all(name in values for name in expected)
    ]


def contradictions(expected, found):
    """What is in FOUND and is not as EXPECTED, and what NCCL's log denies of it."""
    trouble = []
    for title, values in found.items():
        for name, value in sorted(expected.items()):
            there = values.get(name)
            if there is None and (value is None or "*" in values):
                continue
            if there is None:
                trouble.append(f"{title}: {name} is not set, asked for {value!r}")
            elif value is None or not same(name, value, there["value"]):
                asked = value if value is not None else "unset"
                trouble.append(f"{title}: {name} is {there['value']!r} (from {there['source']}), asked for {asked!r}")
            elif "against" in there:
                trouble.append(f"{title}: {name}: {there['against']}")
    return trouble
