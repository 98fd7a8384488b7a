# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NCCL catalogue: from role variables to NCCL settings, with everything that NCCL would silently do otherwise.

`check` is the one entry. What a single value means is in nccl_values, what values mean together and on a server in nccl_rules,
which have no work there in nccl_idle, what the server makes of them in nccl_server, the facts about 282 variables in data/nccl_params.yml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import nccl_idle
from . import nccl_rules as rules
from . import nccl_server as server_facts
from .nccl_names import NAME, catalogue, name_problem, profiles
from .nccl_values import Bad, Version, coerce, hint, integer, nearest, parse_version, plain_text, shown

UNSET = "unset"
CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")

# role variable -> the NCCL variables it sets; nccl_channels alone has a form of its own
VARIABLES: dict[str, tuple[str, ...]] = {
    "nccl_channels": CHANNELS,
    **{name.lower(): (name,) for name in (
        "NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MAX_CTAS", "NCCL_MIN_CTAS",
        "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")},
}
COMPOUND = ("nccl_profile", "nccl_extra")
FACTOR_VARIABLES = (*VARIABLES, *COMPOUND)


@dataclass
class Checked:
    """What the given variables come to.

    settings  {NCCL name: text, or None for "take it out"}: what differs from known-good as far as the variables say
    factors   {label: {NCCL name: text or None}}, in the order given: what a person would call one change each
    errors, warnings, notes   sentences that name the variable, what was found and what to do; notes need no action
    cannot_matter  why the settings cannot change the decode speed of this server (None: they can, or it is not known)
    replaces  {NCCL name: text} that SGLang itself would set where the variable is not given: the true baseline, not NCCL's default
    """

    settings: dict[str, str | None] = field(default_factory=dict)
    factors: dict[str, dict[str, str | None]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cannot_matter: str | None = None
    replaces: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return "error" if self.errors else "warning" if self.warnings else "ok"


class Claim(NamedTuple):
    """One NCCL variable as somebody gave it: for which factor, under which name in messages."""

    factor: str
    label: str
    name: str
    raw: Any


def check(
    given: Mapping[str, Any],
    *,
    nccl_version: str | None = None,
    sglang_version: str | None = None,
    server: Mapping[str, Any] | None = None,
    in_force: Mapping[str, str] | None = None,
) -> Checked:
    """Check role variables (or raw NCCL_ names) for one host; never raises for anything a user can write.

    None, "" and "none" are no opinion; "unset" takes a setting of known-good out. Without `nccl_version` only what holds for every
    version since 2.24 is an error. `server`: tp, pp, ep, dcp (sizes), link ('NVLink' | 'PCIe' | 'PCIe with P2P'), custom_all_reduce
    (default True), symm_mem, enable_nccl_nvls, enable_deterministic_inference, enable_torch_symm_mem, environment {NAME: text};
    None: not known. `in_force`: known-good's {NCCL name: text}, so that rules see the whole configuration.
    """
    version, sglang = parse_version(nccl_version), parse_version(sglang_version)
    checked = Checked()
    labels: dict[str, str] = {}
    for claim in _claims(given, in_force or {}, checked):
        _take(claim, version, checked, labels)
    if checked.settings:
        written = frozenset(name for name, label in labels.items() if label.endswith(name))
        _together(checked, labels, written, dict(in_force or {}), version, sglang, server)
    return checked


def rank_differences(by_rank: Mapping[Any, Mapping[str, str]]) -> list[str]:
    """Settings that differ between ranks of one communicator though NCCL needs them equal (else: hangs, size mismatches)."""
    names = sorted({name for values in by_rank.values() for name in values if catalogue()["params"].get(name, {}).get("all_ranks")})
    found = {name: {rank: values.get(name) for rank, values in by_rank.items()} for name in names}
    return [
        f"{name} differs between ranks ({', '.join(f'{rank}: {value}' for rank, value in values.items())}); set it alike on all."
        for name, values in found.items() if len(set(values.values())) > 1
    ]


# variables -> claims


def no_opinion(raw: Any) -> bool:
    return raw is None or raw == {} or (isinstance(raw, str) and raw.strip().lower() in ("", "none", "null"))


def _claims(given: Mapping[str, Any], in_force: Mapping[str, str], checked: Checked) -> Iterator[Claim]:
    for variable, raw in sorted(given.items(), key=lambda item: item[0] != "nccl_profile"):  # so that single variables win over it
        if variable.startswith("NCCL_"):
            if not _skipped(variable, raw):
                yield Claim(variable, variable, variable, raw)
        elif variable not in FACTOR_VARIABLES:
            checked.errors.append(_unknown_variable(variable))
        elif no_opinion(raw):
            continue
        elif variable == "nccl_profile":
            yield from _profile(raw, in_force, checked)
        elif variable == "nccl_extra":
            yield from _extra(raw, checked)
        elif variable == "nccl_channels":
            yield from _channels(raw, checked)
        else:
            yield Claim(variable, variable, VARIABLES[variable][0], raw)


def _skipped(name: str, raw: Any) -> bool:
    """NCCL itself takes the word "none" for some variables (plugins); there it is a value."""
    return no_opinion(raw) and not (raw == "none" and catalogue()["params"].get(name, {}).get("none_is_a_value"))


def _unknown_variable(variable: str) -> str:
    if not variable.lower().startswith("nccl"):
        return f"{variable}: not an NCCL setting; names begin with NCCL_."
    guess = nearest(variable, FACTOR_VARIABLES)
    if variable.upper() in catalogue()["params"]:
        return f"{variable}: no such variable; write nccl_extra: {{{variable.upper()}: ...}}."
    return f"{variable}: no such variable; " + (f"did you mean {guess}?" if guess else f"there are {', '.join(FACTOR_VARIABLES)}.")


def _profile(raw: Any, in_force: Mapping[str, str], checked: Checked) -> Iterator[Claim]:
    known = profiles()
    if not isinstance(raw, str) or raw not in known:
        checked.errors.append(f"nccl_profile: {shown(raw)} is not one of {', '.join(known)}{hint(str(raw), known)}")
        return
    checked.factors["nccl_profile"] = {}
    settings: dict[str, Any] = dict.fromkeys(in_force, UNSET) if known[raw].get("unset_others") else {}
    for name, value in (settings | known[raw]["settings"]).items():
        yield Claim("nccl_profile", f"nccl_profile ({raw})", name, value)


def _extra(raw: Any, checked: Checked) -> Iterator[Claim]:
    if not isinstance(raw, Mapping):
        checked.errors.append(f'nccl_extra: {shown(raw)} is not a dictionary; write {{"NCCL_DEBUG": "INFO"}} (with -e: as JSON).')
        return
    for name, value in raw.items():
        if not _skipped(str(name), value):
            yield Claim(str(name), f"nccl_extra: {name if str(name).isprintable() else ascii(name)}", str(name), value)


def _channels(raw: Any, checked: Checked) -> Iterator[Claim]:
    if raw == UNSET:
        yield from (Claim("nccl_channels", "nccl_channels", name, UNSET) for name in CHANNELS)
        return
    try:
        text = plain_text(raw)
        span = re.fullmatch(r" *([0-9]+) *- *([0-9]+) *", text)
        low, high = (integer(part, part) for part in span.groups()) if span else (1, integer(raw, text, " or a range such as 4-8"))
    except Bad as bad:
        checked.errors.append(f"nccl_channels: {bad}")
        return
    if span and low > high:
        checked.errors.append(f"nccl_channels: {shown(raw)} is upside down, and in NCCL the minimum wins; write {high}-{low}.")
    elif low < 1:
        yield Claim("nccl_channels", "nccl_channels", CHANNELS[1], low)  # refused there, with the range of this NCCL
    else:
        yield Claim("nccl_channels", "nccl_channels", CHANNELS[1], high)
        yield Claim("nccl_channels", "nccl_channels", CHANNELS[0], low)


# claims -> settings


def _take(claim: Claim, version: Version, checked: Checked, labels: dict[str, str]) -> None:
    """Check one claim by itself and add it."""
    name = claim.name
    value = None
    if (problem := name_problem(name, version)) and (claim.raw != UNSET or not NAME.fullmatch(name)):
        severity, text = problem
        getattr(checked, severity).append(f"{claim.label}: {text}")
        if severity == "errors":
            return
    if claim.raw != UNSET:
        try:
            found = coerce(name, claim.raw, catalogue()["params"].get(name, {"kind": "str"}), version)
        except Bad as bad:
            checked.errors.append(f"{claim.label}: {bad}")
            return
        value = found.text
        checked.warnings += [f"{claim.label}: {warning}" for warning in found.warnings]
    if name in checked.settings:
        if checked.settings[name] == value:
            return
        other = labels[name]
        if not other.startswith("nccl_profile"):
            checked.errors.append(f"{claim.label} and {other} give {name} different values ({value}, {checked.settings[name]}); keep one.")
            return
        checked.notes.append(f"{claim.label}: {value} takes the place of {checked.settings[name]} of {other}.")
        checked.factors["nccl_profile"].pop(name, None)
    checked.settings[name] = value
    labels[name] = claim.label
    checked.factors.setdefault(claim.factor, {})[name] = value


# settings together


def _together(
    checked: Checked, labels: Mapping[str, str], written: frozenset[str], in_force: dict[str, str],
    version: Version, sglang: Version, server: Mapping[str, Any] | None,
) -> None:
    """Add what the rules and the server say about the whole configuration."""
    sets = server_facts.sglang_sets(server, sglang)
    values = {found.name: found.value for found in sets if not found.always} | in_force | checked.settings
    values = _readable(values | {found.name: found.value for found in sets if found.always}, version)
    overwritten = {found.name: found for found in sets if found.always and checked.settings.get(found.name, found.value) != found.value}
    context = rules.Context(values, catalogue()["params"], version, sglang, server, written)
    lists = {rules.ERROR: checked.errors, rules.WARNING: checked.warnings, rules.NOTE: checked.notes}
    for rule in rules.RULES:
        for finding in rule(context):
            if given := [name for name in finding.names if name in checked.settings and name not in overwritten]:
                label = " and ".join(dict.fromkeys(labels[name] for name in given))
                lists[finding.severity].append(f"{label}: {finding.text}")
    checked.replaces = {found.name: found.value for found in sets if found.name in checked.settings and not found.always}
    by_label: dict[str, list[server_facts.Overwrite]] = {}
    for name, found in overwritten.items():
        by_label.setdefault(labels[name], []).append(found)
    for label, several in by_label.items():
        what = " and ".join(f"{found.name}={found.value}" for found in several)
        checked.warnings.append(f"{label}: is overwritten by SGLang, which sets {what} with {several[0].reason}; drop that or this.")
    idle = nccl_idle.idle(context, [name for name in checked.settings if name not in overwritten], in_force)
    _path(checked, server, overwritten, idle)


def _readable(values: Mapping[str, str | None], version: Version) -> dict[str, str]:
    """Without what is unset, and without what was already in force but is no value: known-good may hold anything."""
    params, readable = catalogue()["params"], {}
    for name, value in values.items():
        if value is not None and name in params:
            try:
                readable[name] = coerce(name, value, params[name], version).text
            except Bad:
                continue
    return readable


def _path(checked: Checked, server: Mapping[str, Any] | None, overwritten: Mapping[str, Any], idle: Mapping[str, str]) -> None:
    """Whether the settings as a whole can change what a decode step costs; each idle one is worth a note in any case."""
    who = ", ".join(checked.factors)
    felt = [name for name in checked.settings if name not in overwritten and name not in idle and not name.startswith("NCCL_DEBUG")]
    bypass, certain = server_facts.custom_all_reduce(server)
    if reason := server_facts.one_gpu(server):
        checked.cannot_matter = f"{who}: {reason}"
        checked.warnings.append(checked.cannot_matter)
    elif bypass and not all(name.startswith("NCCL_DEBUG") for name in checked.settings):
        checked.warnings.append(f"{who}: {bypass}")
        checked.cannot_matter = checked.warnings[-1] if certain else None
    if felt or checked.cannot_matter:
        checked.notes += idle.values()
    elif idle:
        checked.cannot_matter = f"{who}: {' '.join(idle.values())}"
        checked.warnings.append(checked.cannot_matter)
    elif overwritten:
        checked.cannot_matter = f"{who}: SGLang overwrites every setting given, so they cannot matter."
