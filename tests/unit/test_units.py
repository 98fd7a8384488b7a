# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drop-ins and what is read out of units."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import units

WORDS = [
    "/opt/sg lang/bin/python", "-m", "sglang.launch_server", "--json-model-override-args", '{"a": "b\'s", "c": [1, 2]}', "--chat-template",
    "50%h $HOME ${X} $$", "--tokenizer-path", "C:\\dir\\n", "--served-model-name", "", "--reasoning-parser", "a;b # c", "--x", "äö",
]  # fmt: skip
ENVIRONMENT = {"A": 'say "hi" 100% $HOME \\ end', "PYTHONPATH": "/var/lib/ringmaster/site:/x y", "EMPTY": ""}


def lines_of(text, name):
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")]


def test_a_command_survives_the_way_through_a_drop_in():
    reset, command = lines_of(units.drop_in(WORDS, {}, []), "ExecStart")
    assert reset == ""
    assert [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(command)] == WORDS


def test_an_environment_survives_too_and_its_dollars_are_left_alone():
    text = units.drop_in(["/bin/true"], ENVIRONMENT, ["NCCL_B", "NCCL_A"])
    found = [shlex.split(value.replace("%%", "%")) for value in lines_of(text, "Environment")]
    assert found == [[f"{name}={value}"] for name, value in sorted(ENVIRONMENT.items())]
    assert lines_of(text, "UnsetEnvironment") == ["NCCL_A", "NCCL_B"]


def test_a_line_break_does_not_break_the_line():
    text = units.drop_in(["/bin/echo", "two\nlines"], {"A": "two\nlines"}, [])
    assert '"/bin/echo" "two\\nlines"' in text
    assert 'Environment="A=two\\nlines"' in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_itself_takes_the_drop_in(tmp_path):
    unit, directory = tmp_path / "server.service", tmp_path / "server.service.d"
    unit.write_text("[Unit]\nDescription=x\nDefaultDependencies=no\n[Service]\nExecStart=/bin/false\n")
    directory.mkdir()
    text = units.drop_in(["/bin/echo", *WORDS[1:]], ENVIRONMENT, ["NCCL_A"])
    (directory / "50-ringmaster.conf").write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    about_it = [line for line in done.stderr.splitlines() if "50-ringmaster" in line or "server.service" in line]
    assert about_it == []
    (directory / "50-ringmaster.conf").write_text(text + 'ExecStart="unfinished\n')  # it does look
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert "50-ringmaster" in done.stderr


def test_an_environment_file(tmp_path):
    path = tmp_path / "env"
    path.write_text("# comment\n; another\nA=1\nB=\"two words\"\nC='x y'\n  D=4  \nnot a pair\n")
    assert units._environment_file(str(path)) == {"A": "1", "B": "two words", "C": "x y", "D": "4"}
    assert units._environment_file(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(("name", "full"), [("sglang", "sglang.service"), ("a.service", "a.service"), ("sglang@1", "sglang@1.service")])
def test_unit_name(name, full):
    assert units.unit_name(name) == full


SERVER = ["-m", "sglang.launch_server", "--model-path", "/m"]


@pytest.mark.parametrize(
    ("program", "written", "live", "found"),
    [
        ("python", SERVER, ["/env/bin/python", *SERVER], "launcher"),  # what the live process is came from it
        ("python", SERVER, ["/env/bin/python", *SERVER, "--tp-size", "2"], "launcher"),  # flags changed since: the live ones count
        ("python", SERVER, None, "launcher"),
        ("python", SERVER, ["sglang::scheduler"], "live"),
        ("start", SERVER, ["/env/bin/python", *SERVER], "live"),  # a script that may do anything
        (None, SERVER, ["/env/bin/python", *SERVER], "live"),
    ],
)
def test_a_launcher_is_what_a_unit_runs(tmp_path, monkeypatch, program, written, live, found):
    launcher = "/usr/bin/python3"
    if program:
        launcher = str(tmp_path / program)
        (tmp_path / program).write_text("#!/bin/sh\nexec /env/bin/python \"$@\"\n")
    monkeypatch.setattr(units, "systemctl", lambda *words, **more: f"[Service]\nExecStart={units.command_line([launcher, *written])}\n")
    monkeypatch.setattr(units.procfs, "read", lambda pid: live and object())
    monkeypatch.setattr(units.procfs, "command_line", lambda pid: live)
    command = units.command("sglang", {"MainPID": "7" if live else "0"})
    assert command == ([launcher, *(live or ["", *written])[1:]] if found == "launcher" else live)


def test_a_unit_whose_quotes_do_not_close_runs_nothing():
    assert units.exec_start('[Service]\nExecStart=/bin/a b\nExecStart="/bin/a\n') == []
    assert units.exec_start("[Service]\nExecStart=\nExecStart=-/bin/a \\\n  50%% $$x\n") == ["/bin/a", "50%", "$x"]


@pytest.mark.parametrize(
    ("state", "pid", "up"),
    [
        ("active", "4711", True),
        ("activating", "4711", True),
        ("activating", "0", False),  # auto-restart: it ended, and waits for its next start
        ("deactivating", "4711", False),
        ("failed", "0", False),
        ("inactive", "0", False),
    ],
)
def test_what_is_up_has_a_process(state, pid, up):
    assert units.is_up({"ActiveState": state, "MainPID": pid}) is up
    assert units.is_up(None) is False
