# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A role's templates and variables as Ansible renders them, and plays that are to be refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def play(playbook, tmp_path, variables, rc=0):
    """What ansible-playbook prints for PLAYBOOK on localhost."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", str(playbook)]
    variables = {"ansible_python_interpreter": sys.executable, **variables}
    environment = {
        **os.environ,
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "tmp"),
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run([*command, "-e", json.dumps(variables)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout + done.stderr


def write_play(tmp_path, tasks, **more):
    playbook = tmp_path / "play.yml"
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks, **more}]))
    return playbook


def files_of(role):
    return [str(path) for path in (role / "defaults/main.yml", role / "vars/main.yml") if path.exists()]


def rendered(role, name, tmp_path, **variables):
    """A template of ROLE (its directory) as Ansible renders it."""
    return renderings(role, name, tmp_path, [variables])[0]


def renderings(role, name, tmp_path, cases):
    """[text] of a template of ROLE for each of the CASES (dicts of variables)."""
    outs = [tmp_path / f"out{number}" for number in range(len(cases))]
    tasks = [{"ansible.builtin.template": {"src": str(role / "templates" / name), "dest": str(out)}, "vars": case}
             for out, case in zip(outs, cases, strict=True)]  # fmt: skip
    play(write_play(tmp_path, tasks, vars_files=files_of(role)), tmp_path, {})
    return [out.read_text() for out in outs]


def values(role, names, tmp_path, cases):
    """[{name: value}] of a role's variables, for each of the CASES (dicts of variables)."""
    wanted = "{{ {" + ", ".join(f"'{name}': {name}" for name in names) + "} | to_json }}"
    tasks = [{"ansible.builtin.copy": {"content": wanted, "dest": str(tmp_path / f"case{number}"), "mode": "0600"}, "vars": case}
             for number, case in enumerate(cases)]  # fmt: skip
    play(write_play(tmp_path, tasks, vars_files=files_of(role)), tmp_path, {})
    return [json.loads((tmp_path / f"case{number}").read_text()) for number in range(len(cases))]


def refusals(role, wrong, tmp_path):
    """[what is printed] for each of WRONG (dicts of variables), all of which ROLE has to refuse."""
    tasks = [
        {
            "block": [{"ansible.builtin.include_role": {"name": role}, "vars": variables}],
            "rescue": [{"ansible.builtin.debug": {"msg": f"refused {number}"}}],
        }
        for number, variables in enumerate(wrong)
    ]
    output = play(write_play(tmp_path, tasks), tmp_path, {})
    parts = re.split(r"msg: refused \d+", output)
    assert len(parts) == len(wrong) + 1, output
    assert "Traceback" not in output
    return [" ".join(part.split()) for part in parts[:-1]]
