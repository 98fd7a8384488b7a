# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server's flags, checked against what that very version of SGLang takes, before any host is touched.

`known` gives a version's flags out of data/sglang_flags, made from its wheel by tests/versions/flags. Of a version that is not there only
names are known, from the environment on the host. Old names and dead flags: data/sglang_renamed_flags.yml.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ..module_utils.server_command import flag_name, flag_value

DATA = Path(__file__).parent / "data"
READS = {"int": (int, "whole number"), "float": (float, "number"), "json": (json.loads, "JSON (as text, in quotes)")}
MOST_SHOWN = 8
CLOSE = 0.8  # below that names are alike only by chance: enable-ep-moe is not enable-eplb
# What has a variable of its own.
ELSEWHERE = {"host": "sglang_host", "port": "sglang_port", "model-path": "sglang_model_path"}


@lru_cache(maxsize=8)
def known(version: str) -> dict[str, dict] | None:
    """{flag: {takes (none, one, maybe, many), type? (int, float, json), choices?}} of SGLang VERSION, None where it is not on record."""
    path = DATA / "sglang_flags" / f"{version.partition('+')[0]}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@lru_cache(maxsize=1)
def changes() -> dict[str, dict]:
    return yaml.safe_load((DATA / "sglang_renamed_flags.yml").read_text(encoding="utf-8"))


def check_kept(given: Mapping[str, Any], version: str, table: Mapping[str, dict]) -> list[str]:
    """Sentences: why the flags GIVEN, which stand in a file that is not to be written anew, are none for SGLang VERSION."""
    found = []
    for name, value in given.items():
        if problem := _problem(name, value, version, table):
            renamed = changes()["renamed"].get(name, {}).get("to")
            found.append(f"SGLang {version} calls --{name} now --{renamed}." if renamed in table else problem)
    return found


def check(given: Mapping[str, Any], version: str, table: Mapping[str, dict], *, variable: str = "sglang_flags") -> dict[str, Any]:
    """{flags, notes, errors}: GIVEN flags as SGLang VERSION, which takes those of TABLE, wants them; old names replaced by new ones.

    Notes and errors are sentences for a person. A flag that is null or false is left out, but false is --no-NAME where there is such a one.
    """
    flags: dict[str, Any] = {}
    notes: list[str] = []
    errors: list[str] = []
    spelled: dict[str, str] = {}
    for raw_name, raw_value in given.items():
        if nested := _nested(raw_value):
            errors.append(f"{variable}: {raw_name} {nested}.")
            continue
        value = flag_value(raw_value)
        name = flag_name(raw_name)
        if raw_value is False and f"no-{name}" in table:
            name, value = f"no-{name}", True
        if value is None:
            continue
        name, value, note = _renamed(name, value, table)
        same = table.get(name, {}).get("same_as", name)
        notes += [f"{variable}: {note}"] if note else []
        if name in ELSEWHERE:
            errors.append(f"{variable}: {raw_name} is set by {ELSEWHERE[name]}; set that one.")
        elif same in spelled:
            errors.append(f"{variable}: {spelled[same]} and {raw_name} are the same flag, --{name}; keep one.")
        elif problem := _problem(name, value, version, table):
            errors.append(f"{variable}: {problem}")
        else:
            flags[name], spelled[same] = value, str(raw_name)
        if reason := changes()["dead"].get(name):
            notes.append(f"{variable}: --{name} does nothing: {reason}.")
    return {"flags": flags, "notes": notes, "errors": errors}


def _nested(value: Any) -> str | None:
    """What VALUE is or has that no argument can be, and what to do."""
    if isinstance(value, Mapping):
        return "is a mapping; write its value as text, in quotes"
    inner = any(one is None or isinstance(one, (bool, list, Mapping)) for one in value) if isinstance(value, list) else False
    return "has a mapping, a list, true, false or null in it; write each value as text, in quotes" if inner else None


def _takes_none(name: str) -> bool:
    """Whether the old flag NAME is a switch for one value of a new flag."""
    return "value" in changes()["renamed"].get(name, {})


def _renamed(name: str, value: Any, table: Mapping[str, dict]) -> tuple[str, Any, str | None]:
    """The flag's name and value of today, and a sentence where they are others."""
    change = changes()["renamed"].get(name)
    if change is None or change["to"] not in table or (_takes_none(name) and value is not True):
        return name, value, None
    new = change.get("value", change.get("values", {}).get(value, value) if isinstance(value, str) else value)
    shown = "" if new is True or new == value else f" {new}"
    return change["to"], new, f"--{name} is --{change['to']}{shown} in this SGLang, and is set so."


def _problem(name: str, value: Any, version: str, table: Mapping[str, dict]) -> str | None:
    if value is not True and (_takes_none(name) or table.get(name, {}).get("takes") == "none"):
        return f"--{name} takes no value, and {value!r} was given; write true or false, without quotes."
    if name not in table:
        close = _close(name, list(table), 1, CLOSE)
        return f"SGLang {version} has no --{name}" + (f"; did you mean --{close[0]}?" if close else ".")
    takes, choices = table[name].get("takes"), table[name].get("choices")
    if takes in ("one", "many") and (value is True or value == []):
        return f"--{name} needs a value."
    if takes in ("one", "maybe") and isinstance(value, list):
        return f"--{name} takes one value, and a list was given; write that value alone."
    several = isinstance(value, list) and len(value) > 1
    for one in value if isinstance(value, list) else [value]:
        if one is not True and not one.isprintable():
            return f"--{name}: its value has a line break or another control character."
        if choices and one is not True and one not in choices:
            return f"--{name}: {one!r} is none of its values; {_offer(one, choices)}"
        if one is not True and (kind := _misread(one, table[name].get("type"))):
            return f"--{name}: {one!r} is no {kind}{'' if takes != 'many' or several else '; write several as a list'}."
        if several and re.match(r"-(?![\d.])", one):
            return f"--{name}: {one!r} begins with a dash, which SGLang takes for another flag unless it is the only value."
    return None


def _close(wrong: str, among: Sequence[str], most: int, cutoff: float = 0.6) -> list[str]:
    """Those that begin as WRONG does, else those most like it."""
    longer = [one for one in among if wrong and one.lower().startswith(wrong.lower())]
    return longer[:most] or difflib.get_close_matches(wrong.lower(), among, n=most, cutoff=cutoff)


def _offer(wrong: str, choices: Sequence[str]) -> str:
    close = _close(wrong, choices, 3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    more = f" and {len(choices) - MOST_SHOWN} more" if len(choices) > MOST_SHOWN else ""
    return f"there are {', '.join(choices[:MOST_SHOWN])}{more}."


def _misread(text: str, kind: str | None) -> str | None:
    """What TEXT had to be and is not, as SGLang's own parser reads it."""
    if kind not in READS:
        return None
    read, words = READS[kind]
    try:
        read(text)
    except ValueError:
        return words
    return None
