# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a user gave, the inventory and a look at the host to the plan of a run. Pure."""

from __future__ import annotations

import contextlib
import copy
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.redaction import redact
from ansible_collections.ringmaster.gpu.plugins.module_utils.server_command import flag_int, flag_name, flag_value

from . import blocks, catalogue, nccl_names
from .nccl_values import parse_version

# Besides the NCCL variables of the catalogue. Not sglang_flags itself: as an extra variable it would replace the inventory's whole.
SERVER_FACTORS = ("tune_flags", "tune_environment")
FLAG_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_FACTORS = {
    "host": "trials listen on 127.0.0.1",
    "port": "trials listen on tune_port",
    "model-path": "another model is another question; set sglang_model_path and start from there",
    "help": "it starts no server",
    "version": "it starts no server",
}
OURS = ("PYTHONPATH", "SPT_NOENV")
FACTOR_VARIABLES = (*catalogue.FACTOR_VARIABLES, *SERVER_FACTORS)


@dataclass
class Factor:
    """One change in a person's eyes: what it is called, and the configuration parts it sets (None takes one out)."""

    label: str
    nccl: dict[str, str | None] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    inventory: dict[str, Any] = field(default_factory=dict)  # variables that make it permanent
    cannot_matter: str | None = None


@dataclass
class Resolved:
    """What is to be measured: `factors` (what differs from known-good), `in_force` (given, but there already), and what was found wrong."""

    factors: list[Factor] = field(default_factory=list)
    in_force: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    drift: list[str] = field(default_factory=list)


def server_facts(configuration: Mapping[str, Any], link: str | None) -> dict[str, Any]:
    """What the catalogue's rules want to know of a server."""
    server = configuration["server"]
    flags = {name.replace("-", "_"): value for name, value in server["flags"].items()}
    return {
        **flags,
        "tp": flag_int(server, "tp-size", 1),
        "pp": flag_int(server, "pp-size", 1),
        "ep": flag_int(server, "ep-size", 1),
        "dcp": flag_int(server, "dcp-size", 1),
        "custom_all_reduce": not server["flags"].get("disable-custom-all-reduce"),
        "symm_mem": bool(server["flags"].get("enable-symm-mem")),
        "link": link,
        "environment": configuration["environment"],
    }


def nccl_in_force(configuration: Mapping[str, Any]) -> dict[str, str]:
    """{NAME: value} that a server of CONFIGURATION has: by its environment, which wins, or by sitecustomize."""
    in_environment = {name: value for name, value in configuration["environment"].items() if name.startswith("NCCL_")}
    return {**configuration["nccl"]["settings"], **in_environment}


def as_mapping(name: str, value: Any) -> dict[str, Any]:
    """A dict variable that may also be given as text, as `-e` does: "a=1 b" is {a: "1", b: True}."""
    if value is None or value == "":
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):  # -e name='{"a": 1}' arrives as text
        with contextlib.suppress(yaml.YAMLError):
            loaded = yaml.safe_load(value)
            if isinstance(loaded, dict):
                return loaded
    if isinstance(value, str):
        try:
            words = [word.partition("=") for word in shlex.split(value)]
        except ValueError as error:
            raise RingmasterError(f"{name} cannot be read as text: {error}.", "Quote it as a shell would.") from error
        switches = {} if name.endswith("_environment") else {"true": True, "false": False}  # what a variable has is text
        return {key.lstrip("-"): (switches.get(text.lower(), text) if sign else True) for key, sign, text in words}
    raise RingmasterError(
        f"{name} is a {type(value).__name__}; it has to be a mapping.",  # its value may be a secret
        f"Write -e '{{\"{name}\": {{\"name\": \"value\"}}}}' or -e {name}=name=value.",
    )


def resolve(given: Mapping[str, Any], inventory: Mapping[str, Any], target: Mapping[str, Any], *, nccl_version: str | None) -> Resolved:
    """GIVEN: factor variables of this run. INVENTORY: those of the inventory. TARGET: what target_info found."""
    resolved = Resolved()
    known_good = target["configuration"]
    of_server = (*_flag_factors(given, resolved), *_environment_factors(given, resolved))
    for factor in (*_nccl_factors(given, target, nccl_version, resolved), *of_server):
        if _is_in_force(factor, known_good):
            resolved.in_force.append(factor.label)
        else:
            resolved.factors.append(factor)
    resolved.drift += _drift(inventory, known_good, nccl_version)
    return resolved


def _nccl_factors(given: Mapping[str, Any], target: Mapping[str, Any], nccl_version: str | None, resolved: Resolved) -> Iterator[Factor]:
    in_force = nccl_in_force(target["configuration"])
    checked = catalogue.check(
        {name: value for name, value in given.items() if name in catalogue.FACTOR_VARIABLES},
        nccl_version=nccl_version,
        sglang_version=target["engine"]["sglang"],
        server=server_facts(target["configuration"], target["link"]),
        in_force=in_force,
    )
    resolved.errors += checked.errors
    resolved.warnings += checked.warnings
    ignored = nccl_names.unread(in_force, parse_version(nccl_version))
    resolved.warnings += [f"Known-good has what nobody reads: {text}" for text in ignored]
    for name, settings in checked.factors.items():  # a variable, or a raw NCCL name out of nccl_extra
        value = settings[name] if name.startswith("NCCL_") else given[name]
        permanent = {"nccl_extra": {name: value}} if name.startswith("NCCL_") else {name: value}
        yield Factor(f"{name}={value}", nccl=settings, inventory=permanent, cannot_matter=checked.cannot_matter)


def _flag_factors(given: Mapping[str, Any], resolved: Resolved) -> Iterator[Factor]:
    for name, raw in as_mapping("tune_flags", given.get("tune_flags")).items():
        flag, value = flag_name(name), flag_value(raw)
        problem = _misfit(flag, raw, FLAG_NAME)
        if problem:
            resolved.errors.append(f"tune_flags: {problem}")
        elif flag == "nnodes" and str(value) != "1":
            resolved.errors.append(f"tune_flags: --nnodes {value}: groups of several nodes are not supported yet; measure one node.")
        elif flag in NO_FACTORS:
            resolved.errors.append(f"tune_flags: --{flag} is no factor: {NO_FACTORS[flag]}.")
        else:
            shown = redact({flag: value})[flag]
            label = f"--{flag}" if value is True else f"--{flag} {'(removed)' if value is None else shown}"
            yield Factor(label, flags={flag: value}, inventory={"sglang_flags": {flag: shown}})


def _environment_factors(given: Mapping[str, Any], resolved: Resolved) -> Iterator[Factor]:
    for name, raw in as_mapping("tune_environment", given.get("tune_environment")).items():
        problem = _misfit(name, raw, VARIABLE_NAME)
        if problem:
            resolved.errors.append(f"tune_environment: {problem}")
        elif name in OURS or name.startswith("RINGMASTER_"):
            resolved.errors.append(f"tune_environment: {name} is Ringmaster's own: its proof and its clean-up rest on it.")
        elif name.startswith("NCCL_"):
            resolved.errors.append(f"tune_environment: {name} is an NCCL setting. Give it as nccl_extra, so that it is checked.")
        else:
            value = None if raw is None else str(raw)
            shown = redact({name: value})[name]
            label = f"{name}={'(removed)' if value is None else shown}"
            yield Factor(label, environment={name: value}, inventory={"sglang_environment": {name: shown}})


def _misfit(name: str, value: Any, pattern: re.Pattern[str]) -> str | None:
    """Why NAME and VALUE cannot go onto a command line or into an environment."""
    if not pattern.fullmatch(name):
        return f"{name!r} is no name of one."
    if isinstance(value, Mapping) or any(ord(character) < 32 for character in str(value)):
        return f"the value of {name} is {value!r}; it has to be plain text on one line."
    return None


def _is_in_force(factor: Factor, known_good: Mapping[str, Any]) -> bool:
    pairs = (
        (factor.nccl, nccl_in_force(known_good)),
        (factor.flags, known_good["server"]["flags"]),
        (factor.environment, known_good["environment"]),
    )
    return all(there.get(name) == value for wanted, there in pairs for name, value in wanted.items())


def _drift(inventory: Mapping[str, Any], known_good: Mapping[str, Any], nccl_version: str | None) -> list[str]:
    """Where the inventory asks for something else than known-good has. Reported; never a factor."""
    lines = []
    wishes = {name: value for name, value in inventory.items() if name in catalogue.FACTOR_VARIABLES}
    wanted = catalogue.check(wishes, nccl_version=nccl_version)
    for name, value in wanted.settings.items():
        there = nccl_in_force(known_good).get(name)
        if there != value:
            lines.append(f"The inventory asks for {name}={value}, known-good has {'it unset' if there is None else there}.")
    flags = {flag_name(name): flag_value(value) for name, value in as_mapping("sglang_flags", inventory.get("sglang_flags")).items()}
    for name, value in flags.items():
        there = known_good["server"]["flags"].get(name)
        if there != value:
            lines.append(f"The inventory asks for --{name} {value}, known-good has {'no such flag' if there is None else there}.")
    return lines


def overlay(known_good: Mapping[str, Any], factors: list[Factor]) -> dict[str, Any]:
    """The candidate: known-good with FACTORS on top."""
    candidate = copy.deepcopy(dict(known_good))
    candidate["label"] = ", ".join(factor.label for factor in factors)
    nccl, flags, environment = candidate["nccl"], candidate["server"]["flags"], candidate["environment"]
    unset, own = set(candidate.get("unset", [])), set(candidate.get("own_environment", []))
    removed = set(nccl.get("removed", []))
    for factor in factors:
        for name, value in factor.nccl.items():
            # A value in the process environment would win over sitecustomize: it has to go from there.
            if environment.pop(name, None) is not None:
                unset.add(name)
            _set(nccl["settings"], name, value)
            removed = removed | {name} if value is None else removed - {name}
        for name, value in factor.flags.items():
            _set(flags, name, value)
        for name, value in factor.environment.items():
            _set(environment, name, value)
            unset = unset | {name} if value is None else unset - {name}
            own = own - {name} if value is None else own | {name}
    candidate["unset"], candidate["own_environment"], nccl["removed"] = sorted(unset), sorted(own), sorted(removed)
    return candidate


def _set(mapping: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        mapping.pop(name, None)
    else:
        mapping[name] = value


def steps(starts: int, max_starts: int, seed: int) -> list[dict[str, Any]]:
    """The order of launches. From block STARTS + 1 on, the controller is asked before each block whether it is still needed."""
    planned = blocks.order(max_starts, seed=seed)
    asked: set[int] = set()
    for step in planned:
        block = step["block"]
        if block is not None and block > starts and block not in asked:
            asked.add(block)
            step["ask"] = True
    return planned


def inventory_lines(factors: list[Factor]) -> list[str]:
    """Lines of YAML that make FACTORS permanent."""

    merged: dict[str, Any] = {}
    for factor in factors:
        for name, value in factor.inventory.items():
            if isinstance(value, dict):
                merged.setdefault(name, {}).update(value)
            else:
                merged[name] = int(value) if isinstance(value, str) and value.isdecimal() else value  # -e gives text
    return yaml.safe_dump(merged, sort_keys=True, default_flow_style=False).splitlines()
