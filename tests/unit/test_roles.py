# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for every role and playbook, read from their files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.parent for path in (ROOT / "roles").glob("*/tasks"))
FILES = sorted([*(ROOT / "roles").glob("*/tasks/*.yml"), *(ROOT / "playbooks").glob("*.yml")])
OPTIONAL = {"nccl", "tune"}  # factor variables, and those that the inventory gives, have no default: null is "no opinion"


def tasks(content, around=None):
    """(task, the block it is in or None) for each task below a list of plays, blocks or tasks."""
    for item in content or []:
        yield item, around
        for name in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
            yield from tasks(item.get(name), item if name in ("block", "rescue", "always") else None)


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_are_options_and_have_the_same_value(role):
    specs = load(role / "meta" / "argument_specs.yml")["argument_specs"]
    options = {name: option for entry in specs.values() for name, option in entry["options"].items()}
    defaults = load(role / "defaults" / "main.yml")
    assert set(defaults) <= set(options)
    if role.name not in OPTIONAL:
        own = {name for name, option in options.items() if name.startswith(f"{role.name}_") and not option.get("required")}
        assert own <= set(defaults)
    given = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: defaults[name] for name in given if name in defaults} == {name: given[name] for name in given if name in defaults}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_who_works_on_another_host_survives_that_it_is_away(path):
    """Else neither `rescue` nor `always` runs: Ansible takes the host out of the play."""
    for task, block in tasks(load(path)):
        if "delegate_to" in task and task["delegate_to"] != "localhost":
            assert task.get("ignore_unreachable") or (block or {}).get("ignore_unreachable"), task["name"]
            told = task["register"] in path.read_text(encoding="utf-8").split(f"register: {task['register']}", 1)[1]
            assert told or (block or {}).get("rescue"), f"{task['name']}: nobody looks whether it was reached"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_truth_is_asked_of_booleans(path):
    """`-e name=false` gives text, which Ansible refuses as a condition: a variable that stands alone needs `| bool`."""
    known = {name for role in ROLES for entry in load(role / "meta" / "argument_specs.yml")["argument_specs"].values()
             for name, option in entry["options"].items() if option.get("type") == "bool"}  # fmt: skip
    for task, _block in tasks(load(path)):
        conditions = [task.get("when"), (task.get("ansible.builtin.assert") or {}).get("that")]
        text = " ".join(str(condition) for condition in conditions if condition is not None)
        words = text.replace("(", " ( ").replace(")", " ) ").split()
        for at, word in enumerate(words):
            if word in known:
                assert words[at + 1 : at + 3] == ["|", "bool"] or words[at + 1 : at + 2] in (["=="], ["!="], ["is"]), (task["name"], word)
