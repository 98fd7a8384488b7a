# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue's data, and whether a version of NCCL reads a variable of some name (it reports no unknown one)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from .nccl_values import Version, at_least, hint, nearest, parse_version

DATA = Path(__file__).parent / "data"
NAME = re.compile(r"NCCL_[A-Z0-9_]+")


@lru_cache(maxsize=1)
def catalogue() -> dict[str, dict[str, Any]]:
    """data/nccl_params.yml: `params`, `removed`, `plugin_only`, `not_nccl_names`, `read_by_others`, each {NCCL name: facts}.

    Read once a process."""
    return _load("nccl_params.yml")


@lru_cache(maxsize=1)
def profiles() -> dict[str, dict[str, Any]]:
    """{profile: {about, settings {NCCL name: text}, unset_others}}."""
    return _load("nccl_profiles.yml")


def _load(name: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((DATA / name).read_text(encoding="utf-8"), Loader=loader)


def name_problem(name: str, version: Version) -> tuple[str, str] | None:
    """("errors" | "warnings", text) when this NCCL does not read a variable of this name, or may not."""
    known = catalogue()
    params, here = known["params"], f"NCCL {'.'.join(map(str, version))}" if version else "NCCL's version is not known here"
    if not NAME.fullmatch(name):
        meant = next((full for full in (name.upper(), f"NCCL_{name.upper()}") if full in params), None)
        ending = f"; did you mean {meant}?" if meant else "."
        return "errors", f"only names that begin with NCCL_ (capitals, digits, '_') belong here{ending}"
    told = known["not_nccl_names"].get(name) or known["read_by_others"].get(name)
    if told:
        guess = nearest(name, params, cutoff=0.8)
        ending = f"; nearest: {guess}." if guess and guess not in told else "."
        return "errors", f"NCCL reads no {name}, and never says so: {told}{ending}"
    if name in known["plugin_only"]:
        return "warnings", f"{name} is read by an optional plugin only, not by NCCL itself."
    if name in known["removed"]:
        return _removed(name, known["removed"][name], version, here)
    if name not in params:
        return "errors", f"NCCL has no {name}, and reports no unknown name{hint(name, params)}"
    since, gone_by = params[name].get("since"), params[name].get("gone_by")
    if since and not at_least(version, since):
        return "errors", f"{name} exists from NCCL {since} on; this is {here}, which would ignore it."
    if gone_by and at_least(version, gone_by, unknown=False):
        return "errors", f"{name} is gone in NCCL {gone_by}; this is {here}, which would ignore it."
    if version is None and (gone_by or at_least(parse_version(since), "2.28", unknown=False)):
        spans = [f"from {since} on" if since else "", f"before {gone_by}" if gone_by else ""]
        return "warnings", f"{name} exists only in NCCL {' and '.join(filter(None, spans))}, and {here}."
    return None


def unread(names: Iterable[str], version: Version) -> list[str]:
    """What is to be said of those of NAMES that begin with NCCL_ and that nobody reads: they were to set something, and do not."""
    candidates = sorted({name for name in names if name.startswith("NCCL_")} - set(catalogue()["read_by_others"]))
    return [text for kind, text in filter(None, (name_problem(name, version) for name in candidates)) if kind == "errors"]


def _removed(name: str, facts: Mapping[str, str], version: Version, here: str) -> tuple[str, str] | None:
    last = facts.get("last_seen")
    if last:
        there = version is not None and at_least(parse_version(last), ".".join(map(str, version)))
        if there:
            return None
        ending = f"was last seen in NCCL {last}"
        old = at_least(parse_version("2.24"), last)  # no server of today brings anything older
        if version or old:
            return "errors", f"{name} {ending}; this is {here}, which would ignore it."
        return "warnings", f"{name} {ending}; {here}."
    if version is not None and not at_least(version, facts["gone_by"]):
        return None
    return "errors", f"{name} was removed in NCCL {facts['gone_by']} and is ignored since; take it out."
