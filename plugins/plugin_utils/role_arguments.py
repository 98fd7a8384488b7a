# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A role's variables against its argument specification, told in a sentence: Ansible's own check shows the whole specification as well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

ROLES = Path(__file__).resolve().parents[2] / "roles"


@lru_cache(maxsize=8)
def specification(role: str, entry: str = "main") -> dict[str, dict]:
    specs = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    return specs["argument_specs"][entry]["options"]


def typed(specification: Mapping[str, dict], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(VALUES with their types and with the defaults, sentences on what is none of the type or choices)."""
    result = ArgumentSpecValidator(dict(specification)).validate(dict(values))
    wrong = [
        message.removeprefix("value of ").rstrip(".").replace(". Supported parameters include:", " is not known; known are")
        for message in result.error_messages
    ]
    for name, value in values.items():
        if specification[name].get("type") in ("str", "path") and isinstance(value, (list, Mapping)):  # which Ansible turns into text
            wrong.append(f"{name} is a {type(value).__name__}; write it as text")
        if specification[name].get("type") == "list" and isinstance(value, str):
            # -e name=[] gives text, too. Ansible would split "a,b" here alone: the role's tasks would have its letters.
            wrong.append(f"{name} is text, not a list; say -e '{{\"{name}\": [...]}}'")
    return result.validated_parameters, [f"{message}." for message in wrong]
