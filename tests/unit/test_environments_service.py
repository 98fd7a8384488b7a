# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is found to differ between a running unit and its next start."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import environments_service, units

AGE_S = 1000


@pytest.fixture
def look(tmp_path, monkeypatch):
    """look() at a unit of whose start systemd tells STARTED_US; the files that make it were all written long before."""
    files = {"unit": tmp_path / "a.service", "first": tmp_path / "10.conf", "second": tmp_path / "20.conf"}
    files.update(own=tmp_path / "own.env", another=tmp_path / "b.env")
    now = time.time()
    for path in files.values():
        path.write_text("")
        os.utime(path, (now - 2 * AGE_S, now - 2 * AGE_S))

    def systemctl(*words, **more):
        if not set(words) <= {"show", "a.service"} | {word for word in words if word.startswith("--property=")}:
            return ""  # an option that this systemd does not have yet
        lines = ["LoadState=loaded", "ActiveState=active", f"MainPID={os.getpid()}", f"FragmentPath={files['unit']}"]
        lines += [f"DropInPaths={files['first']} {files['second']}", f"EnvironmentFiles={files['own']} (ignore_errors=no)"]
        lines += [f"EnvironmentFiles={tmp_path}/b*.env (ignore_errors=yes)", f"ExecMainStartTimestampMonotonic={look.started_us}"]
        return "\n".join(lines) + "\n"

    def look(started_us=None):
        look.started_us = int((time.clock_gettime(time.CLOCK_MONOTONIC) - AGE_S) * 1e6) if started_us is None else started_us
        return environments_service.look("a", str(tmp_path / "home"))["restart_due"]

    look.files = files
    monkeypatch.setattr(units, "available", lambda: True)
    monkeypatch.setattr(units, "systemctl", systemctl)
    return look


@pytest.mark.parametrize("name", ["unit", "first", "second", "own", "another"])
def test_a_file_that_changed_since_the_start(look, name):
    assert look() == []
    os.utime(look.files[name])
    assert look() == [f"{look.files[name]} changed since it was started"]
    assert look(0) == []  # a start of which systemd does not tell yet is one of this moment


@pytest.mark.parametrize(("after_s", "count"), [(-5, 0), (0.5, 0), (5, 1)])
def test_a_second_more_or_less_is_no_change(look, after_s, count):
    written = time.time() - AGE_S + after_s
    os.utime(look.files["unit"], (written, written))
    assert len(look()) == count


def test_a_kept_command_that_nobody_can_complete_is_taken_as_it_stands(tmp_path, monkeypatch):
    path = tmp_path / "50-ringmaster.conf"
    path.write_text("[Service]\n ExecStart = /opt/bin/python -m sglang.launch_server \\\n; --tp 4\n --dp ${DP} \\\n  --tp 2\n")
    monkeypatch.setattr(units, "drop_in_path", lambda unit: str(path))
    assert environments_service.kept_flags("a") == {"dp-size": "${DP}", "tp-size": "2"}
