# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drop-ins and what is read out of units."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import units
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

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


def test_the_environment_of_a_stopped_unit(tmp_path, monkeypatch):
    for name, text in {
        "a.env": "A=a\nB=a\n",
        "c1.env": "B=c\nINVOCATION_ID=1\n",
        "c2.env": "C=caf\u00e9\n",
        "d (1).env": "D=it's\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
    lines = ["LoadState=loaded", "MainPID=0", 'Environment="A={\\"a\\": 1}" "E=\\$HOME x" F=g', "Id=a=b"]
    lines += [f"EnvironmentFiles={tmp_path}/{name} (ignore_errors=no)" for name in ("a.env", "none.env", "c*.env", "d (1).env")]
    monkeypatch.setattr(units, "available", lambda: True)
    monkeypatch.setattr(units, "systemctl", lambda *words, **more: "\n".join(lines) + "\n")
    found = units.environment(units.show("a"))
    assert found == {"A": "a", "B": "c", "C": "caf\ufffd", "D": "it's", "E": "$HOME x", "F": "g"}
    del lines[4]
    assert units.environment(units.show("a"))["A"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("sglang", "sglang.service"),
        ("a.service", "a.service"),
        ("sglang@1", "sglang@1.service"),
        ("sglang-kimi-k2.5", "sglang-kimi-k2.5.service"),  # as systemctl takes it
        ("sglang@k2.5.service", "sglang@k2.5.service"),
        ("sglang.socket", "sglang.socket"),
    ],
)
def test_unit_name(name, full):
    assert units.unit_name(name) == full
    assert {units.drop_in_path(name).split("/")[4], units._hold_path(name).split("/")[4]} == {f"{full}.d"}


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
        (tmp_path / program).write_text('#!/bin/sh\nexec /env/bin/python "$@"\n')
    monkeypatch.setattr(units, "systemctl", lambda *words, **more: f"[Service]\nExecStart={units.command_line([launcher, *written])}\n")
    monkeypatch.setattr(units.procfs, "read", lambda pid: live and object())
    monkeypatch.setattr(units.procfs, "command_line", lambda pid: live)
    command = units.command("sglang", {"MainPID": "7" if live else "0"})
    assert command == ([launcher, *(live or ["", *written])[1:]] if found == "launcher" else live)


@pytest.mark.parametrize("open_", ["%i", "${MODEL}", "$MODEL"])
def test_a_command_that_only_systemd_can_complete_is_seen_while_it_runs(monkeypatch, open_):
    written = f"[Service]\nExecStart=/usr/bin/python3 {' '.join(SERVER[:-1])} {open_}\n"
    monkeypatch.setattr(units, "systemctl", lambda *words, **more: written)
    monkeypatch.setattr(units.procfs, "read", lambda pid: object())
    monkeypatch.setattr(units.procfs, "command_line", lambda pid: ["/usr/bin/python3", *SERVER])
    assert units.command("sglang", {"MainPID": "7"}) == ["/usr/bin/python3", *SERVER]
    with pytest.raises(RingmasterError) as raised:
        units.command("sglang", {"MainPID": "0"})
    assert f"sglang.service does not run, and its ExecStart has {open_}, which" in raised.value.what
    assert "Start the unit" in raised.value.remedy
    assert units.command("sglang", {"MainPID": "0"}, must_be_whole=False)[-1] == open_


def test_what_systemctl_says_need_not_be_text(tmp_path, monkeypatch):
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\nprintf 'caf\\351\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert units.systemctl("cat", "a.service") == "caf\ufffd\n"


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
