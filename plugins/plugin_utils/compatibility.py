# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether GPUs, driver, CUDA, torch, NCCL, FlashInfer, SGLang, its flags and Python go together, by the rows of the data. Pure.

A combination that cannot work is refused with the row and its source; what the table does not know is a warning, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .compatibility_facts import Facts, Known, data, facts_of, version

REFUSED, WARNING = "refused", "warning"
TERM = re.compile(r"(==|!=|<=|>=|<|>)\s*([^\s,]+)")
FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Finding:
    """One row that holds: `text` has the values that were found, `change` names the variables to set."""

    row: str
    severity: str
    text: str
    change: str
    source: str

    def __str__(self) -> str:
        return " ".join(filter(None, [self.text, self.change, f"[{self.row}{self.source and f': {self.source}'}]"]))

    as_dict = asdict


def check(combination: Mapping[str, Any]) -> list[Finding]:
    """What is to be said of a COMBINATION, refusals first; [] when all is well. Never raises for anything a user can write.

    Any of these may be given: `gpus` (names, or dicts as pcie_info, gpu_device_info and target_info have them), `capability`
    (["12.0", ...], in the same order), `gpu_count`, `nvlink` (between all of them; None: not known), `driver`, `cuda` (toolkit), `torch`,
    `torch_cuda` (that torch is built for), `nccl`, `flashinfer`, `sglang`, `python`, `flags` {name: value} of the server, `patches` (of
    SGLang's sources), `host` (its name, for the text). None and "" are "not known".
    """
    facts = facts_of(combination)
    patches = _of_sglang(combination.get("patches") or ())
    found = [_found(row, facts, patches) for row in data()["rows"]]
    unknown = [Finding(row, WARNING, _sentence(data()["unknown"][row].format_map(fields)), "", "") for row, fields in facts.unknown]
    return sorted([*filter(None, found), *unknown], key=lambda finding: finding.severity != REFUSED)


def refused(findings: Iterable[Finding], accepted: Iterable[str] = ()) -> list[Finding]:
    """Those of FINDINGS that forbid to go on: ACCEPTED are ids of rows that somebody takes upon himself."""
    taken = set(accepted)
    return [finding for finding in findings if finding.severity == REFUSED and finding.row not in taken]


def of_target(host: str, target: Mapping[str, Any], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The combination of HOST as target_info found it, with CONFIGURATION's server on it."""
    gpus, engine, link = target.get("gpus") or [], target["engine"], target.get("link")
    return {
        "host": host,
        "gpus": gpus,
        "driver": gpus[0].get("driver") if gpus else None,
        "nvlink": None if link is None else link == "NVLink",
        "flags": configuration["server"]["flags"],
        "patches": configuration.get("patches"),
        "torch_cuda": engine.get("cuda"),
        **{name: engine.get(name) for name in ("sglang", "torch", "nccl", "flashinfer")},
    }


def judge(host: str, target: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(errors, warnings) about running CANDIDATE on HOST. What holds of its known-good too is in force there, so it is no error."""
    findings = check(of_target(host, target, candidate))
    fatal = refused(findings, (finding.row for finding in check(of_target(host, target, target["configuration"]))))
    said = [f"{finding}{' Known-good has that, too.' * (finding.severity == REFUSED)}" for finding in findings if finding not in fatal]
    return [str(finding) for finding in fatal], said


def _of_sglang(patches: Iterable[Any]) -> list[str]:
    """Names of those PATCHES that are to be on SGLang's own sources."""
    listed = [patch if isinstance(patch, Mapping) else {"name": patch} for patch in patches]
    return [str(one.get("name")) for one in listed if one.get("state") != "absent" and one.get("package", "sglang") == "sglang"]


def _found(row: Mapping[str, Any], facts: Facts, patches: list[str]) -> Finding | None:
    """ROW's finding: of the first GPU, and the first CUDA, of which it holds."""
    flag = _flag(row["when"].get("flags"), facts.flags)
    if "flags" in row["when"] and flag is None or any(facts.flags.get(name) for name in row.get("no_flags", ())):
        return None
    asked = " ".join(f"{{{name}}}{constraint}" for part in ("when", "unless") for name, constraint in row.get(part, {}).items())
    gpus = facts.gpus if "{gpu_" in asked else [{}]
    runtimes = facts.runtimes if "{runtime_" in asked else [{}]
    for here in ({**facts.of, **gpu, **runtime} for gpu in gpus for runtime in runtimes):
        if _holds(row["when"], here) and not ("unless" in row and _holds(row["unless"], here)):
            words = {**here, "host": facts.host, "flag": flag}
            word, text, change = row.get("patchable"), _sentence(row["text"].format_map(words)), row["change"].format_map(words)
            meant = [name for name in patches if word and word in name]
            if meant:
                return Finding(row["id"], WARNING, f"{text} Patch {', '.join(meant)} may change that.", change, sources(row))
            change += f" A patch that changes this has {word!r} in its name." if word and patches else ""
            return Finding(row["id"], row["severity"], text, change, sources(row))
    return None


def sources(row: Mapping[str, Any]) -> str:
    """Where ROW, or a table, has its facts from."""
    return "; ".join(f"{data()['sources'][name]['what']} <{data()['sources'][name]['url']}>" for name in row["source"])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith(("a ", "the ")) else text


def _flag(wanted: Mapping[str, Any] | None, flags: Mapping[str, Any]) -> str | None:
    """The first of FLAGS that is WANTED, as it stands on a command line."""
    for name, values in (wanted or {}).items():
        value = flags.get(name)
        if value is not None and (values is True or value in values):
            return f"--{name}" if value is True else f"--{name} {value}"
    return None


def _holds(condition: Mapping[str, Any], facts: Mapping[str, Known]) -> bool:
    """Whether all of CONDITION is known to hold."""
    return all(name in facts and _satisfies(facts[name], constraint, facts) for name, constraint in condition.items() if name != "flags")


def _satisfies(known: Known, constraint: str, facts: Mapping[str, Known]) -> bool:
    if any(name not in facts for name in FIELD.findall(constraint)):
        return False
    terms = FIELD.sub(lambda match: facts[match[1]].value, constraint)
    holds = all(_compares(known.value, operator, bound) for operator, bound in TERM.findall(terms))
    return holds != terms.startswith("not ")


def _compares(value: str, operator: str, bound: str) -> bool:
    have = version(value)
    if bound.endswith(".*"):
        prefix = tuple(int(part) for part in bound[:-2].split("."))
        same = (have.release + (0,) * len(prefix))[: len(prefix)] == prefix
        return same == (operator == "==")
    want = version(bound)
    return {"==": have == want, "!=": have != want, "<": have < want, "<=": have <= want, ">": have > want, ">=": have >= want}[operator]
