# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The zipapp of the supervisor: complete, the same bytes every time, and runnable by every Python of a target."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import files, payload
from ansible_collections.ringmaster.gpu.plugins.module_utils.state import State


def test_the_same_modules_give_the_same_bytes():
    assert payload.build() == payload.build()
    names = zipfile.ZipFile(io.BytesIO(payload.build())).namelist()
    assert {"__main__.py", "ringmaster_target/__init__.py", "ringmaster_target/supervisor.py"} <= set(names)


def test_it_is_installed_once_and_only_for_root(tmp_path):
    state = State(str(tmp_path / "state"))
    state.prepare()
    path = payload.install(state)
    before = os.stat(path)
    assert payload.install(state) == path
    assert (os.stat(path).st_mtime_ns, stat.S_IMODE(before.st_mode)) == (before.st_mtime_ns, 0o700)


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_recover_under_every_python(tmp_path, version):
    pythons = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if not pythons:
        pytest.skip(f"no Python {version}")
    state = State(str(tmp_path / "state"))
    state.prepare()
    changed = tmp_path / "sitecustomize.py"
    changed.write_bytes(b"former\n")
    changed.chmod(0o640)
    before = [files.snapshot(str(changed))]
    state.write_journal({"plan": "p", "since": "now", "unit": None, "unit_was_active": False, "last_version": 0, "before": before})
    changed.write_bytes(b"candidate\n")
    evil = tmp_path / "evil"  # what broke every other Python of this host must not reach the one that repairs it
    evil.mkdir()
    (evil / "sitecustomize.py").write_text("raise SystemExit(9)\n")
    command = [pythons[0], "-S", "-E", payload.install(state), "recover", state.directory]
    done = subprocess.run(command, env={"PYTHONPATH": str(evil)}, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"restored {changed}\n"
    assert (changed.read_bytes(), stat.S_IMODE(changed.stat().st_mode), state.journal()) == (b"former\n", 0o640, None)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout.strip()) == (0, "")


def test_recover_leaves_a_running_plan_alone(tmp_path):
    state = State(str(tmp_path / "state"))
    state.prepare()
    journal = {"plan": "p", "since": "now", "unit": None, "unit_was_active": False, "last_version": 0, "before": [
        {"path": str(tmp_path / "a"), "content": base64.b64encode(b"x").decode(), "mode": 0o600, "uid": 0, "gid": 0, "mtime_ns": 0}]}
    with state.take_lock({"who": "ada", "plan": "p", "since": "now"}):
        state.write_journal(journal)
        command = ["python3", "-S", "-E", payload.install(state), "recover", state.directory]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "ada runs plan p" in done.stderr
        assert json.dumps(state.journal(), sort_keys=True) == json.dumps(journal, sort_keys=True)
        assert not (tmp_path / "a").exists()
